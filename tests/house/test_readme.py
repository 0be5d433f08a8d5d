"""The commands in the README and in the pages of docs/ exist: make targets, subcommands, options, recipes, files."""

import argparse
import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from pipelines.__main__ import main
from pipelines.commands.doctor import LEAST_PYTHON
from tests.house.test_configs import assignments, fetched  # noqa: F401

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = "\n".join(page.read_text() for page in sorted((ROOT / "docs").glob("*.md")))
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines()]

EXAMPLES = [
    shlex.split(match[1].partition(" > ")[0], comments=True)
    for block in re.findall(r"```sh\n(.*?)```", README + "\n" + PAGES, re.S)
    for line in block.replace("\\\n", " ").splitlines()
    if (match := re.search(r"python -m ((?:pipelines|trainers|tokenizer) .*)", line))
]


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text(), re.M))
    assert {"demo", "test"} <= named <= targets
    assert {"demo", "check", "fix", "test", "test-fast", "test-ray", "bench", "wheel"} <= targets


def test_the_oldest_python_is_the_same_everywhere():
    oldest = ".".join(map(str, LEAST_PYTHON))
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"] == f">={oldest}"
    assert re.findall(r"Python ([0-9.]+) or newer", README) == [oldest] * 2
    made = (ROOT / "Makefile").read_text()
    assert f"sys.version_info < {LEAST_PYTHON})" in made
    assert f"Python {oldest} or newer" in made


@pytest.mark.parametrize("command", EXAMPLES, ids=" ".join)
def test_every_command_parses(command):
    module, *arguments = command
    assert importlib.import_module(f"{module}.__main__").parser().parse_known_args(arguments)[1] == []
    for word in arguments:
        if word.startswith("corpora_configs/"):
            assert (ROOT / word).exists()


@pytest.mark.parametrize("module", ["pipelines", "trainers", "tokenizer"])
def test_every_command_has_an_example(module):
    parser = importlib.import_module(f"{module}.__main__").parser()
    (choice,) = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    assert set(choice.choices) - {command for package, command, *_ in EXAMPLES if package == module} == set()


@pytest.mark.long
@pytest.mark.usefixtures("fetched")
def test_the_plans_of_the_readme_are_valid(tmp_path):
    (tmp_path / "corpora_configs").symlink_to(ROOT / "corpora_configs")
    plans = [
        shlex.split(command, comments=True)[3:] for command in COMMANDS if "pipelines plan corpora_configs" in command
    ]
    assert len(plans) >= 2
    for arguments in plans:
        assert main([*arguments, "--check", *assignments(Path(arguments[1]))]) == 0


def test_recipes_named_in_the_readme_exist():
    from trainers.recipes import RECIPES

    named = re.findall(r"trainers pretrain (\w+)", README)
    assert named
    assert set(named) <= set(RECIPES)


@pytest.mark.slow
def test_help_runs_without_loading_anything_heavy():
    import subprocess
    import sys

    for package in ("pipelines", "trainers", "tokenizer"):
        code = (
            f"import sys; sys.argv = ['x', '--help']\ntry:\n import {package}.__main__ as m; m.main(['--help'])\n"
            + ("except SystemExit: pass\nassert not {'torch', 'ray', 'numba', 'transformers'} & set(sys.modules)")
        )
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
