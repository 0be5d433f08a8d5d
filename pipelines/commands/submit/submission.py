"""A submission to a Ray cluster: a command, the files that it needs, and an id that is always the same for
the same work.

Nothing here talks to a cluster. The submission id includes a fingerprint of the command, the contents of the
configuration files and uploaded files that it names, the code, and the slot of the schedule if there is one.
Submitting the same work again therefore finds the existing job. An environment variable is passed on only if
it is requested by name and listed in ENVIRONMENT, because everyone who can see a job can read its variables.
"""

import argparse
import ipaddress
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gristmill.config import load_yaml, near_match
from gristmill.errors import ConfigError, UserError
from gristmill.storage.paths import LOGIN, is_url
from gristmill.storage.remote import has_query, shown
from gristmill.storage.store import digest, file_checksum
from gristmill.terminal import is_utf8

UPLOAD_BYTES = 64 << 20  # of all files: Ray keeps the package in the memory of the head and copies it to every node
EXCLUDES = (".*", "__pycache__", "*.egg-info", "*.pem", "*.key", "/data", "/runs", "/models", "/build", "/dist")
ENVIRONMENT = (
    "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_REGION", "DS_ACCELERATOR", "GRISTMILL_ALLOW_PRIVATE", "GRISTMILL_CACHE",
    "GRISTMILL_CACHE_BYTES", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME",
    "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "WANDB_MODE", "WANDB_NAME", "WANDB_PROJECT",
)  # fmt: skip
"""Environment variables that may be passed to a job. None of them is meant to hold a secret; values with
credentials are refused.
"""
_CODE = ("gristmill", "pipelines", "tokenizer", "trainers")
_CODE_SUFFIXES = (".py", ".html", ".css", ".json", ".yaml")
_SLOT = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,46}[a-z0-9])?")
# The user and password of a URL, or the query of an http(s) URL, which may be a signature.
_CREDENTIALS = re.compile(LOGIN + r"|(?:(?<=http://)|(?<=https://))[^\s?#@]*[?#]\S*", re.IGNORECASE)
_LARGEST = 5  # files named when an upload is too big


@dataclass(frozen=True)
class Upload:
    """The files that a job runs from, as (path relative to `directory`, size in bytes). `left_out` lists the
    symbolic links that `collect` does not follow.
    """

    directory: Path
    files: tuple[tuple[str, int], ...]
    left_out: tuple[str, ...]

    def copy_to(self, target: Path) -> None:
        """Copy these files, and no others, to `target`."""
        for relative, _ in self.files:
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.directory / relative, target / relative)


@dataclass(frozen=True)
class Work:
    """A command to run as a job, and the digests that identify it. `slot` names the scheduled run that the
    job is for, such as 2026-11-21.

    `words` is a digest of the command alone. `key` is a digest of the command, the YAML files and uploaded
    files that it names, and the code.
    """

    command: tuple[str, ...]
    name: str
    words: str
    key: str
    slot: str | None

    @property
    def id(self) -> str:
        """The submission id: the name, the slot if there is one, and a fingerprint of the key and the slot."""
        fingerprint = digest({"work": self.key, "slot": self.slot})[:12]
        return "-".join([self.name, *([self.slot] if self.slot else []), fingerprint])

    def entrypoint(self, python: str) -> str:
        """Return the command as a shell command line, with `python` as the interpreter."""
        return shlex.join([python, *self.command[1:]])


def describe(command: Sequence[str], directory: Path, slot: str | None) -> Work:
    """Return the work that a command does when it is submitted from `directory`.

    Raises ConfigError for a malformed slot; for a command that does not begin with python, is not UTF-8, contains
    credentials, or names a missing YAML file by a relative path; for a build or a pretraining run with data
    or output in the job's own working directory; and for an uploaded corpus file that contains a URL with a
    query.
    """
    if not command or command[0] not in ("python", "python3") or len(command) < 2:
        got = repr(command[0]) if command else "nothing"
        raise ConfigError(
            f"COMMAND: got {got}, expected python and its arguments, as in: submit -- python -m pipelines build FILE; "
            f"the interpreter of the cluster takes the place of the word python (--python)"
        )
    for word in command:
        if not is_utf8(word):
            raise ConfigError(
                f"COMMAND: {_hidden(word)!r} is not UTF-8, which a job's command must be; rename the file"
            )
        if _CREDENTIALS.search(word):
            raise ConfigError(
                f"COMMAND: {_hidden(word)!r} holds credentials, or a URL with a query, which everyone who sees "
                f"the job could read; put it into a file on the nodes"
            )
    if slot is not None and not _SLOT.fullmatch(slot):
        raise ConfigError(
            f"--slot: got {slot!r}, expected up to 48 lower-case letters, digits, dots and dashes, such as 2026-11-21"
        )
    _check_places(command, directory)
    words = digest(list(command))
    key = digest({"command": [_content(word, directory) for word in command], "code": code_version(directory)})
    return Work(tuple(command), _name(command), words, key, slot)


def _hidden(text: str) -> str:
    return _CREDENTIALS.sub(lambda found: "://...@" if found[0].endswith("@") else "...", text)


def _name(command: Sequence[str]) -> str:
    rest = list(command[1:])
    if rest[0] == "-m" and len(rest) > 1:
        rest = [rest[1].rpartition(".")[2], *rest[2:]]
        if rest[0] in _CODE and len(rest) > 1:
            rest = rest[1:]
    return re.sub(r"[^a-z0-9]+", "-", Path(rest[0]).stem.lower()).strip("-") or "job"


def _named(word: str, directory: Path) -> str | None:
    """Return the path of the file that a word of the command names, as the whole word or after its `=`.
    Return None if there is no such file. Raises ConfigError if the word names a missing YAML file by a
    relative path.
    """
    value = word.partition("=")[2] or word
    for name in (word, value):
        with suppress(OSError):  # a word too long to name a file
            if (directory / name).is_file():
                return name
    if value.endswith((".yaml", ".yml")) and not Path(value).is_absolute():
        raise ConfigError(f"COMMAND: {value}: no such file below {directory}, from which the job is submitted")
    return None


def _content(word: str, directory: Path) -> dict[str, Any]:
    """Return a word of the command and, if the word names a file, a digest of the file's content. For a YAML
    file, the digest covers the values, not the comments.

    Other files are digested only if their path is relative: these travel with the job, while a file elsewhere
    may be an output of the command.
    """
    name = _named(word, directory)
    if name is not None and name.endswith((".yaml", ".yml")):
        return {"word": word, "content": digest(repr(load_yaml(directory / name)))}
    if name is not None and not Path(name).is_absolute():
        return {"word": word, "content": file_checksum(directory / name)}
    return {"word": word}


def check_uploaded(command: Sequence[str], directory: Path, upload: Upload | None) -> None:
    """Raise ConfigError if the command names, by a relative path, a file that is not uploaded with the job."""
    files = {name for name, _ in upload.files} if upload else set()
    for name in filter(None, (_named(word, directory) for word in command)):
        if not Path(name).is_absolute() and os.path.normpath(name) not in files:
            raise ConfigError(
                f"COMMAND: {name} is not uploaded with the job (it is left out, or lies outside {directory}); name a file that "
                f"is, or an absolute path that every node sees"
            )


def code_version(directory: Path) -> str:
    """Return a digest of constraints.txt and of the code and data files in gristmill's packages. The packages
    are those in `directory` if it has them, otherwise the installed ones.
    """
    root = directory if (directory / "pipelines").is_dir() else Path(__file__).parents[2]
    files = [path for name in _CODE for path in (root / name).rglob("*") if path.suffix in _CODE_SUFFIXES]
    files.append(root / "constraints.txt")
    return digest({str(path.relative_to(root)): file_checksum(path) for path in sorted(files) if path.is_file()})


def _check_places(command: Sequence[str], directory: Path) -> None:
    """Raise ConfigError for a build or a pretraining run with data or output in the job's working directory:
    each node has only a copy of it, which Ray removes with the job. Also raise ConfigError for an uploaded
    corpus file that gives a URL with a query as the root of a source.
    """
    module, action = (command[2], command[3]) if command[1] == "-m" and len(command) > 3 else (None, None)
    if module == "pipelines" and action == "build":
        from pipelines.commands.building import add_commands
        from pipelines.planning.corpus import load_corpus_config

        parser = argparse.ArgumentParser(prog="python -m pipelines")
        add_commands(parser.add_subparsers(required=True))
        options, rest = parser.parse_known_args(command[3:])
        config = load_corpus_config(directory / options.config, [*options.overrides, *rest])
        _refuse_relative(f"{options.config}: output", config.output)
        for source in config.sources:
            where = f"{options.config}: root of the source {source.name}"
            _refuse_relative(where, source.root)
            if source.files is not None:
                _refuse_relative(f"{options.config}: files of the source {source.name}", source.files)
            if has_query(source.root) and not Path(options.config).is_absolute():
                raise ConfigError(
                    f"{where}: {shown(source.root)!r} has a query, which may be a signature, and the file would go with the job, "
                    f"which others can read; put the file on the nodes and name its absolute path"
                )
    elif module == "trainers" and action in ("pretrain", "finetune"):
        settings = dict(word.split("=", 1) for word in command[4:] if "=" in word and not word.startswith("-"))
        if "run" not in settings:
            raise ConfigError("COMMAND: say run=DIR, an absolute path that every node sees, or the run is lost")
        if not Path(settings["run"]).is_absolute():
            raise ConfigError(f"COMMAND: run: got {settings['run']!r}, expected an absolute path that every node sees")
        for name in ("corpus", "data"):
            for place in filter(None, settings.get(name, "").split(",")):
                _refuse_relative(f"COMMAND: {name}", place)


def _refuse_relative(what: str, place: str) -> None:
    if not is_url(place) and not Path(place).is_absolute():
        raise ConfigError(
            f"{what}: got {place!r}, which on a cluster is in a copy of the code that is removed with the job; expected a "
            f"URL, or an absolute path that every node sees"
        )


def collect(directory: Path, excludes: Sequence[str] = ()) -> Upload:
    """Collect the files below `directory` that go with a job: all except files that match EXCLUDES or
    `excludes`. Symbolic links are followed only to files inside `directory` that are not excluded themselves.

    A pattern without a slash excludes every file and directory whose name matches it. A pattern with a slash
    is compared with the path relative to `directory`. Raises UserError for a name that is not UTF-8, which Ray
    cannot upload, and if the files exceed UPLOAD_BYTES in total.
    """
    patterns, root = (*EXCLUDES, *excludes), directory.resolve()
    files, left_out = [], []
    for path in _walk(directory, directory, patterns):
        target = Path(os.path.realpath(path))  # unlike `resolve`, it accepts links in a circle
        is_inside = target.is_relative_to(root) and not (
            path.is_symlink() and _is_below_excluded(target, root, patterns)
        )
        if path.is_file() and is_inside:
            if not is_utf8(str(path.relative_to(directory))):
                raise UserError(f"{path}: its name is not UTF-8; rename it, or leave it out with --exclude PATTERN")
            files.append((path.relative_to(directory).as_posix(), path.stat().st_size))
        elif path.is_symlink():
            left_out.append(path.relative_to(directory).as_posix())
    total = sum(size for _, size in files)
    if total > UPLOAD_BYTES:
        largest = sorted(files, key=lambda file: (-file[1], file[0]))[:_LARGEST]
        listed = ", ".join(f"{name} ({size / 1e6:,.1f} MB)" for name, size in largest)
        raise UserError(
            f"{directory}: {len(files)} files of {total / 1e6:,.1f} MB would be copied to every node, allowed are "
            f"{UPLOAD_BYTES / 1e6:,.1f}; the largest are {listed}; leave files out with --exclude PATTERN, or submit with "
            f"--no-upload where the nodes have the code"
        )
    return Upload(directory, tuple(files), tuple(left_out))


def _walk(directory: Path, root: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if _is_excluded(path, root, patterns):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, root, patterns)
        else:
            yield path


def _is_excluded(path: Path, root: Path, patterns: Sequence[str]) -> bool:
    relative = f"/{path.relative_to(root).as_posix()}"
    return any(fnmatchcase(relative, f"/{p.strip('/')}") if "/" in p else fnmatchcase(path.name, p) for p in patterns)


def _is_below_excluded(path: Path, root: Path, patterns: Sequence[str]) -> bool:
    above = [path, *path.parents]
    return any(_is_excluded(each, root, patterns) for each in above[: above.index(root)])


def environment(asked: Sequence[str], here: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a job. Each is requested as `NAME=value`, or as `NAME` to take its
    value from `here`.

    Raises ConfigError for a name that is not in ENVIRONMENT, for a `NAME` that is not in `here`, and for a
    value with credentials. The message never shows a value.
    """
    variables = {}
    for entry in asked:
        name, equals, value = entry.partition("=")
        if name not in ENVIRONMENT:
            raise ConfigError(
                f"--env: {name}: is not passed to a job, which others can read: put secrets into the environment of the "
                f"nodes{near_match(name, ENVIRONMENT)}"
            )
        if not equals and name not in here:
            raise ConfigError(f"--env: {name}: is not set here; set it, or write {name}=VALUE")
        variables[name] = value if equals else here[name]
        if _CREDENTIALS.search(variables[name]):
            raise ConfigError(
                f"--env: {name}: its value holds credentials, or a URL with a query, which everyone who sees the job could read"
            )
    return variables


def check_address(address: str, here: Mapping[str, str]) -> str:
    """Validate the address of a cluster's dashboard and return it without a trailing slash.

    Raises ConfigError if the address is not a plain http or https URL, if it is not a loopback address and
    RAY_AUTH_MODE is not `token`, or if that mode is set but there is no token.
    """
    try:
        parts = urlsplit(address)
        host = parts.hostname if parts.scheme in ("http", "https") and parts.port != 0 else None
    except ValueError:  # of brackets, or of a port
        host = None
    if not host or "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise ConfigError(
            "--address: expected the dashboard of a cluster, such as http://127.0.0.1:8265, without a user, a path or a query"
        )
    with_token = here.get("RAY_AUTH_MODE", "").lower() == "token"
    if not with_token and not _is_loopback(host):
        raise ConfigError(
            f"--address: {host} is another machine: set RAY_AUTH_MODE=token, here and on the cluster, or reach it "
            f"through a tunnel to a loopback address; anyone who reaches a cluster without token can run commands on it"
        )
    if with_token and not _has_token(here):
        raise ConfigError(
            "RAY_AUTH_MODE is token, but there is no token: set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or write that of "
            "the cluster's head to ~/.ray/auth_token (readable by you alone)"
        )
    return address.rstrip("/")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _has_token(here: Mapping[str, str]) -> bool:
    if here.get("RAY_AUTH_TOKEN", "").strip():
        return True
    home = Path(here.get("HOME") or Path.home())
    path = Path(here.get("RAY_AUTH_TOKEN_PATH") or home / ".ray" / "auth_token")
    return path.is_file() and bool(path.read_text(encoding="utf-8").strip())
