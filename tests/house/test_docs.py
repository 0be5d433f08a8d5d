"""Documents that are generated, or that name things in the code, agree with the code."""

import importlib.util
import re
from pathlib import Path

import pytest

from pipelines.stages import STAGES
from trainers.objectives import OBJECTIVES

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.parametrize("name", ["corpus_file", "training_file", "task_file", "study_file", "python_api"])
def test_the_references_are_current(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / f"{name}.md").read_text() == module.page(), f"run: python docs/{name}.py"


def test_every_stage_is_found_with_one_grep():
    """The name of a stage in YAML is that of the file that defines it."""
    for name, stage in STAGES.items():
        assert stage.__module__.startswith("pipelines.stages.")
        assert stage.__module__.rpartition(".")[2] == name


def test_every_objective_is_found_with_one_grep():
    for name, objective in OBJECTIVES.items():
        assert re.fullmatch(rf"trainers\.objectives\.((characters|sentences|spans)\.)?{name}", objective.__module__)


def test_every_direct_dependency_is_pinned_and_explained():
    project = (ROOT / "pyproject.toml").read_text()
    block = re.search(r"^dependencies = \[(.*?)^\]", project, re.S | re.M).group(1)
    names = [re.match(r"[\w-]+", entry).group() for entry in re.findall(r'"([^"]+)"', block)]
    pins = {
        line.split("==")[0].lower().replace("_", "-") for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    decisions = (ROOT / "docs" / "decisions.md").read_text().lower()
    assert len(names) > 10
    for name in names:
        assert name.lower() in pins, f"{name} is not pinned in constraints.txt"
        assert f"`{name.lower()}`" in decisions, f"docs/decisions.md does not say what {name} is for"


def test_links_between_documents_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
