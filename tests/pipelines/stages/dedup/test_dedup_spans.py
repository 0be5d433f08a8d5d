"""Span deduplication against brute force: each span is kept where it first occurs in a document that is not
dropped.
"""

import itertools
import random
from pathlib import Path

import pyarrow as pa
import pytest
import xxhash

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import DOCUMENT, document_id, file_key
from pipelines.contracts.edits import apply_edits, compose, edits_column
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Annotation, Part
from pipelines.kernels.search.spans import find_units, hash_windows
from pipelines.kernels.text.buffers import text_buffers
from pipelines.kernels.text.segment import segment
from pipelines.stages.dedup.dedup_spans import DedupSpans


def part_of(root: Path, source: str, index: int, texts, dropped=None, edits=None) -> Part:
    ids = [document_id(file_key(source, f"{index}.txt"), row) for row in range(len(texts))]
    nothing = [None] * len(texts)
    sources = pa.array([source] * len(texts)).dictionary_encode()
    columns = {"id": ids, "text": texts, "source": sources, "url": nothing, "meta": nothing}
    documents = pa.table(columns, schema=DOCUMENT)
    notes = pa.table(
        {"drop": pa.array(dropped or nothing, pa.string()), "edits": edits_column(edits or [()] * len(texts))}
    )
    records = []
    for name, table in ((f"{source}{index}.docs", documents), (f"{source}{index}.notes", notes)):
        (root / name).write_atomic(write_table(table))
        records.append(root.record(name))
    note = Annotation("before", root, records[1], schema_facts(notes.schema))
    facts = (schema_facts(DOCUMENT), pa.schema([]), ("before",), (note,))
    return Part(source, index, len(texts), sum(len(t.encode()) for t in texts), root, records[0], *facts)


class Backwards(LocalCluster):
    def map(self, function, items, label):
        yield from reversed(list(super().map(function, items, label)))


def run(stage, parts, root, name="step", cluster=None):
    out = StepOutput(root, name)
    facts = stage.run(parts, out, cluster or LocalCluster())
    found = []
    for part in parts:
        receipt = out.receipt(f"{part.source}-{part.index:05d}")
        counts = receipt.counts
        assert counts["in"] == counts["kept"] + sum(counts["dropped"].values()) == part.rows
        schema = schema_facts(stage.writes())
        table = read_table(out.directory, receipt.files[0], stage.writes().names, schema)
        text = part.table(["text"])["text"].combine_chunks()
        earlier = part.edits() if stage.text != "text" else None
        edits = table["edits"].combine_chunks()
        texts = apply_edits(text, edits if earlier is None else compose([earlier, edits])).to_pylist()
        rules = [{edit["rule"] for edit in row} for row in table["edits"].to_pylist()]
        assert all(rule <= {stage.rule} for rule in rules)
        rest = table.drop_columns(["drop", "edits"]).to_pylist()
        found += list(zip(texts, table["drop"].to_pylist(), [tuple(row.values()) for row in rest], strict=True))
    return found, facts


def one_part(tmp_path, texts, **knobs):
    found, _ = run(DedupSpans(**knobs), [part_of(tmp_path, "s", 0, texts)], tmp_path)
    return found


def units_of(text: str, unit: str) -> list[str]:
    offsets, data = text_buffers(pa.array([text], pa.large_string()))
    segments = segment(offsets, data)
    spans = {"line": segments.lines, "paragraph": segments.paragraphs, "sentence": segments.sentences}[unit]
    return [text.encode()[a:b].decode() for a, b in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)]


def words_of(text: str) -> int:
    offsets, data = text_buffers(pa.array([text], pa.large_string()))
    return len(segment(offsets, data).words.starts)


def plain(text: str) -> str:
    return " ".join(text.lower().split())


def removed_units(documents, window, min_words):
    """Return the set of units to remove from each document: those in any window of at least `min_words` words
    whose text has occurred before.
    """
    seen, removed = set(), []
    for units in documents:
        gone = set()
        for first in range(max(1, len(units) - window + 1) if units else 0):
            span = units[first : first + window]
            if sum(map(words_of, span)) < min_words:
                continue
            key = tuple(map(plain, span))
            if key in seen:
                gone |= set(range(first, first + len(span)))
            seen.add(key)
        removed.append(gone)
    return removed


def brute_force(documents, stage):
    """Return (number of units removed, units left) for every document; the second is None if the document is
    dropped.
    """
    first = removed_units(documents, stage.window, stage.min_words)
    left = [
        sum(words_of(u) for k, u in enumerate(units) if k not in gone)
        for units, gone in zip(documents, first, strict=True)
    ]
    dropped = [bool(gone) and words < stage.min_left_words for gone, words in zip(first, left, strict=True)]
    again = iter(
        removed_units(
            [u for u, drop in zip(documents, dropped, strict=True) if not drop], stage.window, stage.min_words
        )
    )
    result = []
    for units, drop, gone in zip(documents, dropped, first, strict=True):
        gone = gone if drop else next(again)
        result.append((len(gone), None if drop else [plain(u) for k, u in enumerate(units) if k not in gone]))
    return result


def corpus(seed: int, documents: int = 40) -> list[str]:
    rng = random.Random(seed)
    names = ["mill", "river", "baker", "horse", "tower", "winter"]
    pool = [
        f"The {a} {v} {n} {'stones' if n % 2 else 'Steine'}."
        for a, v, n in itertools.product(names, ["saw", "kept"], range(3))
    ]
    texts = []
    for _ in range(documents):
        sentences = [rng.choice(pool) for _ in range(rng.randrange(0, 9))]
        sentences = [s.upper() if rng.random() < 0.2 else s for s in sentences]
        texts.append("".join(s + rng.choice([" ", "  ", "\n", "\n\n", "\n\n  "]) for s in sentences))
    return texts


KNOBS = [
    {"unit": "line", "min_left_words": 0},
    {"unit": "line", "min_left_words": 8, "min_words": 6},
    {"unit": "paragraph", "min_left_words": 12},
    {"unit": "sentence", "window": 3, "min_left_words": 9},
    {"unit": "sentence", "window": 2, "min_left_words": 0, "min_words": 11},
    {"unit": "sentence", "min_left_words": 5},
]


@pytest.mark.long
@pytest.mark.parametrize("knobs", KNOBS, ids=lambda knobs: "-".join(map(str, knobs.values())))
@pytest.mark.parametrize("seed", range(3))
def test_what_stays_is_what_brute_force_leaves(tmp_path, knobs, seed):
    stage, texts = DedupSpans(**knobs), corpus(seed)
    found, facts = run(stage, [part_of(tmp_path, "s", 0, texts)], tmp_path)
    documents = [units_of(text, stage.unit) for text in texts]
    expected = brute_force(documents, stage)
    for (text, drop, (removed, left)), (count, units), before in zip(found, expected, texts, strict=True):
        assert removed == count
        rule = "few_words" if units is None else "empty" if not "".join(units).strip() and before.strip() else None
        assert drop == (rule and f"dedup_spans.{stage.unit}.{rule}")
        if units is None:
            assert text == before  # who goes is not edited
            assert left < stage.min_left_words
        else:
            assert plain(text) == plain(" ".join(units))
            assert words_of(text) == left
    assert facts["dropped"] == sum(drop is not None for _, drop, _ in found)
    assert facts["removed"] == sum(count for count, units in expected if units is not None)
    # Nothing is lost: what was removed is still there, in a document that stays; what went with a document is what it had left.
    kept = {unit for _, units in expected for unit in units or ()}
    for units, (_, left) in zip(documents, expected, strict=True):
        assert left is None or set(map(plain, units)) <= kept


@pytest.mark.long
@pytest.mark.parametrize("knobs", KNOBS, ids=lambda knobs: "-".join(map(str, knobs.values())))
def test_parts_partitions_and_the_order_of_tasks_change_nothing(tmp_path, monkeypatch, knobs):
    stage, texts = DedupSpans(**knobs), corpus(7)
    whole, facts = run(stage, [part_of(tmp_path, "s", 0, texts)], tmp_path)
    for number, cuts in enumerate([[0, 1, 2, 25, 25, 40], [0, 20, 40]]):
        if number:
            monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (9,))
        root = tmp_path / f"{number}"
        root.mkdir()
        parts = [part_of(root, "s", i, texts[low:high]) for i, (low, high) in enumerate(itertools.pairwise(cuts))]
        assert run(stage, parts, root, cluster=Backwards()) == (whole, facts)


def test_a_sentence_of_a_span_that_stays_is_never_lost(tmp_path):
    """With overlapping windows, each sentence is kept where it first occurs, even in documents whose repeated
    windows are removed.
    """
    a, b, c, d, e = (
        f"{name} was here in {year}." for year, name in enumerate(["Anna", "Bert", "Cleo", "Dora", "Ede"], 1900)
    )
    texts = [f"{b} {c} {d}", f"{a} {b} {c} {d} {e}", f"{a} {b} {c}"]
    found = one_part(tmp_path, texts, unit="sentence", window=3, min_left_words=0)
    assert [text for text, _, _ in found] == [f"{b} {c} {d}", f"{a} {e}", ""]


def test_spans_of_a_document_that_goes_stay_in_another(tmp_path):
    long, shared = "Nine words that stand in the first text only.", "This one is shared by two of them."
    texts = [long, f"{long}\n{shared}", f"{shared}\nAnd so much more that it can stay as it is."]
    found = one_part(tmp_path, texts, unit="line", min_left_words=9)
    assert [drop for _, drop, _ in found] == [None, "dedup_spans.line.few_words", None]
    assert found[2][0] == texts[2]
    assert [columns for _, _, columns in found] == [(0, 9), (1, 8), (0, 19)]


def test_only_documents_without_drop_compete_and_short_spans_stay(tmp_path):
    texts = ["Same line here.\nYes.", "Same line here.\nYes.", "Same line here.\nYes.\n***\n***"]
    part = part_of(tmp_path, "s", 0, texts, dropped=["rule", None, None])
    found, _ = run(DedupSpans("line", min_words=2, min_left_words=0), [part], tmp_path)
    assert [text for text, _, _ in found] == [texts[0], texts[1], "Yes.\n***\n***"]
    assert [columns for _, _, columns in found] == [(None, None), (0, 4), (1, 1)]


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("line", "A b\nX y\n  C d", "A b\n  C d"),
        ("line", "A b\n  X y\n    C d\n", "A b\n    C d\n"),
        ("line", "  X y\n  C d", "  C d"),
        ("line", "A b\n\nX y\n", "A b"),
        ("line", "X y", ""),
        ("line", "X y\nX y\nA b\nX y\nX y\n", "A b"),
        ("paragraph", "A b\n\nX y\n\nC d", "A b\n\nC d"),
        ("sentence", "A bo. X yo.\n\nC do.", "A bo.\n\nC do."),
        ("sentence", "A bo.\n\nX yo. C do.", "A bo.\n\nC do."),
        ("sentence", "A bo. X yo.  C do.", "A bo.  C do."),
        ("sentence", "A bo.\n  X yo.", "A bo."),
    ],
)
def test_white_space_around_what_is_cut(tmp_path, unit, text, expected):
    first = "X y" if unit != "sentence" else "X yo."
    found = one_part(tmp_path, [first, text, "Z"], unit=unit, min_left_words=0)
    assert [text for text, _, _ in found] == [first, expected, "Z"]


def test_the_text_may_be_the_edited_one(tmp_path):
    texts = ["Mail me at [me@x.org].\nA b c.", "Mail me at [you@y.org].\nD e f."]
    edits = [[(12, 20, "EMAIL", "pii")], [(12, 21, "EMAIL", "pii")]]
    parts = [part_of(tmp_path, "s", 0, texts, edits=edits)]
    found, _ = run(DedupSpans("line", min_left_words=0), parts, tmp_path)
    assert [text for text, _, _ in found] == ["Mail me at [EMAIL].\nA b c.", "D e f."]
    found, _ = run(DedupSpans("line", min_left_words=0, text="text"), parts, tmp_path, "other")
    assert [text for text, _, _ in found] == texts


def test_hashes_are_those_of_the_library():
    rng = random.Random(0)
    sizes = [*range(1, 70), 1000, 4097]
    texts = ["".join("ab cÄß中É"[rng.randrange(8)] for _ in range(size)) for size in sizes]
    lines = [*[f"{text}é" for text in texts], "  \u00a0x\t".join(texts)]
    offsets, data = text_buffers(pa.array(["\n".join(lines), "", "b"], pa.large_string()))
    units = find_units(offsets, data, "line")
    expected = [xxhash.xxh64_intdigest(plain(line).encode()) for line in [*lines, "b"]]
    assert units.hashes.tolist() == expected
    firsts, hashes = hash_windows(units.hashes, units.documents, 3)
    packed = [value.to_bytes(8, "little") for value in expected]
    windows = [xxhash.xxh64_intdigest(b"".join(packed[k : k + 3])) for k in range(len(lines) - 2)]
    assert hashes.tolist() == [*windows, xxhash.xxh64_intdigest(packed[-1])]
    assert firsts.tolist() == [*range(len(lines) - 2), len(lines)]


def test_knobs_are_checked():
    for knobs, message in [({"unit": "word"}, "unit"), ({"unit": "line", "window": 0}, "window: got 0, expected 1")]:
        with pytest.raises(ConfigError, match=message):
            parse(DedupSpans, knobs, "x.yaml")


@pytest.mark.parametrize("later", ["dedup_exact: {}", "filter: [{signal: word_count, at_least: 5}]\n    name: late"])
def test_nothing_may_drop_documents_after_it(corpus_file, later):
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.inventory import take_inventory
    from pipelines.planning.plan import make_plan

    text = corpus_file.read_text().partition("  - minhash_signatures")[0].replace("  - dedup_exact: {}\n", "")
    corpus_file.write_text(f"{text}  - dedup_spans: {{unit: line}}\n  - {later}\n    sources: [web]\n")
    config = load_corpus_config(corpus_file)
    with pytest.raises(ConfigError, match="drops documents after dedup_spans, which keeps"):
        make_plan(config, take_inventory(config.sources, config.place))


def test_a_build_with_spans(corpus_file):
    from pipelines.building.build import build
    from pipelines.contracts.lineage import open_corpus
    from pipelines.planning.corpus import load_corpus_config
    from pipelines.planning.inventory import take_inventory
    from pipelines.planning.plan import make_plan

    text = corpus_file.read_text().partition("  - quality_signals")[0]
    corpus_file.write_text(f"{text}  - dedup_spans: {{unit: sentence, window: 3, min_left_words: 20}}\n")
    config = load_corpus_config(corpus_file)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda _: None)
    corpus = open_corpus(config.place)
    funnel = [row for row in corpus.manifest.funnel if row["step"] == "dedup_spans" and row["source"] == "web"]
    assert funnel[0]["dropped"] == {"dedup_spans.sentence.few_words": 2}  # a copy, and a copy but for a sentence


class Dies(LocalCluster):
    def __init__(self, tasks):
        super().__init__()
        self.left = tasks

    def map(self, function, items, label):
        for position, item in reversed(list(enumerate(items))):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            yield position, function(item)


def test_a_killed_run_resumes_to_the_same_result(tmp_path):
    stage, texts = DedupSpans("sentence", window=2, min_left_words=9), corpus(3)
    parts = [part_of(tmp_path, "s", i, texts[20 * i : 20 * i + 20]) for i in range(2)]
    expected = run(stage, parts, tmp_path)
    files = {path.name: path.read_bytes() for path in (tmp_path / "step" / "parts").iterdir()}
    for tasks in range(1, 8, 2):
        for most in (tasks, 1):
            with pytest.raises(KeyboardInterrupt):
                run(stage, parts, tmp_path, f"killed{tasks}", Dies(most))
        assert run(stage, parts, tmp_path, f"killed{tasks}") == expected
        assert {p.name: p.read_bytes() for p in (tmp_path / f"killed{tasks}" / "parts").iterdir()} == files


@pytest.mark.slow
@pytest.mark.parametrize(
    "knobs",
    [{"unit": "line"}, {"unit": "sentence"}, {"unit": "sentence", "window": 3}],
    ids=["line", "sentence", "window"],
)
def test_no_sentence_of_real_laws_is_lost(shared_data, tmp_path, knobs):
    """The emergency, temporary and permanent versions of an act share many spans. A copy of each span of a
    document that is not dropped must remain.
    """
    import gzip
    import json

    with gzip.open(shared_data / "prose" / "legal_dc_acts_laws.jsonl.gz", "rt") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    stage = DedupSpans(**knobs)
    parts = [part_of(tmp_path, "s", i, texts[i::3]) for i in range(3)]
    found, facts = run(stage, parts, tmp_path)
    assert facts["removed"] > facts["units"] / 10
    kept = {plain(unit) for text, drop, _ in found if drop is None for unit in units_of(text, stage.unit)}
    for before, (text, drop, (_, left)) in zip([*texts[::3], *texts[1::3], *texts[2::3]], found, strict=True):
        lost = {plain(unit) for unit in units_of(before, stage.unit)} - kept
        assert left < 50 if drop else not lost and words_of(text) == left
