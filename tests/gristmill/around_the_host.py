"""Runs command lines, and prints what they open, rename or remove below a directory without going through `gristmill.host`.

`python around_the_host.py DIRECTORY JSON`: JSON is a list of [package, argument, ...]. Python's audit events cover all Python
code. They do not cover the native code of Arrow and safetensors, which gets its paths from the host.
"""

import importlib
import json
import os
import sys
from pathlib import Path

EVENTS = {
    "open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.scandir",
    "os.listdir", "os.utime", "shutil.rmtree",
}  # fmt: skip
HOST = "gristmill/host.py"


def inside(path, directory):
    return isinstance(path, str | bytes | os.PathLike) and f"{Path.cwd() / os.fsdecode(path)}".startswith(
        f"{directory}/"
    )


def watch(directory, seen):
    """From now on, add every access below the directory that bypasses the host to `seen`, with its caller."""

    def hook(event, arguments):
        if event not in EVENTS or not any(inside(argument, directory) for argument in arguments[:2]):
            return
        frame, caller = sys._getframe(1), None
        while frame is not None:
            name = frame.f_code.co_filename
            if name.endswith(HOST):
                return
            if caller is None and any(f"/{package}/" in name for package in ("gristmill", "pipelines", "trainers")):
                caller = f"{Path(name).name}:{frame.f_code.co_name}"
            frame = frame.f_back
        seen.add(f"{event} of {os.path.relpath(os.fsdecode(arguments[0]), directory)} by {caller}")

    sys.addaudithook(hook)


def main():
    directory, commands = sys.argv[1], json.loads(sys.argv[2])
    seen = set()
    watch(directory, seen)
    for package, *arguments in commands:
        status = importlib.import_module(f"{package}.__main__").main(arguments)
        assert status == 0, (package, arguments, status)
    print(json.dumps(sorted(seen)))


if __name__ == "__main__":
    main()
