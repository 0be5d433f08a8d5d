"""`compare-rules` against plain sets of document ids, with small and large parts, and its output and errors."""

import json
from itertools import combinations

import pytest

from gristmill.errors import UserError
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.explore.compare_rules import compare_rules
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.decide.rules import RULE_SETS, Rule
from tests.conftest import paragraph

# What a document must satisfy under each set, as rules and as plain Python over the columns.
SETS = {
    "wordy@a": (Rule(signal="word_count", at_least=60, name="wordy.words"),),
    "wordy@b": (Rule(signal="word_count", at_most=60, name="wordy.words"), Rule(signal="n_lines", at_most=1, name="wordy.lines")),
    "place@[red]a": (Rule(signal="source", none_of=("web",), name="place.source"), Rule(signal="n_chars", at_most=200)),
}  # fmt: skip
PLAIN = {
    "wordy@a": lambda row: [("wordy.words", row["word_count"] >= 60)],
    "wordy@b": lambda row: [("wordy.words", row["word_count"] <= 60), ("wordy.lines", row["n_lines"] <= 1)],
    "place@[red]a": lambda row: [("place.source", row["source"] != "web"), ("n_chars", row["n_chars"] <= 200)],
}


@pytest.fixture
def sets(monkeypatch):
    for name, rules in SETS.items():
        monkeypatch.setitem(RULE_SETS, name, rules)
    return tuple(SETS)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Build one corpus in small and in large parts: two sources with signals, URL columns in `web` alone, and
    a filter that `compare-rules` must ignore.
    """
    root = tmp_path_factory.mktemp("compared")
    (root / "web").mkdir()
    texts = ["too short", *(paragraph(i, 30 + 2 * i) for i in range(39))]
    rows = [{"text": text, "url": f"https://site{i % 5}.example/{i}"} for i, text in enumerate(texts)]
    (root / "web" / "0.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (root / "code").mkdir()
    for number in range(12):
        (root / "code" / f"m{number}.py").write_text(
            f"def f(x):\n    return x  # {paragraph(number, 4 + 10 * number)}\n"
        )
    return built(root, "small", 5000), built(root, "large", 1 << 20)


@pytest.fixture
def corpus(corpora, sets):
    return corpora[0]


def built(root, output, part_bytes):
    path = root / f"{output}.yaml"
    path.write_text(f"""\
name: small
output: {root}/{output}
sources:
  - {{name: web, root: {root}/web, format: jsonl, part_bytes: {part_bytes}}}
  - {{name: code, root: {root}/code, format: text, part_bytes: {part_bytes}}}
steps:
  - quality_signals: {{}}
  - url_rules: {{}}
    sources: [web]
  - filter: [{{signal: word_count, at_least: 20}}]
""")
    config = load_corpus_config(path)
    build(make_plan(config, take_inventory(config.sources, root / output)), LocalCluster(), lambda line: None)
    return root / output


def rows_of(corpus):
    opened = open_corpus(corpus)
    for part in opened.parts():
        table = part.table(("source", "word_count", "n_lines", "n_chars"))
        yield from zip(opened.printed_ids(part), table.to_pylist(), strict=True)


def expected_drops(corpus):
    drops = {name: {} for name in PLAIN}
    for identifier, row in rows_of(corpus):
        for name, test in PLAIN.items():
            failed = [reason for reason, holds in test(row) if not holds]
            if failed:
                drops[name][identifier] = failed[0]
    return drops


def test_counts_pairs_and_samples_are_those_of_plain_sets(corpus, sets):
    drops, comparison = expected_drops(corpus), compare_rules(corpus, sets, samples=1000)
    ids = {name: set(found) for name, found in drops.items()}
    assert all(ids.values())
    assert ids["wordy@a"] != ids["wordy@b"]
    union, shared = set().union(*ids.values()), set.intersection(*ids.values())
    for name in sets:
        alone = ids[name].difference(*(ids[other] for other in sets if other != name))
        assert (comparison.documents(name), comparison.dropped(name)) == (52, len(ids[name]))
        assert dict(comparison.reasons(name)) == {r: list(drops[name].values()).count(r) for r in drops[name].values()}
        assert comparison.alone(name) == len(alone)
        assert sorted(comparison.samples(name, 1000)) == sorted((i, drops[name][i]) for i in alone)
    assert {identifier for identifier, _ in comparison.samples("", 1000)} == shared
    assert comparison.dropped_by[0] == 52 - len(union)
    assert comparison.dropped_by[3] == len(shared)
    found = {(p.one, p.other): (p.both, p.only_one, p.only_other, p.jaccard) for p in comparison.pairs}
    assert found == {
        (a, b): (
            len(ids[a] & ids[b]), len(ids[a] - ids[b]), len(ids[b] - ids[a]), len(ids[a] & ids[b]) / len(ids[a] | ids[b])
        )
        for a, b in combinations(sets, 2)
    }  # fmt: skip
    assert [p.jaccard for p in comparison.pairs] == sorted((p.jaccard for p in comparison.pairs), reverse=True)


def test_parts_change_nothing(corpora, tmp_path, sets, capsys):
    outputs = []
    for place in corpora:
        assert main(["compare-rules", str(place), *sets, "--samples", "3", "--json", str(tmp_path / "x.json")]) == 0
        data = json.loads((tmp_path / "x.json").read_text())
        assert len(data.pop("fingerprint")) == 32
        outputs.append((capsys.readouterr().out, data))
    assert outputs[0] == outputs[1]


def test_what_is_printed(corpus, sets, tmp_path, capsys):
    assert main(["compare-rules", str(corpus), "--samples", "2", "--json", str(tmp_path / "x.json")]) == 0
    out, data = capsys.readouterr().out, json.loads((tmp_path / "x.json").read_text())
    assert "rule sets on 52 documents of 2 sources" in out
    assert "place@[red]a" in out
    assert data["rule_sets"]["refinedweb_url@paper"]["sources"]["web"]["dropped"] == 0
    assert data["missing_columns"]["refinedweb_url@paper"]["code"][0] == "url_blocked"
    assert "not measured here" in out
    dropped = data["rule_sets"]["wordy@a"]["sources"]["web"]["dropped"]
    assert any(line.split()[:3] == ["web", "40", str(dropped)] for line in out.splitlines())
    pair = next(p for p in data["pairs"] if (p["one"], p["other"]) == ("wordy@a", "wordy@b"))
    assert any(line.split() == ["wordy@a", "wordy@b", *(f"{pair[k]}" for k in ("both", "only_one", "only_other")),
               f"{pair['jaccard']:.3f}"] for line in out.splitlines())  # fmt: skip


def test_sets_without_their_columns(corpus, monkeypatch, capsys):
    monkeypatch.setitem(RULE_SETS, "later@x", tuple(Rule(signal=f"nowhere{i}", at_least=1) for i in range(5)))
    assert main(["compare-rules", str(corpus)]) == 0
    out = capsys.readouterr().out
    assert "not compared" in out
    assert "nowhere0, nowhere1, nowhere2 and 2 more" in out
    assert main(["compare-rules", str(corpus), "later@x", "wordy@a"]) == 2
    assert "lacks columns: later@x reads nowhere0, nowhere1" in capsys.readouterr().err
    monkeypatch.setitem(
        RULE_SETS, "wordy@a", (Rule(signal="text_hash", one_of=("x",)), Rule(signal="n_gram", at_most=1))
    )
    with pytest.raises(UserError, match=r"text_hash \(of text_hash\); n_gram"):
        compare_rules(corpus, ["wordy@a"])


def test_refusals_few_sets_and_samples(corpus, capsys):
    assert main(["compare-rules", str(corpus), "refinedweb_url@paper"]) == 0
    out = capsys.readouterr().out
    assert "1 rule set on 52 documents" in out
    assert "Jaccard" not in out
    assert main(["compare-rules", str(corpus), "wordy@b", "place@[red]a", "--samples", "1"]) == 0
    out = capsys.readouterr().out
    assert "dropped by place@[red]a alone" in out
    assert "dropped by all of them" in out
    with pytest.raises(UserError, match="no rule set named 'wordy@q'; did you mean 'wordy@"):
        compare_rules(corpus, ["wordy@q"])
    with pytest.raises(UserError, match="--samples: got -1"):
        compare_rules(corpus, samples=-1)
    with pytest.raises(UserError, match="no corpus here"):
        compare_rules(corpus.parent / "nothing")


@pytest.mark.long
def test_the_pairs_that_differ_most_are_printed(corpus, sets, capsys):
    def pairs(*options):
        assert main(["compare-rules", str(corpus), *options]) == 0
        out = capsys.readouterr().out
        lines = out[out.index("Jaccard\n") :].split("\n\n")[0].splitlines()[1:]
        return [line.split() for line in lines]

    every = pairs("--pairs", "0")
    differences = [int(pair[3].replace(",", "")) + int(pair[4].replace(",", "")) for pair in every]
    assert differences == sorted(differences, reverse=True)
    first = pairs()
    assert first[:10] == every[:10]
    assert len(every) > 10
    assert " ".join(first[10]) == f"{len(every) - 10} more pairs with fewer differences; --pairs 0 shows all"
    assert main(["compare-rules", str(corpus), "--pairs", "-1"]) == 2
