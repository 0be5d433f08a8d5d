"""The docs' template package as users have it: installed by pip without a network, and used in builds on Ray."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines import open_corpus
from tests.chaos.harness.outcome import files_of

ROOT = Path(__file__).parents[3]
TEMPLATE = ROOT / "docs" / "own_stage"
DOCUMENTS = 1200  # of some 27 parts
CORPUS = """
name: loud
output: {root}/out
sources:
  - {{name: web, root: {root}/web, format: jsonl, part_bytes: 2000}}
steps:
  - shouting:shouts: {{shortest: 3}}
  - filter: [{{signal: shouts, at_most: 0.3, null: keep}}]
"""

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("installed")
    shutil.copytree(TEMPLATE, root / "own_stage")  # pip leaves files beside the source
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*pip, "--target", str(root / "site"), str(root / "own_stage")], check=True, capture_output=True)
    return root / "site"


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    root = tmp_path_factory.mktemp("loud")
    (root / "web").mkdir()
    voices = ["THIS IS LOUD", *["this is said"] * 6]
    lines = [f'{{"text": "{voices[n % 7]} again, in a LINE with the number {n}"}}' for n in range(DOCUMENTS)]
    (root / "web" / "a.jsonl").write_text("\n".join(lines))
    (root / "corpus.yaml").write_text(CORPUS.format(root=root))
    return root / "corpus.yaml"


def environment(*paths):
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [*paths, ROOT])), "RAY_USAGE_STATS_ENABLED": "0"}


def build(corpus_file, site, *words):
    command = [sys.executable, "-m", "pipelines", "build", str(corpus_file), *words]
    return subprocess.run(command, cwd=ROOT, env=environment(site), capture_output=True, text=True, timeout=300)


def test_its_own_test_passes(site):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(TEMPLATE),
        str(TEMPLATE / "tests"),
    ]
    ended = subprocess.run(command, cwd=site, env=environment(site), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout


def test_a_killed_build_resumes_to_the_bytes_of_one_process(site, corpus_file):
    whole = corpus_file.parent / "whole"
    ended = build(corpus_file, site, f"output={whole}", "--in-process")
    assert ended.returncode == 0, ended.stderr
    dropped = open_corpus(whole).verdicts().read_all()["drop"].drop_null()
    assert dropped.to_pylist() == ["shouts"] * len(range(0, DOCUMENTS, 7))
    killed = corpus_file.parent / "killed"
    command = [sys.executable, "-m", "pipelines", "build", str(corpus_file), f"output={killed}", "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(site), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not list(killed.glob("shouts.web-*/units/*.json")):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert list(killed.glob("shouts.web-*/units/*.json"))
    assert not list(killed.glob("shouts.web-*/manifest.json"))
    ended = build(corpus_file, site, f"output={killed}", "--workers", "2")
    assert ended.returncode == 0, ended.stderr
    assert files_of(killed) == files_of(whole)


def test_a_worker_without_the_package_ends_the_build_with_one_line(site, corpus_file):
    """The driver finds the package; the workers, which Ray starts, do not."""
    code = f"import sys; sys.path.insert(0, {str(site)!r}); from pipelines.__main__ import main; sys.exit(main(sys.argv[1:]))"
    output = corpus_file.parent / "missing"
    command = [sys.executable, "-c", code, "build", str(corpus_file), f"output={output}", "--workers", "2"]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2, ended.stderr
    line = ended.stderr.strip().splitlines()[-1]
    assert (
        "a worker has not all that is installed here: No module named 'shouting'; install the same everywhere" in line
    )
