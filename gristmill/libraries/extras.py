"""Optional dependencies: how to install them, and whether they can be imported.

Each module in EXTRAS is installed by an extra of pyproject.toml. An installed library may still fail to
import, because one of its own dependencies is missing, or may crash the interpreter. `import_failures`
therefore imports modules in a separate process.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable

EXTRAS = {
    "trafilatura": ("trafilatura",),
    "s3": ("s3fs",),
    "documents": ("pypdfium2",),
    "ftfy": ("ftfy",),
    "kenlm": ("kenlm",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "finetune": ("peft", "rouge_score", "sacrebleu"),
    "studies": ("lightgbm",),
    "harness": ("lm_eval",),
    "probe": ("sklearn",),
}
"""The optional modules of each extra."""

_IMPORT = """
import importlib, json, sys, warnings
warnings.simplefilter("ignore")
for name in sys.argv[1:]:
    print(json.dumps(["try", name]), flush=True)
    try:
        importlib.import_module(name)
    except BaseException as error:
        print(json.dumps(["fail", name, type(error).__name__ + ": " + str(error)]), flush=True)
"""


def extra_of(module: str) -> str:
    """Return the extra that installs `module`, which must be in EXTRAS."""
    return next(extra for extra, modules in EXTRAS.items() if module in modules)


def install_extra(extra: str) -> str:
    """Return the pip command that installs an extra with the tested versions of its dependencies."""
    return f"pip install --constraint constraints.txt --editable '.[{extra}]'"


def import_failures(modules: Iterable[str]) -> dict[str, str]:
    """Import modules in a separate process, because a broken one may crash the interpreter. Return the
    modules that fail, each with the reason. If a module ends the process, those after it are not tried.
    """
    names = list(modules)
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    result = subprocess.run(
        [sys.executable, "-c", _IMPORT, *names], capture_output=True, text=True, env=environment, check=False
    )
    answers = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('["')]
    failed = {answer[1]: answer[2].splitlines()[0] for answer in answers if answer[0] == "fail"}
    tried = [answer[1] for answer in answers if answer[0] == "try"]
    if result.returncode and tried:
        failed[tried[-1]] = f"importing it ended the process with status {result.returncode}"
    return failed
