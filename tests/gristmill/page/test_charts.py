"""Charts: where things are drawn, names that stay within their space, and bytes that are the same every time."""

import re
import xml.etree.ElementTree as ET

import pytest

from gristmill.page.bars import Panel, bar_panels, stacked_bars
from gristmill.page.drawing import KEPT, LOST, Drawing, standalone, ticks
from gristmill.page.histograms import Bound, HistogramRow, histogram_rows
from gristmill.page.lines import Mark, Series, line_chart, thinned

EVIL = '"><script>alert(1)</script>\x1b\u202e'
SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg):
    return ET.fromstring(standalone(svg))


def bars(svg):
    return [(float(r.get("x")), float(r.get("width")), r.get("fill")) for r in parsed(svg).iter(f"{SVG}rect")]


def words(svg):
    return [text.text for text in parsed(svg).iter(f"{SVG}text")]


def test_a_short_run_beside_a_long_one_is_seen():
    """The axis covers everything after the first tenth of each run, including the last point and validations.
    The runs have 20 and 360 steps.
    """
    long = [(float(x), 6.0 - x / 100) for x in range(10, 361, 10)]
    short = [(1.0, 9.0), (3.0, 8.5), (20.0, 8.0)]
    validated = [(1.0, 12.0), (20.0, 11.0)]
    drawn = line_chart(
        "loss", [Series(0, "a", long), Series(1, "b", short), Series(1, "b", validated, True)], str, (900, 300)
    )
    heights = {y for _, points in drawn.lines[1:] for _, y in points}
    assert all(0 <= y <= drawn.box[3] for y in heights)
    assert len(drawn.dots) == 2
    alone = line_chart("loss", [Series(0, "a", long), Series(1, "b", [(1.0, 50.0), (20.0, 8.0)])], str, (900, 300))
    assert alone.cut
    assert 0 <= alone.lines[1][1][-1][1] <= alone.box[3]


def test_a_peak_survives_thinning_and_order():
    points = [(float(i), 100.0 if i == 5_000 else float(i % 7)) for i in range(10_000)]
    kept = thinned(points)
    assert len(kept) < 500
    assert (5_000.0, 100.0) in kept
    assert kept == sorted(kept)
    assert {points[0], points[-1]} <= set(kept)


def test_axes_show_what_they_should():
    assert ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert ticks(1.7, 3.2, 4) == [2.0, 2.5, 3.0]
    falling = [(float(x), 50.0 / (1 + x)) for x in range(100)]
    loss = line_chart("loss", [Series(0, "a", falling)], str, (900, 300))
    assert loss.cut  # the first steps do not squeeze the others
    wild = [(float(x), 1.0 if x % 10 else 1000.0) for x in range(1, 100)]
    assert line_chart("norm", [Series(0, "a", wild)], str, (450, 200), zero=True).logarithmic
    assert line_chart("nothing", [Series(0, "a", [(1.0, float("nan"))])], str, (450, 200)) is None
    for flat in (0.0, 3.0, -2.0):
        same = line_chart("flat", [Series(0, "a", [(1.0, flat), (2.0, flat)], dotted=True)], str, (450, 200))
        assert all(0 <= y <= 200 for _, _, y, _ in same.dots)
    begun = line_chart("begun", [Series(0, "a", [(0.0, 1.0)], dotted=True)], str, (450, 200))
    assert [x for _, x, *_ in begun.dots] == [0]


def test_a_line_chart_says_in_words_what_it_shows():
    series = [Series(0, EVIL, [(1.0, 4.0), (2.0, 1.5), (3.0, 2.0)]), Series(0, EVIL, [(3.0, 2.5)], dotted=True)]
    chart = line_chart(EVIL, series, str, (450, 210), [Mark(0, 2.0, EVIL), Mark(0, 3.0, EVIL, brief=True)])
    tree = parsed(chart.svg())
    assert tree.find(f"{SVG}desc").text.count("first 4, last 2, lowest 1.5, highest 4") == 1
    shown = r'"><script>alert(1)</script>\x1b\u202e'
    assert tree.get("aria-label") == shown
    titles = [title.text for title in tree.iter(f"{SVG}title")]
    assert titles == [shown, shown, f"{shown}: 2.5000 at 3"]
    assert len(tree.findall(f".//{SVG}path[@class]")) == 2


def test_stacked_bars_are_as_long_as_their_parts():
    svg = stacked_bars("dropped", ["short", EVIL], [("web", KEPT, [30, 0]), ("books", LOST, [10, 20])])
    _, _, web, books, others = bars(svg)  # after the legend
    assert web[1] == pytest.approx(3 * books[1], abs=0.2)
    assert others[1] == pytest.approx(2 * books[1], abs=0.2)
    assert books[0] == pytest.approx(web[0] + web[1], abs=0.2)
    assert {"web", "books", "short", "40", "20"} <= set(words(svg))
    assert parsed(svg).find(f"{SVG}desc").text.startswith("short: 40; ")
    assert bars(stacked_bars("none", ["a"], [("only", KEPT, [0])])) == []


def test_panels_compare_bars_on_an_axis_each():
    panels = [Panel("speed", [[1.0, 100.0], [10.0, None]], logarithmic=True), Panel("size", [[1.0, 3.0], [2.0, None]])]
    svg = bar_panels("compared", ["en", "zh"], ["a", "b"], panels)
    logarithmic, linear = bars(svg)[:2], bars(svg)[2:5]  # a bar at the beginning of a logarithmic axis has no width
    assert sorted(w for _, w, _ in logarithmic)[1] == pytest.approx(
        2 * sorted(w for _, w, _ in logarithmic)[0], abs=0.2
    )
    least = min(width for _, width, _ in linear)
    assert [width / least for _, width, _ in linear] == pytest.approx([1, 2, 3], abs=0.01)
    assert "".join(f"{word} " for word in words(svg)).count("1 10 100 ") == 1


def test_a_histogram_has_rows_of_the_same_height_and_shades_what_a_bound_drops():
    rows = [
        HistogramRow(
            "web", [4.0, 2.0, 0.0, 1.0], [0.0, 2.0, 0.0, 1.0], "7", "1.0 % without", [(0.0, 0.25)], [Bound(0.25, "≥ 3")]
        ),
        HistogramRow("books", [0.0, 0.0, 8.0, 8.0], [0.0] * 4, "9"),
    ]
    svg = histogram_rows("words", rows, [(0.0, "0"), (1.0, "12")])
    tops = [min(map(float, re.findall(r"V([\d.]+)", path.get("d")))) for path in parsed(svg).iter(f"{SVG}path")]
    assert tops[0] - tops[2] == tops[1] - 19 - tops[2] == -52  # the peak of each row; half of it for the kept ones
    assert [(x, width) for x, width, _ in bars(svg)] == [(90.0, 77.5)]
    assert {"≥ 3", "median 7", "1.0 % without", "0", "12"} <= set(words(svg))


def test_a_file_of_a_chart_has_colours_of_its_own():
    drawing = Drawing(100, 50)
    drawing.bar(0, 0, 10, 10, KEPT)
    inline = drawing.finish("one", "bar")
    assert "var(--kept)" in inline
    alone = standalone(inline)
    assert "var(" not in alone
    assert parsed(inline).get("width") == "100"
    assert re.search(r'fill="#[0-9a-f]{6}"', alone)
