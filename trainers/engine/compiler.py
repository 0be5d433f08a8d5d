"""Whether this machine can compile what torch.compile writes: asked before the first step, not found out in it."""

import os
import shutil
import sysconfig
from pathlib import Path

from gristmill.errors import ConfigError
from trainers.config.job import Job


def needs_compiler(config: Job) -> list[str]:
    """The fields of a configuration that want a C++ compiler: torch.compile, and DeepSpeed's Muon, which uses it."""
    wants = {
        "execution.compile: true": config.execution.compile,
        "optimizer.kind: muon": config.optimizer.kind == "muon",
    }
    return [field for field, wanted in wants.items() if wanted]


def check_compiler(config: Job) -> None:
    """ConfigError where a run needs a C++ compiler and has none, or has no headers of Python; it names the packages."""
    asked = ", ".join(needs_compiler(config))
    if not asked:
        return
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise ConfigError(
            f"{asked}: needs a C++ compiler, {name} is not there; install the package g++ (Debian, Ubuntu) or gcc-c++ "
            f"(Fedora, RHEL), or set CXX to another one"
        )
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not headers.exists():
        raise ConfigError(
            f"{asked}: needs the headers of Python, {headers} is not there; install the package python3-dev (Debian, "
            f"Ubuntu) or python3-devel (Fedora, RHEL)"
        )
