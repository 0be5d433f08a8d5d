"""What-if: the answer equals that of a build, or is an interval that contains it."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import pipelines.stages.materialise.funnel as funnel
from gristmill.errors import UserError
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.explore.whatif import what_if
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.report.sweep import kept_share
from pipelines.stages.materialise.column_profile import histogram

RULES = [{"signal": "word_count", "at_least": 20}, {"signal": "mean_word_length", "at_most": 6}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return a function that builds a corpus with the given rules over two sources of random words, with some
    documents twice.

    Equal arguments share a build, so a test that changes a corpus or how it is built passes a name of its own
    as `own`.
    """
    tmp_path, built = tmp_path_factory.mktemp("whatif"), {}
    random = np.random.default_rng(0)
    for source, most in (("long", 100), ("short", 40)):
        texts = [
            " ".join("abcdefghijkl"[: random.integers(1, 12)] for _ in range(random.integers(1, most)))
            + (" jane.roe@example.org" if number == 3 else "")
            for number in range(400)
        ]
        (tmp_path / f"{source}.jsonl").write_text(
            "".join(json.dumps({"text": t}) + "\n" for t in [*texts, *texts[:40]])
        )

    def write(rules, own="", pii=False):
        key = json.dumps([rules, own, pii])
        if key not in built:
            built[key] = make(rules, f"c{len(built)}", pii)
        return built[key]

    def make(rules, name, pii):
        path = tmp_path / f"{name}.yaml"
        path.write_text(
            f"name: c\noutput: {tmp_path}/{name}\nsources:\n"
            + "".join(
                f"  - {{name: {s}, root: {tmp_path}/{s}.jsonl, format: jsonl, part_bytes: 60000}}\n"
                for s in ("long", "short")
            )
            + f"steps:\n  - quality_signals: {{}}\n  - filter: {json.dumps(rules)}\n"
            + "  - text_hash: {}\n  - dedup_exact: {}\n"
            + ("  - pii: {}\n" if pii else "")
        )
        config = load_corpus_config(path)
        plan = make_plan(config, take_inventory(config.sources, tmp_path / name))
        return path, config, build(plan, LocalCluster(), lambda line: None)

    return write


def dropped(manifest, source):
    return next(r["dropped"] for r in manifest.funnel if r["source"] == source and r["step"] == "filter")


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("filter.word_count.at_least=35", [{**RULES[0], "at_least": 35}, RULES[1]]),
        ("filter.mean_word_length.at_most=6.5", [RULES[0], {**RULES[1], "at_most": 6.5}]),
        ("filter=[{signal: n_bytes, at_most: 150}]", [{"signal": "n_bytes", "at_most": 150}]),
        (
            "filter=[{signal: n_bytes, at_least_quantile: 0.4}, {signal: word_count, at_most_quantile: 0.9, per: source}]",
            [
                {"signal": "n_bytes", "at_least_quantile": 0.4},
                {"signal": "word_count", "at_most_quantile": 0.9, "per": "source"},
            ],
        ),
    ],
)
def test_the_answer_is_what_a_build_gives(corpus, change, changed):
    _, config, now = corpus(RULES)
    _, _, then = corpus(changed)
    question = what_if(config, [change])
    for source, flow in [*question.run(full=False).items(), *question.run(full=True).items()]:
        assert flow.exact  # the sample of so small a corpus is all of it
        assert flow.rules_now == dropped(now, source)
        assert flow.rules_then == dropped(then, source)
        assert flow.kept == 440 - sum(dropped(now, source).values())
        assert flow.kept + flow.change()[0] == 440 - sum(dropped(then, source).values())
        assert flow.change()[1] == flow.bytes_change()[1] == 0


@pytest.mark.long
def test_an_estimate_has_an_interval_that_holds_the_truth(corpus, monkeypatch):
    monkeypatch.setattr(funnel, "SAMPLE_ROWS", 120)
    _, config, _ = corpus(RULES, "sampled")
    question = what_if(config, ["filter.word_count.at_least=30"])
    estimated, exact = question.run(full=False), question.run(full=True)
    for source, flow in estimated.items():
        assert (flow.seen, exact[source].seen, flow.exact) == (120, 440, False)
        for guess, truth in (
            (flow.change(), exact[source].change()),
            (flow.bytes_change(), exact[source].bytes_change()),
        ):
            assert 0 < guess[1] < abs(truth[0])
            assert abs(guess[0] - truth[0]) <= guess[1]
    nothing = what_if(config, ["filter.word_count.at_most=1000"]).run(full=False)
    assert nothing["long"].change() == (0.0, pytest.approx(3 / 120 * 440))


@pytest.mark.long
def test_a_named_set_is_changed_rule_by_rule(corpus):
    _, config, _ = corpus([{"rules": "gopher_quality@massivetext"}])
    flows = what_if(config, ["filter.gopher_quality.word_count.at_least=10"]).run(full=True)
    assert flows["short"].newly_kept + flows["long"].newly_dropped == flows["short"].newly_kept


@pytest.mark.long
def test_what_was_not_measured_is_not_guessed(corpus):
    path, _, _ = corpus(RULES, "measured later")
    language = "  - language: {}\n    where: filter\n"
    second = "  - filter: [{signal: language, one_of: [en]}]\n    name: english\n"
    path.write_text(path.read_text().replace("  - text_hash", language + second + "  - text_hash"))
    config = load_corpus_config(path)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    with pytest.raises(UserError, match="filter: newly kept documents lack the columns of language"):
        what_if(config, ["filter.word_count.at_least=10"])
    assert what_if(config, ["english.language.one_of=[de]"]).run(full=True)["short"].exact


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("filtre.word_count.at_least=1", "with a filter step; did you mean 'filter'"),
        ("filter.word_cout.at_least=1", "filter has no rule 'word_cout'; did you mean 'word_count'"),
        ("filter.word_count.at_leest=1", "no field 'at_leest'; did you mean 'at_least'"),
        ("filter.word_count.at_least=many", "at_least: got 'many'"),
        ("filter.word_count.at_least=2020-99-99", "got .2020-99-99., expected a number, or a date such as 2015-01-01"),
        ("filter.word_count.at_least=[", "the value is not valid YAML"),
        ("filter.word_count.at_least=20", "changes nothing"),
        ("filter=[{signal: wordcount, at_least: 1}]", "wordcount: no step of the corpus writes this column"),
        ("filter=[{signal: text_bytes, at_least: 1}]", "text_bytes: no step of the corpus writes this column"),
    ],
)
def test_mistakes(corpus, change, message):
    _, config, _ = corpus(RULES)
    with pytest.raises(UserError, match=message):
        what_if(config, [change]).run(full=False)


def test_a_source_that_is_not_built_yet_is_an_error(corpus):
    _, config, _ = corpus(RULES)
    more = replace(config, sources=(*config.sources, replace(config.sources[0], name="more")))
    with pytest.raises(UserError, match="was built without the sources more; build it first"):
        what_if(more, ["filter.word_count.at_least=35"])


@pytest.mark.long
def test_the_command_shows_both_directions_without_personal_data(corpus, capsys, tmp_path, monkeypatch):
    path, _, _ = corpus(RULES, pii=True)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["whatif", str(path), "--set", "filter=[{signal: word_count, at_most: 20}]", "--samples", "400"]) == 0
    out = capsys.readouterr().out
    assert "newly dropped: long/long.jsonl#" in out
    assert "newly kept: short/short.jsonl#" in out
    assert "jane.roe" not in out
    assert "- {signal: word_count, at_most: 20.0}" in out
    assert main(["whatif", str(path), "--sweep", "word_count", "--output", str(tmp_path / "x.html")]) == 0
    assert "<svg" in (tmp_path / "x.html").read_text()
    assert main(["whatif", str(path), "--sweep", "word_cunt"]) == 2
    assert "did you mean 'word_count'" in capsys.readouterr().err
    assert main(["whatif", str(path), "n_bytes=1"]) == 2
    assert main(["whatif", str(path), "--set", "filter.word_count.at_least=1", "--samples", "-1"]) == 2
    assert "--samples: got -1, expected 0 or more" in capsys.readouterr().err


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """Build a corpus of documents with dates, URLs and authors, filtered by all of them, and return its file."""
    folder = tmp_path_factory.mktemp("dated")
    records = [
        {
            "text": f"A text of document {number}.",
            "date": f"20{10 + number}-01-02",
            "url": f"https://a.example/{number}",
            "author": "jane.roe@example.org" if number % 3 else "bob",
        }
        for number in range(10)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "c.yaml").write_text(
        f"name: c\noutput: {folder}/out\nsources:\n"
        f"  - {{name: a, root: {folder}/a.jsonl, format: jsonl, columns: {{date: date, author: string}}}}\n"
        "steps:\n  - filter: [{signal: date, at_least: 2015-01-01}, {signal: url, none_of: [https://a.example/9]}, "
        "{signal: author, one_of: [bob]}]\n  - pii: {level: contact}\n"
    )
    config = load_corpus_config(folder / "c.yaml")
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    return folder / "c.yaml"


def test_samples_hide_personal_data_in_columns_that_changed_rules_read(dated, capsys):
    assert main(["whatif", str(dated), "--set", "filter=[{signal: author, none_of: [bob]}]", "--full"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"newly kept: a/a.jsonl#\d\n  author +<EMAIL_ADDRESS>\n", out)
    assert "jane" not in out


def test_rules_on_columns_outside_the_sample_are_counted_in_full(dated):
    change = "filter.author.one_of=[bob, jane.roe@example.org]"
    impact = what_if(load_corpus_config(dated), [change]).run(full=True)["a"]
    assert (impact.kept, impact.newly_kept, impact.newly_dropped) == (1, 3, 0)
    assert impact.rules_then == {"date": 5, "url": 1}
    with pytest.raises(UserError, match="date: is not in the published sample; use --full, which reads the stored"):
        what_if(load_corpus_config(dated), [change]).run(full=False)
    with pytest.raises(UserError, match="dates: no step of the corpus writes this column; did you mean 'date'"):
        what_if(load_corpus_config(dated), ["filter=[{signal: dates, at_least: 2015-01-01}]"]).run(full=True)


def test_a_bound_at_the_ends_of_the_values_keeps_all_or_those_without_one():
    import pyarrow as pa

    column = pa.array([0.254, 0.254, 0.256, None])  # a single bin
    counted = histogram(column, np.ones(4, bool)).facts()
    for side, ends in (
        ("at_most", {0.253: 0.25, 0.256: 1.0, 0.3: 1.0}),
        ("at_least", {0.2: 0.75, 0.254: 0.75, 0.257: 0.0}),
    ):
        assert {threshold: kept_share(counted, side, threshold) for threshold in ends} == ends


@pytest.mark.parametrize("side", ["at_least", "at_most"])
def test_shares_kept_are_those_of_the_values(side):
    import pyarrow as pa

    random = np.random.default_rng(1)
    for values in (random.integers(0, 90, 500), np.round(random.random(500), 2)):
        column = pa.array([*values.tolist(), None, None])
        counted = histogram(column, np.ones(len(column), bool)).facts()
        for threshold in (values.min(), *np.unique(values)[::7], values.max()):
            if side == "at_most" and values.dtype.kind == "f":
                continue  # the upper end of a bin of real numbers is not in it
            holds = values >= threshold if side == "at_least" else values <= threshold
            nulls = 2 if side == "at_most" else 0
            assert kept_share(counted, side, float(threshold)) == pytest.approx((holds.sum() + nulls) / 502)
