"""Charts of the metrics over the share of a domain."""

import re

import pytest

from trainers.studies.page.domain_charts import domain_charts


def curve(reach, metrics=("x", "<y>")):
    mean = [reach, 0.0, -reach]
    return {
        "shares": [0.1, 0.3, 0.5],
        "mean": mean,
        "low": [value - 0.1 for value in mean],
        "high": [value + 0.1 for value in mean],
        "metrics": {name: [2 * value for value in mean] for name in metrics},
    }


def points(path):
    return [tuple(map(float, point.split())) for point in path.rstrip("Z").split("L")]


def test_lines_bands_and_marks_are_where_the_curve_is():
    (chart,) = domain_charts({"code": curve(1.0)}, [("prior", {"code": 0.3}), ("proposed", {"code": 0.5})])
    assert (chart.name, chart.note) == ("code", "lowest mean at 50%")
    paths = re.findall(r'd="M([^"]+)"[^>]*><title>(.+?)</title>', chart.svg)
    lines = {title: points(path) for path, title in paths}
    assert set(lines) == {"x", "&lt;y&gt;", "mean"}
    (x0, y0), (x1, y1), (x2, y2) = lines["mean"]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y2 - y1 == pytest.approx(y1 - y0, abs=0.2)
    assert y0 < y2  # a lower metric is lower
    assert lines["x"] == lines["&lt;y&gt;"]
    assert lines["x"][0][1] - y1 == pytest.approx(2 * (y0 - y1), abs=0.3)
    marks = re.findall(r'x1="([\d.]+)"[^>]*stroke-dasharray="3 3"><title>(\w+): ', chart.svg)
    assert marks == [(f"{x1:g}", "prior"), (f"{x2:g}", "proposed")]
    assert len(re.findall(r'opacity="\.12"', chart.svg)) == 1


def test_the_domains_that_matter_come_first_and_few_are_drawn():
    curves = {f"d{n}": curve(1 + n) for n in range(30)}
    charts = domain_charts(curves, [])
    assert [each.name for each in charts][:2] == ["d29", "d28"]
    assert len(charts) == 24
    many = curve(1.0, [f"m{n}" for n in range(9)]) | {"low": None, "high": None}
    (chart,) = domain_charts({"a": many}, [])
    assert "opacity" not in chart.svg
    assert ">m3<" not in chart.svg.replace("<title>m3</title>", "")
