"""The report: its numbers do not depend on how the corpus was built, and document text is escaped."""

import dataclasses
import html.parser
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gristmill.page.drawing import SHADE
from gristmill.storage.store import read_json
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.manifest import load_corpus, load_step
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.report.bins import axis_for, cell_counts, quantile
from pipelines.report.corpus_charts import clusters_chart, distribution_chart, drops_chart
from pipelines.report.corpus_page import render, rule_effects
from pipelines.report.numbers import thresholds
from pipelines.report.write import write_report
from pipelines.stages.materialise.column_profile import bin_floors

LINE = "The mill at the river grinds corn for the people of the village, and they have bread with it all year. "
MAIL = "jane.roe@example.org"
HOSTILE = [
    "<script>alert(1)</script> </pre></details><img src=http://evil.example/x.png onerror=alert(2)> {{ 7 * 7 }} {% raw %}",
    "\u202egnp.exe\u202c \u2066 שלום עולם مرحبا \U0001f469\u200d\U0001f4bb \x9b31m \x1b[2Jred \x07",
    '"><svg onload=alert(3)> <iframe src=//evil.example></iframe> <a href="javascript:alert(4)">x</a> &lt;b&gt; --> ]]>',
]
RULE = "<b>short</b> $x^2$ & \u202ecoy"

YAML = """\
name: trial
output: {out}
sources:
  - {{name: notes, root: {raw}/notes.jsonl, format: jsonl, part_bytes: {part_bytes}, licence: "<i>CC0</i>", origin: "http://o.example/"}}
  - {{name: hostile, root: {raw}/hostile.jsonl, format: jsonl, part_bytes: {part_bytes}}}
  - {{name: broken, root: {raw}/broken.jsonl, format: jsonl, allow_empty: true}}
steps:
  - quality_signals: {{}}
  - filter:
      - {{signal: word_count, at_least: 12, at_most: 5000, name: "<b>short</b> $x^2$ & \\u202ecoy"}}
      - {{signal: stop_word_count, at_least: 2}}
  - text_hash: {{}}
  - dedup_exact: {{}}
  - pii: {{entities: [EMAIL_ADDRESS]}}
    where: dedup_exact
  - learn_tokenizer: {{vocab_size: 420, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, split_by: content, validation_share: 0.2}}
"""
NOTES = [LINE * (1 + i % 5) + f"Number {i}." for i in range(50)]
NOTES += [NOTES[3], NOTES[3], NOTES[4]]
NOTES += [f"Write to {number}{MAIL}, now." for number in range(6)]
NOTES += [LINE + f"My address is {MAIL}. " * 2 + str(number) for number in range(4)]
NOTES += ["blue green red " * 20 + str(number) for number in range(4)]


def run(folder: Path, part_bytes: int = 1 << 20, yaml: str = YAML):
    raw = folder / "raw"
    raw.mkdir(exist_ok=True)
    hostile = [f"{text} {LINE} {number}" for number, text in enumerate(HOSTILE)] + [text[:60] for text in HOSTILE]
    for name, texts in (("notes", NOTES), ("hostile", hostile)):
        lines = [json.dumps({"text": text}) for text in texts]
        (raw / f"{name}.jsonl").write_text("\n".join(lines + ["not json"] * (name == "notes")))
    (raw / "broken.jsonl").write_text("{\n")
    path, out = folder / f"trial{part_bytes}.yaml", folder / f"out{part_bytes}"
    path.write_text(yaml.format(out=out, raw=raw, part_bytes=part_bytes))
    config = load_corpus_config(path)
    plan = make_plan(config, take_inventory(config.sources, out))
    build(plan, LocalCluster(), lambda line: None)
    return plan, out


def write(plan, out):
    published = {step.label: load_step(out, step.directory) for step in plan.steps}
    return write_report(plan, published, load_corpus(out), out, lambda: None)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    plan, out = run(tmp_path_factory.mktemp("report"))
    write(plan, out)
    return plan, out


@pytest.fixture
def report(built):
    return read_json(built[1] / "report.json")


@pytest.fixture
def page(built):
    return (built[1] / "report.html").read_text(encoding="utf-8")


def test_numbers_equal_counting_by_hand(report):
    short = [text for text in NOTES if len(text.split()) < 12]
    dull = [text for text in NOTES if text.startswith("blue")]
    unique = {text for text in NOTES if text not in short and text not in dull}
    copies = len(NOTES) - len(short) - len(dull) - len(unique)
    notes = report["sources"][0]
    assert (notes["records"], notes["documents"], notes["documents_kept"]) == (len(NOTES) + 1, len(NOTES), len(unique))
    assert notes["quarantined"] == {"not_json": 1}
    assert notes["quarantined_places"] == {"not_json": [f"notes/notes.jsonl#{len(NOTES)}"]}
    assert notes["text_bytes"] == sum(len(text) for text in NOTES)
    edited = [re.sub(rf"{re.escape(MAIL)}", "<EMAIL_ADDRESS>", text) for text in unique]
    assert notes["text_bytes_kept"] == sum(map(len, edited))
    dropped = Counter({rule: n for r in report["funnel"] if r["source"] == "notes" for rule, n in r["dropped"].items()})
    assert dropped == {RULE: len(short), "stop_word_count": len(dull), "dedup_exact": copies}
    assert copies == 3
    assert report["duplicates"][0]["cluster_sizes"] == {"2": 1, "3": 1}
    words = report["distributions"]["notes"]["word_count"]["bins"]
    assert sum(n for floor, n, kept in words if floor < 12) == len(short)
    assert sum(kept for floor, n, kept in words) == len(unique)
    tokens = [split for split in report["shard_sets"][0]["tokens"] if split["source"] == "notes"]
    assert sum(split["documents"] for split in tokens) == len(unique)
    assert sum(split["text_bytes"] for split in tokens) == notes["text_bytes_kept"]
    last = [row for row in report["funnel"] if row["source"] == "notes"][-1]
    assert last["tokens_out_estimated"] == sum(split["tokens"] for split in tokens)
    totals = report["totals"]
    assert totals["records"] == totals["documents_kept"] + totals["dropped"] + totals["quarantined"]
    assert totals["train_tokens"] == sum(
        s["tokens"] for s in report["shard_sets"][0]["tokens"] if s["split"] == "train"
    )


def test_thresholds_name_what_they_test(report):
    assert [(t["rule"], t["signal"], t["at_least"], t["at_most"]) for t in report["thresholds"]] == [
        (RULE, "word_count", 12, 5000),
        ("stop_word_count", "stop_word_count", 2, None),
    ]


def test_rules_say_their_quantiles_and_the_documents_to_which_they_apply(tmp_path):
    (tmp_path / "web.jsonl").write_text('{"text": "a"}\n')
    path = tmp_path / "corpus.yaml"
    path.write_text(f"""\
name: rules
output: {tmp_path}/out
sources: [{{name: web, root: {tmp_path}/web.jsonl, format: jsonl}}]
steps:
  - quality_signals: {{}}
  - filter:
      - {{signal: word_count, at_least_quantile: 0.3, at_most: 90, name: upper}}
      - {{signal: word_count, at_most_quantile: 0.9, per: source, name: lower}}
      - {{signal: word_count, at_least: 3, when: {{source: [web, books], url: [x]}}, name: some}}
      - {{signal: word_count, at_least: 3, when: {{source: [books]}}, name: other}}
""")
    config = load_corpus_config(path)
    tests = thresholds(make_plan(config, take_inventory(config.sources, tmp_path / "out")))
    assert [rule["keeps"] for rule in rule_effects({"thresholds": tests, "funnel": []})] == [
        "word_count ≤ 90 and ≥ quantile 0.3",
        "word_count ≤ quantile 0.9 per source",
        "word_count ≥ 3 when source is one of web, books and url is one of x",
        "word_count ≥ 3 when source is one of books",
    ]
    assert [test["sources"] for test in tests] == [["web"], ["web"], ["web"], []]
    upper, _, some = (distribution_chart("word_count", {"web": histogram_of([1, 9], True)}, [t]) for t in tests[:3])
    assert SHADE in upper
    assert SHADE not in some
    assert "≥ 3 web, books, x" in some


def test_the_page_shows_the_numbers_of_the_json(report, page):
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.replace("<wbr>", "")))
    for row in report["funnel"]:
        assert f"{row['step']} {row['documents_out']:,}" in text
        assert f"~{row['tokens_out_estimated']:,}" in text or row["tokens_out_estimated"] is None
    for split in report["shard_sets"][0]["tokens"]:
        assert f"{split['tokens']:,}" in text
    assert report["fingerprint"] in text
    assert f"{report['totals']['documents_kept']:,} of them" in text


def without_identities(report):
    """Return the report as JSON, without what depends on the directories or on the size of the parts."""
    kept = {
        name: value
        for name, value in report.items()
        if name not in ("fingerprint", "manifest", "config", "steps", "checksum")
    }
    for shard_set in kept["shard_sets"]:
        del shard_set["tokenizer"]["documents_compared"]  # those of the first part of each source
    return re.sub(r"(?<=[a-z])-[0-9a-f]{12}/", "/", json.dumps(kept))


def test_the_page_names_sources_without_validation_documents(report, page):
    shards = report["shard_sets"][0]
    held_out = {row["source"] for row in shards["tokens"] if row["split"] == "validation" and row["documents"]}
    missing = sorted({row["source"] for row in shards["tokens"] if row["documents"]} - held_out)
    assert report["without_validation"] == ({shards["name"]: missing} if missing else {})
    assert (f"No validation documents of {', '.join(missing)}: training" in page) is bool(missing)
    said = render(report | {"without_validation": {shards["name"]: ["notes", "<b>"]}}, {})
    assert "No validation documents of notes, &lt;b&gt;: training measures no held-out loss for them." in said
    assert "No validation documents" not in render(report | {"without_validation": {}}, {})


@pytest.mark.long
def test_the_json_does_not_depend_on_parts_or_runs(built, tmp_path):
    plan, out = run(tmp_path, part_bytes=4000)
    write(plan, out)
    other = read_json(out / "report.json")
    assert load_step(out, plan.step("read.notes").directory).parts[2:]
    assert without_identities(other) == without_identities(read_json(built[1] / "report.json"))
    first = (built[1] / "report.json").read_bytes()
    (built[1] / "report.json").unlink()
    assert write(*built)
    assert (built[1] / "report.json").read_bytes() == first


def test_a_report_that_is_there_is_not_written_again(built):
    plan, out = built
    assert not write(plan, out)
    (out / "report.html").unlink()
    (out / "report.json").write_text("{")
    assert write(plan, out)


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.open = Counter(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in ("meta", "br", "link", "img", "input", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_nothing_is_loaded_and_nothing_runs(page):
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    assert not {
        "script",
        "img",
        "iframe",
        "object",
        "embed",
        "link",
        "form",
        "input",
        "base",
        "audio",
        "b\u202e",
    } & set(tags.tags)
    for name, value in tags.attributes:
        assert not name.startswith("on"), name
        assert name not in ("src", "srcset", "data", "action", "background", "poster"), name
        if name in ("href", "xlink:href"):
            assert value.startswith("#")
        if name == "style":
            assert "url(" not in value.replace("url(#", "")
    style = re.search(r"<style>(.*?)</style>", page, re.S)[1]
    assert "url(" not in style
    assert "@import" not in style


def test_text_of_documents_cannot_leave_its_box(page, report):
    for text in (page, *(sample["text"] + sample["id"] for sample in report["samples"])):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]", text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "{{ 7 * 7 }} {% raw %}" in page
    assert "\\u202egnp.exe" in page
    assert "שלום" in page
    assert "\U0001f469\u200d\U0001f4bb" in page
    assert "&lt;b&gt;short&lt;/b&gt; $x^2$ &amp; \\u202ecoy" in page
    assert "&lt;i&gt;CC0" in page


def test_personal_data_is_not_shown_even_of_documents_that_the_pii_step_left_out(page, report):
    samples = [sample for sample in report["samples"] if sample["source"] == "notes"]
    assert any("<EMAIL_ADDRESS>" in sample["text"] for sample in samples if sample["rule"] == RULE)
    assert "jane" not in page
    assert "jane" not in json.dumps(report)


def test_personal_data_among_the_values_of_a_column_is_not_shown(tmp_path):
    authors = ["bob", MAIL, f"1{MAIL}", "bob", MAIL]
    records = [{"text": f"{LINE}{number}", "author": author} for number, author in enumerate(authors)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "c.yaml").write_text(
        f"name: c\noutput: {tmp_path}/out\nsources:\n"
        f"  - {{name: a, root: {tmp_path}/a.jsonl, format: jsonl, columns: {{author: string}}}}\n"
        "steps:\n  - filter: [{signal: author, one_of: [bob]}]\n  - pii: {level: contact}\n"
    )
    config = load_corpus_config(tmp_path / "c.yaml")
    plan = make_plan(config, take_inventory(config.sources, config.place))
    build(plan, LocalCluster(), lambda line: None)
    write(plan, config.place)
    assert read_json(config.place / "report.json")["values"]["a"]["author"] == [
        ["<EMAIL_ADDRESS>", 3, 0],
        ["bob", 2, 2],
    ]
    assert "jane" not in (config.place / "report.html").read_text() + (config.place / "report.json").read_text()


def test_samples_say_why(report):
    samples = report["samples"]
    assert {sample["rule"] for sample in samples if sample["source"] == "notes"} == {
        None, RULE, "stop_word_count", "dedup_exact",
    }  # fmt: skip
    for sample in samples:
        assert sample["id"].startswith(f"{sample['source']}/{sample['source']}.jsonl#")
        assert len(sample["text"]) <= 480 * 6
        assert (sample["kept_instead"] is not None) == (sample["rule"] == "dedup_exact")
    copies = {sample["kept_instead"] for sample in samples if sample["kept_instead"]}
    assert copies == {"notes/notes.jsonl#3", "notes/notes.jsonl#4"}


def test_a_corpus_without_filters_and_shards_has_a_report(tmp_path):
    yaml = "".join(line + "\n" for line in YAML.splitlines()[: YAML.splitlines().index("steps:") + 1])
    plan, out = run(tmp_path, yaml=yaml + "  - text_hash: {{}}\n")
    write(plan, out)
    page = (out / "report.html").read_text()
    assert "No step of this corpus drops documents." in page
    assert "No step looks for personal data in notes, hostile, broken" in page
    assert read_json(out / "report.json")["shard_sets"] == []


def histogram_of(values, whole=False):
    floors = Counter(bin_floors(np.array(values, np.int64 if whole else np.float64)).tolist())
    bins = [[floor, floors[floor], 0] for floor in sorted(floors)]
    ends = {"minimum": min(values), "maximum": max(values)}
    return {"whole": whole, "bins": bins, **ends, "missing": 1, "not_finite": 0}


@pytest.mark.parametrize(
    ("values", "whole", "bounds"),
    [
        ([0.0, 0.1, 0.55, 1.0], False, [0.3]),
        ([3.2, 4.7, 5.1, 12.0], False, [3, 10]),
        ([0, 1, 5, 8], True, [2]),
        ([0, 7, 450, 90_000, 2_000_000], True, [50, 100_000]),
        ([-7.5, -0.25, 3.0], False, []),
        ([-9000.0, 20.0, 1e9], False, [0.5]),
        ([-1000.0, -500.0, -402.0], False, [-250.0]),
        ([4], True, []),
    ],
)
def test_axes_hold_documents_and_bounds(values, whole, bounds):
    histogram = histogram_of(values, whole)
    axis = axis_for([histogram], bounds)
    assert cell_counts(histogram, axis, 1).sum() == pytest.approx(len(values))
    assert cell_counts(histogram, axis, 1).min() >= 0
    assert axis.low < axis.high
    for bound in bounds:
        assert 0 <= axis.position(bound) <= 1
    assert all(0 <= axis.position(tick) <= 1.000001 for tick in axis.ticks())
    assert 1 <= len(axis.ticks()) <= 12
    assert values[0] <= quantile(histogram, 0.5) <= values[-1]


@pytest.mark.parametrize(
    ("missing", "note"),
    [(0, None), (1, "&lt; 0.1 % without"), (500, "20.0 % without"), (3_000_000, "&gt; 99.9 % without")],
)
def test_a_share_of_some_documents_is_neither_none_nor_all(missing, note):
    histogram = histogram_of([0.5] * 2000) | {"missing": missing}
    chart = distribution_chart("score", {"a": histogram}, [])
    assert (note in chart) if note else (" without" not in chart)


@pytest.mark.parametrize(("per", "shaded"), [("source", 1), ("language", 0)])
def test_a_bound_that_holds_for_a_whole_source_is_shaded(per, shaded):
    histograms = {"web": histogram_of([1, 9], True), "books": histogram_of([1, 9], True)}
    test = {"signal": "n", "sources": ["web", "books"], "at_least": {"web": 3, "default": None}, "at_most": None}
    chart = distribution_chart("n", histograms, [test | {"per": per, "when": {}}])
    assert chart.count(SHADE) == shaded


def test_a_column_that_varies_only_in_a_small_source_is_not_called_constant(report):
    distributions = {f"s{n}": {"text_bytes": histogram_of([5, 6]), "x": histogram_of([1, 1], True)} for n in range(12)}
    assert "One value in all documents that have one: x = 1." in render(report | {"distributions": distributions}, {})
    distributions["small"] = {"text_bytes": histogram_of([5]), "x": histogram_of([7], True)}
    page = render(report | {"distributions": distributions}, {})
    assert "x = 1" not in page
    assert "distribution of x by source" in page


def test_charts_are_the_same_every_time():
    histogram = histogram_of([0.1, 0.2, 0.9])
    test = {"signal": "score", "sources": ["a"], "at_least": 0.5, "at_most": None, "per": "", "when": {}}
    draw = [distribution_chart("score", {"a": histogram}, [test]) for _ in range(2)]
    assert draw[0] == draw[1]
    assert "≥ 0.5" in draw[0]
    assert "var(--kept)" in draw[0]
    assert "http" not in draw[0]
    sources = [f"s{number}" for number in range(11)]
    funnel = [{"step": "filter", "source": s, "dropped": {f"r{i}": 1 for i in range(30)}} for s in sources]
    assert "other sources" in drops_chart(funnel, sources)
    assert "6 other rules" in drops_chart(funnel, sources)
    clusters = clusters_chart({"step": "dedup", "cluster_sizes": {"2": 5, "6": 1, "8": 1, "17": 3}})
    assert [name in clusters for name in ("2 copies", "5 to 8", "17 to 32", "9 to 16")] == [True, True, True, False]


def test_the_funnel_fits_eighty_columns_and_names_a_rule_set_once(capsys, monkeypatch):
    from rich.console import Console

    from pipelines.commands import show_funnel as show
    from pipelines.contracts.manifest import CorpusManifest

    dropped = {f"gopher_repetition.duplicate_{n}_gram_character_ratio": 1000 + n for n in range(2, 11)} | {
        "language": 7
    }
    row = {"source": "web", "step": "filter", "documents_in": 12_345_678, "documents_out": 9_876_543}
    row |= {"bytes_in": 45e9, "bytes_out": 43e9, "dropped": dropped}
    source = {"in": 12_345_679, "kept": 12_345_678, "decoded_bytes": 50_000_000_000, "quarantined": {"empty": 1}}
    fields = {field.name: None for field in dataclasses.fields(CorpusManifest)}
    manifest = CorpusManifest(
        **fields | {"corpus": "web", "sources": {"web": source}, "funnel": [row], "shard_sets": {}}
    )
    monkeypatch.setattr(show, "wide_console", lambda: Console(highlight=False, width=80))
    show.show_funnel(manifest)
    lines = capsys.readouterr().out.splitlines()
    said = " ".join(line.strip() for line in lines)
    assert max(map(len, lines)) <= 80
    assert said.count("gopher_repetition") == 1
    for rule, number in dropped.items():
        assert f"{rule.removeprefix('gopher_repetition.')} {number:,}" in said
    assert "12,345,678 → 9,876,543" in said
    # A rule and its number stay on one line.
    assert not any(re.match(r" +[\d,]+[,;]", line) for line in lines)


def test_rules_that_dropped_nothing_are_named_below_the_table_and_a_dash_is_no_zero(built):
    page = (built[1] / "report.html").read_text()
    drops = page[page.index('id="drops"') : page.index('id="distributions"')]
    rows = [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr>.*?</tr>", drops)]
    assert not any(re.search(r"\b0\s*$", row) for row in rows)
    assert "stop_word_count" in re.sub(r"<wbr>", "", drops)
