"""Metrics and their dashboard: Grafana can load the file, and its panels query only exported metrics.

test_jobs.py and trainers/test_launch.py, which run builds and training on a cluster, check that Ray exports
each metric under these names and labels.
"""

import json
import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from gristmill.metrics import PREFIX
from pipelines.building.build_metrics import METRICS as OF_BUILDS
from tests.scraping import OF_NODES
from trainers.runs.training_metrics import METRICS as OF_RUNS
from trainers.runs.training_metrics import RunMetrics

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "gristmill.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
OURS = {f"ray_{PREFIX}{metric.name}": metric for metric in (*OF_BUILDS, *OF_RUNS)}
FUNCTIONS = {"sum", "max", "rate", "increase", "histogram_quantile", "by"}
SELECTOR = re.compile(r"(\w+)\{(\w+)=~\"\$(\w+)\"\}")


def plain(expression):
    return re.sub(r"\{[^{}]*\}|\[\$__rate_interval\]", "", expression)


def asked():
    variables = [entry["definition"] for entry in DASHBOARD["templating"]["list"] if entry["type"] == "query"]
    return set(re.findall(r"\bray_\w+", " ".join([*EXPRESSIONS, *variables])))


def test_grafana_finds_what_it_needs_to_load_the_file():
    assert DASHBOARD["schemaVersion"] >= 38  # Grafana 10
    assert DASHBOARD["uid"]
    assert "id" not in DASHBOARD  # it would replace whichever dashboard has that number
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    for panel in PANELS:
        assert {"title", "description", "fieldConfig", "options", "gridPos"} <= set(panel)
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
    first, *others = DASHBOARD["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    sources = [entry["datasource"] for entry in [*others, *PANELS, *(t for panel in PANELS for t in panel["targets"])]]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)


def test_panels_lie_in_the_grid_and_not_on_each_other():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["w"] > 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_every_metric_is_shown_and_nothing_else_is_asked_for():
    known = {f"{name}_bucket" if metric.kind == "histogram" else name for name, metric in OURS.items()}
    assert asked() == known | OF_NODES
    for metric in OURS.values():
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.text


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_are_well_formed(expression):
    assert expression.count("(") == expression.count(")")
    assert re.sub(r"\{[^{}]*\}", "", expression).isascii()
    assert not set(plain(expression)) & set("{}[]$\"'")
    called = set(re.findall(r"\b([a-z_]+)\s*\(", plain(expression)))
    assert called <= FUNCTIONS
    for name, label, variable in SELECTOR.findall(expression):
        assert label == variable
        assert label in OURS[name.removesuffix("_bucket")].tags
    for grouped in re.findall(r"by \(([^)]*)\)", expression):
        labels = {label.strip() for label in grouped.split(",")}
        names = {name.removesuffix("_bucket") for name in re.findall(r"\bray_\w+", expression)}
        for name in names - OF_NODES:
            assert labels - {"le"} <= set(OURS[name].tags)
    counters = {name for name, metric in OURS.items() if metric.kind == "counter"}
    assert all(name in counters for name in re.findall(r"(?:rate|increase)\((ray_\w+?_total)\b", expression))


def test_variables_are_labels_of_what_they_ask():
    for variable in DASHBOARD["templating"]["list"][1:]:
        name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
        assert variable["query"]["query"] == variable["definition"]
        assert label == variable["name"]
        assert label in OURS[name].tags


def test_without_ray_nothing_is_recorded_and_ray_is_not_loaded():
    code = (
        "import sys\nfrom trainers.runs.training_metrics import RunMetrics\n"
        "from pipelines.building.build_metrics import BuildMetrics\n"
        "RunMetrics('r').take('checkpoint', {})\nBuildMetrics('c').progress(1, 2)\nassert 'ray' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
    RunMetrics("r").take("step", {"step": 1, "steps": 2, "loss": float("nan"), "mfu": None})
