"""Parallel-coordinate charts of mixtures."""

import re

from trainers.studies.page.swarm_chart import SwarmRun, swarm_lines

RUNS = [
    SwarmRun("prior", {"a": 0.5, "b": 0.5}, 2.0),
    SwarmRun("<x>", {"a": 1.0, "b": 0.0}, 1.0),
    SwarmRun("y", {"a": 0.0, "b": 1.0}, 3.0),
]


def paths(svg):
    found = re.findall(r'<path d="M([^"]+)"[^>]*><title>(.+?): ', svg)
    return {name: [tuple(map(float, point.split())) for point in points.split("L")] for points, name in found}


def test_a_line_goes_through_the_shares_to_the_value():
    lines = paths(swarm_lines(["a", "b"], RUNS))
    assert set(lines) == {"prior", "&lt;x&gt;", "y"}
    (x_a, top), (x_b, bottom), (x_value, best) = lines["&lt;x&gt;"]
    assert x_a < x_b < x_value
    assert top < bottom  # a share of 1 is above one of 0
    assert best == top  # the lowest value is at the top
    assert lines["y"] == [(x_a, bottom), (x_b, top), (x_value, bottom)]
    middle = (top + bottom) / 2
    assert lines["prior"] == [(x_a, middle), (x_b, middle), (x_value, middle)]


def test_the_best_are_coloured_and_one_run_is_no_chart():
    svg = swarm_lines(["a", "b"], RUNS)
    colours = dict(re.findall(r'stroke="([^"]+)"[^>]*><title>(.+?): ', svg))
    assert {name: colour for colour, name in colours.items()} == {
        "&lt;x&gt;": "var(--series-0)", "y": "var(--muted)", "prior": "var(--ink)",
    }  # fmt: skip
    assert swarm_lines(["a", "b"], RUNS[:1]) is None


def test_equal_values_and_many_runs_are_drawn():
    same = [SwarmRun(f"r{n}", {"a": n / 1000, "b": 1 - n / 1000}, 2.0) for n in range(1000)]
    lines = paths(swarm_lines(["a", "b"], same))
    assert 300 <= len(lines) <= 400
