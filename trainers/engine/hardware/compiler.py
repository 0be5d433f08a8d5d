"""Check, before the first step, that this machine has a C++ compiler and Python's headers if the run needs
them.
"""

import os
import shutil
import sysconfig
from pathlib import Path

from gristmill.errors import ConfigError
from trainers.config.job import Job


def needs_compiler(config: Job) -> list[str]:
    """Return the settings of a job that need a C++ compiler. Muon is one because DeepSpeed compiles it with
    torch.compile.
    """
    needs = {
        "execution.compile: true": config.execution.compile,
        "optimizer.kind: muon": config.optimizer.kind == "muon",
    }
    return [field for field, needed in needs.items() if needed]


def check_compiler(config: Job) -> None:
    """Raise ConfigError if the job needs a C++ compiler and the compiler or Python's headers are missing."""
    fields = ", ".join(needs_compiler(config))
    if not fields:
        return
    name = os.environ.get("CXX", "g++")
    if shutil.which(name) is None:
        raise ConfigError(
            f"{fields}: needs a C++ compiler, but {name} is not there; install the package g++ (Debian, Ubuntu) or "
            f"gcc-c++ (Fedora, RHEL), or set CXX to another compiler"
        )
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not headers.exists():
        raise ConfigError(
            f"{fields}: needs the headers of Python, but {headers} is not there; install the package python3-dev (Debian, "
            f"Ubuntu) or python3-devel (Fedora, RHEL)"
        )
