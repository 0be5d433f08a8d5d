"""Documents that are generated, or that name things in the code, agree with the code."""

import importlib.util
import re
from pathlib import Path

from pipelines.stages import STAGES

ROOT = Path(__file__).parents[1]


def test_the_corpus_file_reference_is_current():
    spec = importlib.util.spec_from_file_location("corpus_file", ROOT / "docs" / "corpus_file.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "corpus_file.md").read_text() == module.page(), "run: python docs/corpus_file.py"


def test_every_stage_is_found_with_one_grep():
    """A YAML name is the name of the file that holds the stage."""
    for name, stage in STAGES.items():
        assert stage.__module__ == f"pipelines.stages.{name}"


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
