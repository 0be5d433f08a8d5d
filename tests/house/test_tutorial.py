"""The tutorial runs: its cells in order, in the folder where Jupyter would run it."""

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def notebook():
    return json.loads((DOCS / "tutorial.ipynb").read_text())


def test_it_is_stored_without_results(notebook):
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@pytest.mark.long
def test_its_cells_run(notebook, monkeypatch):
    monkeypatch.chdir(DOCS)
    values, printed = {}, io.StringIO()
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with contextlib.redirect_stdout(printed):
        for number, source in enumerate(cells):
            exec(compile(source, f"tutorial.ipynb, code cell {number}", "exec"), values)
    pages = len(list(DOCS.glob("*.md")))
    assert len(values["verdicts"]) == pages > len(values["documents"]) > 10
    assert values["history"].reason == "word_count"
    assert f"{values['found'].hits} hits in" in printed.getvalue()
    assert values["found"].hits > 50
    gained = values["impact"].change()[0]
    assert gained == -values["change"].sources["pages"].went_out["word_count"] < 0
    assert len(values["first"]) == values["shard"].offsets[1] > 0


def test_its_links_lead_somewhere(notebook):
    text = "".join(line for cell in notebook["cells"] for line in cell["source"])
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets
    assert all((DOCS / target).exists() for target in targets)
