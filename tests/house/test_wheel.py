"""The wheel holds the four packages and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_ships_the_packages_and_no_tests(tmp_path):
    """The wheel is built offline with the installed setuptools, because an isolated build would download one."""
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("gristmill", "pipelines", "trainers", "tokenizer", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(tree),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("gristmill-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "gristmill",
        "pipelines",
        "trainers",
        "tokenizer",
    }
    assert not [name for name in names if "test" in name]
    for package in ("gristmill", "pipelines", "trainers", "tokenizer"):
        files = [path for kind in ("*.py", "*.html", "*.css", "*.yaml") for path in (ROOT / package).rglob(kind)]
        expected = {str(path.relative_to(ROOT)) for path in files}
        assert expected <= set(names)
