"""Decontamination against brute force over sets of n-grams, and on planted items whose matches are known."""

import dataclasses
import gzip
import itertools
import json
import random
import re

import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.decontamination import KINDS, accuracy, measure, plant
from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.edits import apply_edits, check_edits
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts
from pipelines.stages.measure.decontaminate import Decontaminate
from pipelines.stages.measure.evaluation_sets import EvaluationSet
from tests.conftest import paragraph
from tests.pipelines.stages.dedup.test_dedup_spans import Backwards, part_of


def stage_for(root, items, prompts=("q",), answers=("a",), **knobs):
    path = root / "items.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return Decontaminate((EvaluationSet("set", str(path), prompts, answers),), **knobs)


def run(stage, parts, root, cluster=None):
    out = StepOutput(root, "step")
    facts = stage.run(parts, out, cluster or LocalCluster())
    rows = []
    for part in parts:
        receipt = out.receipt(f"{part.source}-{part.index:05d}")
        schema = schema_facts(stage.writes())
        table = read_table(out.directory, receipt.files[0], stage.writes().names, schema)
        if "edits" in table.column_names:
            text, edits = part.table(["text"])["text"].combine_chunks(), table["edits"].combine_chunks()
            check_edits(text, edits)
            table = table.append_column("left", [apply_edits(text, edits)])
        rows += table.to_pylist()
    return rows, facts["sets"]["set"]


def look(directory, items, texts, **knobs):
    root = directory / f"look{len(list(directory.iterdir()))}"
    root.mkdir()
    return run(stage_for(root, items, **knobs), [part_of(root, "s", 0, texts)], root)


def shares(rows):
    return [(round(row["contamination_prompt"], 3), round(row["contamination_answer"], 3)) for row in rows]


def words(text):
    return re.findall(r"\w+", text.lower())


def numbered(first, count, stem="w"):
    return " ".join(f"{stem}{number}" for number in range(first, first + count))


def brute_force(items, texts, ngram, least, common):
    """Return (prompt score, answer score, {(item, field, words of each match)}) for every text, using sets of
    n-grams.
    """
    wanted = {}  # (item, field) -> words
    for item, record in enumerate(items):
        for field in "qa":
            if len(words(record[field])) >= least:
                wanted[item, field] = words(record[field])
    grams = {
        key: [tuple(w[k : k + min(ngram, len(w))]) for k in range(max(1, len(w) - ngram + 1))]
        for key, w in wanted.items()
    }
    holders = {g: sum(g in other for other in grams.values()) for own in grams.values() for g in own}
    documents = [words(text) for text in texts]
    held = [{tuple(d[k : k + n]) for n in range(least, ngram + 1) for k in range(len(d) - n + 1)} for d in documents]
    counts = {g: sum(g in h for h in held) for g in holders}
    result = []
    for document, mine in zip(documents, held, strict=True):
        best, spans = {"q": 0.0, "a": 0.0}, set()
        for (item, field), own in grams.items():
            known = [g for g in own if holders[g] <= common]
            found = [g for g in known if g in mine]
            size = len(own[0])
            every, covered = (
                {k + j for g in some for k in [own.index(g)] for j in range(size)} for some in (known, found)
            )
            whole = len(set(known)) > 1 and covered == every
            if not found or not (whole or any(counts[g] <= common for g in found)):
                continue
            share = len(covered) / len(every)
            best[field] = max(best[field], share)
            places = [k for k in range(len(document) - size + 1) if tuple(document[k : k + size]) in set(found)]
            runs = [[places[0], places[0] + size]]
            for place in places[1:]:
                if place < runs[-1][1]:
                    runs[-1][1] = place + size
                else:
                    runs.append([place, place + size])
            spans |= {(item, field, " ".join(document[low:high])) for low, high in runs}
        result.append((round(best["q"], 3), round(best["a"], 3), spans))
    return result


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_those_of_brute_force(tmp_path, seed):
    rng = random.Random(seed)
    pool = [" ".join(rng.choice("abcdefgh") for _ in range(rng.randrange(2, 9))) for _ in range(12)]
    made = lambda n: " ".join(rng.choice(pool) for _ in range(rng.randrange(n)))  # noqa: E731
    items, seen = [], set()
    for _ in range(8):
        item = {"q": made(4), "a": made(2)}
        if not {("q", item["q"]), ("a", item["a"])} & seen:
            items.append(item)
            seen |= {("q", item["q"]), ("a", item["a"])}
    texts = [
        re.sub("[aeg]", lambda m: rng.choice([m[0], m[0].upper()]), made(7)) + rng.choice(["", ".", " -- "])
        for _ in range(30)
    ]
    knobs = {"ngram": 5, "min_words": 3, "common": 4}
    expected = brute_force(items, texts, 5, 3, 4)
    rows, facts = look(tmp_path, items, texts, **knobs)
    assert shares(rows) == [(q, a) for q, a, _ in expected]
    for row, (_, _, spans), text in zip(rows, expected, texts, strict=True):
        places = [
            (int(s["item"][4:]), s["field"][0].replace("p", "q"), s["start"], s["end"]) for s in row["contamination"]
        ]
        assert {(i, f, " ".join(words(text.encode()[a:b].decode()))) for i, f, a, b in places} == spans
        assert row["contamination_items"] == len({item for item, _, _ in spans})
    assert facts["items_found"] == len({item for _, _, spans in expected for item, _, _ in spans})


def test_prompt_and_answer_short_and_partial_items(tmp_path):
    items = [
        {"q": numbered(0, 30), "a": numbered(100, 20)},
        {"q": "Eight words are just enough to be found", "a": "Paris"},
    ]
    texts = [
        f"xx {numbered(0, 30)} yy",
        f"{numbered(100, 20)}",
        f"{numbered(0, 30)} and then {numbered(100, 20)}",
        f"{numbered(0, 12)} broken {numbered(12, 18)}",
        f"{numbered(0, 13)} broken {numbered(13, 12)}",
        "EIGHT words - are  just enough\n\nto be “found”! Paris.",
        "Seven words are just enough to be",
        numbered(0, 12),
    ]
    rows, facts = look(tmp_path, items, texts)
    assert shares(rows) == [(1, 0), (0, 1), (1, 1), (0.6, 0), (0.433, 0), (1, 0), (0, 0), (0, 0)]
    assert [row["contamination_items"] for row in rows] == [1, 1, 1, 1, 1, 1, 0, 0]
    span = rows[0]["contamination"][0]
    assert (span["item"], span["field"]) == ("set#0", "prompt")
    assert texts[0].encode()[span["start"] : span["end"]].decode() == numbered(0, 30)
    assert facts == {"items": 2, "texts": 3, "copies": 0, "too_short": 1, "only_common": 0, "items_found": 2}


def test_common_phrases_are_no_evidence_but_copied_items_are(tmp_path):
    phrase = numbered(0, 13, "phrase")
    items = [{"q": f"{phrase} {numbered(0, 20)}", "a": numbered(500, 13)}]
    texts = [f"{phrase} {paragraph(i, 30)}" for i in range(5)] + [items[0]["q"]] * 5
    rows, _ = look(tmp_path, items, texts, common=4)
    assert shares(rows) == [(0, 0)] * 5 + [(1, 0)] * 5
    rows, _ = look(tmp_path, items, texts, common=10)
    assert shares(rows)[0] == (round(13 / 33, 3), 0)
    # One n-gram that many hold may be a phrase, even if it is all of an item.
    rows, _ = look(tmp_path, items, [numbered(500, 13)] * 3, common=2)
    assert shares(rows) == [(0, 0)] * 3


def test_templates_of_a_set_and_copies_within_it(tmp_path):
    template = numbered(0, 20, "template")
    items = [{"q": f"{template} {numbered(30 * k, 25)}", "a": ""} for k in range(6)]
    items += [items[0], {"q": template, "a": ""}]
    rows, facts = look(tmp_path, items, [template, f"{template} {numbered(0, 25)}"], common=3)
    assert shares(rows) == [(0, 0), (1, 0)]
    assert [s["item"] for s in rows[1]["contamination"]] == ["set#0"]
    assert facts == {"items": 8, "texts": 7, "copies": 1, "too_short": 8, "only_common": 1, "items_found": 2}


def test_an_item_of_several_sets_is_found_in_each(tmp_path):
    stage = stage_for(tmp_path, [{"q": numbered(0, 30), "a": ""}])
    other = dataclasses.replace(stage.sets[0], name="other")
    stage = dataclasses.replace(stage, sets=(*stage.sets, other))
    facts = stage.run([part_of(tmp_path, "s", 0, [numbered(0, 30)])], StepOutput(tmp_path, "step"), LocalCluster())
    assert [facts["sets"][name]["items_found"] for name in ("set", "other")] == [1, 1]


def test_ids_of_items_may_contain_what_divides_them_from_the_set(tmp_path):
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "web/a.jsonl#17", "q": numbered(0, 20), "a": ""}) + "\n")
    stage = Decontaminate((EvaluationSet("set", str(tmp_path / "items.jsonl"), ("q",), ("a",), ids="id"),))
    assert run(stage, [part_of(tmp_path, "s", 0, [numbered(0, 20)])], tmp_path)[1]["items_found"] == 1


def test_any_script_is_compared_by_its_words(tmp_path):
    items = [{"q": "长江是中国最长的河流全长约六千三百公里", "a": "Ο ΜΕΓΑΣ ΔΡΟΜΟΣ ΤΗΣ ΠΟΛΗΣ ΕΙΝΑΙ ΕΔΩ ΣΗΜΕΡΑ"}]
    texts = [
        "据说，长江是中国最长的河流，全长约六千三百公里。",
        "ο μεγας δρομος της πολης ειναι εδω σημερα.",
        "长江是中国的河流",
    ]
    rows, _ = look(tmp_path, items, texts)
    assert shares(rows) == [(1, 0), (0, 1), (0, 0)]
    rows, _ = look(tmp_path, [{"q": "Don't cafe\u0301 a b c d e f", "a": ""}], ["don’t café A B C D E F"])
    assert shares(rows) == [(1, 0)]


def test_texts_without_spaces_are_found_inside_others(tmp_path):
    items = [{"q": "แม่น้ำเจ้าพระยาไหลผ่านกรุงเทพมหานคร", "a": "ភ្នំពេញជារាជធានីនៃព្រះរាជាណាចក្រកម្ពុជា"}]
    texts = [
        "เรารู้ว่าแม่น้ำเจ้าพระยาไหลผ่านกรุงเทพมหานครทุกวัน",
        "យើងដឹងថាភ្នំពេញជារាជធានីនៃព្រះរាជាណាចក្រកម្ពុជាហើយ",
        "แม่น้ำโขงไหลผ่านลาว",
    ]
    rows, _ = look(tmp_path, items, texts)
    assert shares(rows) == [(1, 0), (0, 1), (0, 0)]


def test_redaction_cuts_what_reaches_the_share(tmp_path):
    items = [{"q": numbered(0, 30), "a": numbered(20, 30)}]
    texts = [f"Before {numbered(0, 50)} after.", f"Only {numbered(0, 13)}.", "", numbered(0, 30)]
    rows, _ = look(tmp_path, items, texts, redact_at=0.5)
    assert [row["left"] for row in rows] == ["Before  after.", texts[1], "", ""]
    assert {edit["rule"] for row in rows for edit in row["edits"]} == {"decontaminate"}


def test_parts_and_the_order_of_tasks_change_nothing(tmp_path):
    items = [{"q": numbered(10 * k, 20), "a": numbered(10 * k + 5, 9)} for k in range(20)]
    texts = [f"{paragraph(k, 20)} {numbered(7 * k, 25)}" for k in range(24)]
    whole = look(tmp_path, items, texts, common=2, redact_at=0.9)
    for name, cuts in {"a": [0, 1, 9, 9, 24], "b": [0, 12, 24]}.items():
        root = tmp_path / name
        root.mkdir()
        parts = [part_of(root, "s", i, texts[low:high]) for i, (low, high) in enumerate(itertools.pairwise(cuts))]
        stage = stage_for(root, items, common=2, redact_at=0.9)
        assert run(stage, parts, root, Backwards()) == whole


def test_files_of_sets(tmp_path):
    items = [
        {"doc": {"q": numbered(0, 9)}, "choices": [numbered(9, 9), "short"], "n": 3},
        {"doc": None, "choices": [], "n": None},
    ]
    expected = [(0, "x#0", 0, numbered(0, 9)), (0, "x#0", 1, numbered(9, 9)), (0, "x#0", 1, "short")]
    with gzip.GzipFile(tmp_path / "x.jsonl.gz", "wb", mtime=0) as sink:
        sink.write("\n".join(map(json.dumps, items)).encode())
    parquet.write_table(pa.Table.from_pylist(items), tmp_path / "x.parquet")
    for name in ("x.jsonl.gz", "x.parquet"):
        assert list(EvaluationSet("x", str(tmp_path / name), ("doc.q", "n"), ("choices",)).texts()) == expected
        with pytest.raises(UserError, match=r"record 0: no field 'doc.question'; available: q"):
            list(EvaluationSet("x", str(tmp_path / name), ("doc.question",)).texts())
        named = EvaluationSet("x", str(tmp_path / name), ("doc.q",), ids="n").texts()
        assert next(named)[1] == "x#3"
        with pytest.raises(UserError, match="record 1: n: got NoneType, expected a name"):
            list(named)
    (tmp_path / "bad.jsonl").write_text('{"q": "a"}\n[1]\n')
    with pytest.raises(UserError, match="line 2: expected a JSON object"):
        list(EvaluationSet("x", str(tmp_path / "bad.jsonl"), ("q",)).texts())


def test_knobs_are_checked_and_sets_are_part_of_the_identity(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"q": "a"}\n')
    one = {"name": "x", "file": str(tmp_path / "x.jsonl"), "prompts": ["q"]}
    for knobs, message in [
        ({"sets": []}, "sets: got an empty list"),
        ({"sets": [one, one]}, "expected unique names"),
        ({"sets": [{**one, "file": "nowhere.jsonl"}]}, "file: got 'nowhere.jsonl', expected an existing file"),
        ({"sets": [{**one, "prompts": []}]}, "both are empty"),
        ({"sets": [one], "ngram": 5}, "min_words: got 8, expected 1 to ngram, 5"),
        ({"sets": [one], "redact_at": 0}, "redact_at: got 0"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse(Decontaminate, knobs, "x.yaml")
    stage = parse(Decontaminate, {"sets": [one]}, "x.yaml")
    before = stage.depends()
    (tmp_path / "x.jsonl").write_text('{"q": "b"}\n')
    with pytest.raises(UserError, match="changed after the build was planned"):
        stage.run([], StepOutput(tmp_path, "step"), LocalCluster())
    assert parse(Decontaminate, {"sets": [one]}, "x.yaml").depends() != before


def test_planted_items_are_found_and_others_are_not(tmp_path):
    texts, origins = [paragraph(k, 300) for k in range(200)], [numbered(1000 * k, 220) for k in range(64)]
    planted = plant(texts, origins, seed=0)
    scores, _ = measure(planted, tmp_path)
    precision, recall = accuracy(planted, scores, 0.25)
    assert precision == 1
    assert set(recall) == set(KINDS)
    assert min(recall.values()) == 1


@pytest.mark.slow
def test_precision_and_recall_on_real_text(shared_data, tmp_path):
    from benchmarks.signals import load

    texts = load([str(shared_data / "prose" / "wiki_en.jsonl.gz")], 10_000_000)[1]
    origins = [t for t in load([str(shared_data / "prose" / "textbooks.jsonl.gz")])[1] if len(t.split()) > 200][:600]
    planted = plant(texts, origins, seed=1)
    precision, recall = accuracy(planted, measure(planted, tmp_path)[0], 0.25)
    assert precision > 0.97
    assert min(recall.values()) > 0.96


def test_a_build_filters_what_is_contaminated_and_every_step_exports_what_it_found(corpus_file, tmp_path, capsys):
    from pipelines.__main__ import main
    from pipelines.building.build import build
    from pipelines.contracts.lineage import open_corpus
    from pipelines.explore.inspect_document import show_document
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.inventory import take_inventory
    from pipelines.planning.plan import make_plan

    (tmp_path / "items.jsonl").write_text((json.dumps({"question": paragraph(3)[100:400]}) + "\n") * 2)
    text = corpus_file.read_text().partition("  - quality_signals")[0]
    sets = f"sets: [{{name: quiz, file: {tmp_path}/items.jsonl, prompts: [question]}}]"
    edited = f"{{text: edited_text, prefix: edited_, {sets}}}\n    name: again"
    rule = "{signal: contamination_prompt, at_most: 0.5}"
    corpus_file.write_text(
        f"{text}  - decontaminate: {{{sets}}}\n  - decontaminate: {edited}\n  - filter: [{rule}]\n"
        "  - text_hash: {}\n  - dedup_exact: {}\n"
    )
    config = load_corpus_config(corpus_file)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda _: None)
    corpus = open_corpus(config.place)
    rows = [row for row in corpus.manifest.funnel if row["step"] == "filter" and row["source"] == "web"]
    assert sum(rows[0]["dropped"].values()) == 1
    show_document(config.place, "web/1.jsonl#1", raw=False)
    shown = capsys.readouterr().out
    assert "quiz#0" in shown
    assert "contamination_prompt" in shown
    evidence = tmp_path / "evidence.jsonl"
    assert main(["inspect", str(config.place), "--contamination", str(evidence)]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 items found by decontaminate\n" in shown
    assert "2 of 2 items found by again\n" in shown
    assert "4 matches in 1 documents" in shown
    places = [json.loads(line) for line in evidence.read_text().splitlines()]
    assert [(p["step"], p["document"], p["item"], p["field"]) for p in places] == [
        (step, "web/1.jsonl#1", item, "prompt") for step in ("decontaminate", "again") for item in ("quiz#0", "quiz#1")
    ]
    assert places[0]["drop"] == next(iter(rows[0]["dropped"]))
    stored = paragraph(3).encode()[places[0]["start"] : places[0]["end"]].decode()
    assert stored in paragraph(3)[100:400]
    assert main(["inspect", str(config.place), "--contamination", str(evidence)]) == 2
    assert ": exists; name another file" in capsys.readouterr().err
    report = json.loads((config.place / "report.json").read_text())
    assert report["evaluation_sets"][0] | {"items": 2, "items_found": 2} == report["evaluation_sets"][0]
    assert "<td>quiz</td>" in (config.place / "report.html").read_text()
