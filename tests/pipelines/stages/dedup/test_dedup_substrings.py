"""Substring deduplication against brute force, byte by byte: the first occurrence is kept, and every later
one is removed.
"""

import gzip
import itertools
import json
import random

import numpy as np
import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import document_id, file_key
from pipelines.contracts.edits import apply_edits, compose
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts
from pipelines.explore.inspect_document import show_document
from pipelines.kernels.search.substrings import find_blocks, split_blocks
from pipelines.kernels.text.buffers import text_buffers
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages.dedup.dedup_substrings import DedupSubstrings
from tests.conftest import paragraph, write_texts_corpus
from tests.pipelines.stages.dedup.test_dedup_spans import Backwards, Dies, part_of


def run(stage, parts, root, name="step", cluster=None):
    """Return (text left, drop, bytes removed, winner, winners) for every document, and the facts."""
    out = StepOutput(root, name)
    facts = stage.run(parts, out, cluster or LocalCluster())
    found = []
    for part in parts:
        receipt = out.receipt(part.unit)
        counts = receipt.counts
        assert counts["in"] == counts["kept"] + sum(counts["dropped"].values()) == part.rows
        table = read_table(out.directory, receipt.files[0], stage.writes().names, schema_facts(stage.writes()))
        edits = table["edits"].combine_chunks()
        assert {edit["rule"] for row in edits.to_pylist() for edit in row} <= {"dedup_substrings"}
        earlier = part.edits() if stage.text != "text" else None
        text = part.table(["text"])["text"].combine_chunks()
        texts = apply_edits(text, edits if earlier is None else compose([earlier, edits])).to_pylist()
        rest = table.drop_columns(["edits"]).to_pylist()
        found += [(text, *row.values()) for text, row in zip(texts, rest, strict=True)]
    return found, facts


def repeats_of(texts, size):
    """Return two lists, computed from a dictionary of all windows of `size` bytes. A window is repeated if it
    first occurs in an earlier document, or in the same document without overlap. The first list marks the
    bytes of each document that belong to whole characters inside a repeated window. The second maps the start
    of each repeated window to the document in which the window first occurs.
    """
    firsts, covered, owners = {}, [], []
    for number, text in enumerate(map(str.encode, texts)):
        marks, owner = np.zeros(len(text), bool), {}
        for start in range(len(text) - size + 1):
            before, place = firsts.setdefault(text[start : start + size], (number, start))
            if before < number or place + size <= start:
                low, high = start, start + size
                while low < high and text[low] & 0xC0 == 0x80:
                    low += 1
                while high < len(text) and text[high] & 0xC0 == 0x80:
                    high -= 1
                marks[low:high] = True
                owner[start] = before
        covered.append(marks)
        owners.append(owner)
    return covered, owners


def left_of(text, marks):
    return np.frombuffer(text.encode(), np.uint8)[~marks].tobytes().decode()


def check(texts, size, found):
    covered, owners = repeats_of(texts, size)
    ids = [document_id(file_key("s", "0.txt"), row) for row in range(len(texts))]
    for text, marks, owner, (left, drop, removed, winner, winners) in zip(texts, covered, owners, found, strict=True):
        assert left == left_of(text, marks)
        assert removed == len(text.encode()) - len(left.encode())
        assert drop == ("dedup_substrings.empty" if removed and not left.strip() else None)
        assert (winner is None) == (not winners) == (removed == 0)
        assert {winner} - {None} <= set(winners) <= {ids[row] for row in owner.values()}


def random_texts(seed, alphabet="ab", documents=12, most=120):
    rng = random.Random(seed)
    return ["".join(rng.choices(alphabet, k=rng.randrange(most))) for _ in range(documents)]


def planted(seed):
    rng = random.Random(seed)
    texts: list[str] = []
    for _ in range(25):
        text = "".join(chr(rng.choice([97, 98, 228, 0x4E2D, 0x1F642])) for _ in range(rng.randrange(80)))
        for _ in range(rng.randrange(3)):
            other = rng.choice([*texts, text])
            low = rng.randrange(len(other) + 1)
            place = rng.randrange(len(text) + 1)
            text = text[:place] + other[low : low + rng.randrange(60)] + text[place:]
        texts.append(text)
    return texts


CORPORA = {
    **{f"two letters {seed}": random_texts(seed) for seed in range(4)},
    **{f"one to three letters {seed}": random_texts(seed, "a" * 30 + "bc", most=400) for seed in range(3)},
    **{f"planted {seed}": planted(seed) for seed in range(6)},
    "runs": ["a" * 300, "a" * 25, "a" * 9, "b" + "a" * 40 + "b", "a" * 300 + "b"],
    "periods": ["abc" * 60, "xyz" + "abc" * 9, "abcab" * 30, "bcabc" * 30, "ab" * 50 + "ba" * 50],
    "characters": ["ä" * 40, "é" + "ä" * 30 + "é", "中国" * 20, "x" + "中国" * 8 + "丮", "🙂" * 9 + "🙃", "🙂" * 12],
    "halves": ["0123456789012345" + "ā", "ŀ" + "abcdefghijklmnop", "0123456789012345" + "Ā" + "abcdefghijklmnop"],
    "shared bytes": ["Ā" + "q" * 11 + "Ā", "ā" + "q" * 11 + "Ā", "Ā" + "q" * 11 + "ń"],
    "empty": ["", "", " ", "x", "", "hello world, hello world, hello world", "hello world, hello world"],
    "overlap": ["0123456789abcdefghij", "89abcdefghijKLMNOPQRSTUV", "efghijKLMNOPQR0123456789abcdef"],
    "spaces": [" " * 30, "a" + " " * 30 + "b", " " * 12],
    "equal": ["the same text in full, word for word"] * 4,
}


@pytest.mark.long
@pytest.mark.parametrize("size", [10, 13])
@pytest.mark.parametrize("name", CORPORA)
def test_what_stays_is_what_brute_force_leaves(tmp_path, name, size):
    texts = CORPORA[name]
    found, facts = run(DedupSubstrings(size), [part_of(tmp_path, "s", 0, texts)], tmp_path)
    check(texts, size, found)
    assert facts["bytes"] == sum(removed for _, _, removed, _, _ in found)
    assert facts["substrings"] == sum(len(winners) for *_, winners in found)
    assert facts["dropped"] == sum(drop is not None for _, drop, *_ in found)


@pytest.mark.long
@pytest.mark.parametrize("knobs", [{}, {"min_left_words": 3}], ids=["cut", "dropped"])
def test_parts_partitions_pieces_and_the_order_of_tasks_change_nothing(tmp_path, monkeypatch, knobs):
    rng = random.Random(1)
    words = ["mill ", "river ", "baker ", "horse ", "tower ", "winter "]
    texts = [text for name in ("two letters 1", "planted 2", "runs", "periods", "overlap") for text in CORPORA[name]]
    texts += ["".join(rng.choices(words, k=rng.randrange(12))) for _ in range(30)]
    stage = DedupSubstrings(12, **knobs)
    whole, facts = run(stage, [part_of(tmp_path, "s", 0, texts)], tmp_path)
    for number, cuts in enumerate([[0, 1, 2, 25, 25, 60, len(texts)], [0, 30, len(texts)]]):
        if number:
            monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (9,))
            monkeypatch.setattr("pipelines.kernels.text.buffers.BLOCK_BYTES", 1)
            monkeypatch.setattr("pipelines.kernels.text.buffers.blocks.__defaults__", (1,))
            monkeypatch.setattr("pipelines.stages.dedup.find_repeats._PIECE", 7)
            monkeypatch.setattr("pipelines.stages.dedup.find_repeats._GROUP_BYTES", 60)  # of four blocks or more
        root = tmp_path / f"{number}"
        root.mkdir()
        parts = [part_of(root, "s", i, texts[low:high]) for i, (low, high) in enumerate(itertools.pairwise(cuts))]
        ids = [document_id(file_key("s", f"{i}.txt"), row) for i, part in enumerate(parts) for row in range(part.rows)]
        rename = dict(zip(ids, (document_id(file_key("s", "0.txt"), row) for row in range(len(texts))), strict=True))
        found, others = run(stage, parts, root, cluster=Backwards())
        named = [(*rest, rename.get(one), some and [rename[w] for w in some]) for *rest, one, some in found]
        assert (named, others) == (whole, facts)


def test_documents_with_few_words_left_go_and_their_substrings_do_not_count(tmp_path):
    first, shared = (
        "Some words that stand in the first text only. ",
        "These words are shared by two of them, as they are.",
    )
    texts = [first, first + shared, shared + " And so much more that this one can stay as it is."]
    ids = [document_id(file_key("s", "0.txt"), row) for row in range(3)]
    found, facts = run(DedupSubstrings(20), [part_of(tmp_path, "s", 0, texts)], tmp_path, "kept")
    assert [text for text, *_ in found] == [first, shared, " And so much more that this one can stay as it is."]
    assert [winner for *_, winner, _ in found] == [None, ids[0], ids[1]]
    found, facts = run(DedupSubstrings(20, min_left_words=12), [part_of(tmp_path, "s", 0, texts)], tmp_path)
    assert found == [
        (texts[0], None, 0, None, []),
        (texts[1], "dedup_substrings.few_words", len(first), ids[0], [ids[0]]),
        (texts[2], None, 0, None, []),
    ]
    assert facts == {"substrings": 0, "bytes": 0, "dropped": 1}


def test_only_documents_without_drop_compete(tmp_path):
    texts = ["the same text in full"] * 3
    part = part_of(tmp_path, "s", 0, texts, dropped=["rule", None, None])
    found, _ = run(DedupSubstrings(12), [part], tmp_path)
    assert [text for text, *_ in found] == [texts[0], texts[0], ""]
    assert [removed for _, _, removed, *_ in found] == [None, 0, len(texts[0])]
    assert found[0][3:] == (None, None)


def test_the_text_may_be_the_edited_one(tmp_path):
    texts = ["Mail me at [me@x.org]. Yours, A", "Mail me at [you@y.org]. Yours, B"]
    edits = [[(12, 20, "EMAIL", "pii")], [(12, 21, "EMAIL", "pii")]]
    parts = [part_of(tmp_path, "s", 0, texts, edits=edits)]
    found, _ = run(DedupSubstrings(25), parts, tmp_path)
    assert [text for text, *_ in found] == ["Mail me at [EMAIL]. Yours, A", "B"]
    found, _ = run(DedupSubstrings(25, text="text"), parts, tmp_path, "other")
    assert [text for text, *_ in found] == texts


def test_equal_windows_have_equal_minimizers_and_windows_of_a_block_differ():
    texts = [*CORPORA["runs"], *CORPORA["planted 1"], *CORPORA["two letters 2"]]
    offsets, data = text_buffers(pa.array(texts, pa.large_string()))
    blocks = find_blocks(offsets, data, 11)
    assert blocks.counts.sum() == sum(max(0, len(text.encode()) - 10) for text in texts)
    windows = split_blocks(offsets, data, blocks, 11)
    minimum, block, hashed = {}, 0, {}
    owner = np.repeat(np.arange(len(blocks.counts)), blocks.counts)
    for document, start, value, hash_, block in zip(
        windows.documents, windows.starts, windows.minima, windows.hashes, owner, strict=True
    ):
        window = texts[document].encode()[start : start + 11]
        assert minimum.setdefault(window, value) == value
        assert hashed.setdefault(window, hash_) == hash_
        assert minimum.setdefault((block, window), start) == start
    assert len(set(hashed.values())) == len(hashed)


@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_result(tmp_path):
    stage, texts = DedupSubstrings(12, min_left_words=2), [*CORPORA["planted 3"], *CORPORA["equal"]]
    parts = [part_of(tmp_path, "s", i, texts[15 * i : 15 * i + 15]) for i in range(2)]
    expected = run(stage, parts, tmp_path)
    files = {path.name: path.read_bytes() for path in (tmp_path / "step" / "parts").iterdir()}
    for tasks in range(1, 17, 3):
        for most in (tasks, 1):
            with pytest.raises(KeyboardInterrupt):
                run(stage, parts, tmp_path, f"killed{tasks}", Dies(most))
        assert run(stage, parts, tmp_path, f"killed{tasks}") == expected
        assert {p.name: p.read_bytes() for p in (tmp_path / f"killed{tasks}" / "parts").iterdir()} == files


def test_knobs_are_checked():
    for knobs, message in [
        ({"min_bytes": 9}, "min_bytes: got 9, expected 10 or more"),
        ({"min_left_words": -1}, "min_left_words: got -1, expected 0 or more"),
        ({"text": "stored"}, "text: got 'stored'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            parse(DedupSubstrings, knobs, "x.yaml")


NOTICE = "This text is published under a licence that everybody has read once and nobody will ever read again. "


@pytest.fixture
def built(tmp_path):
    def make(step):
        texts = [f"{NOTICE}1 {paragraph(1)}", f"{NOTICE}The end.", f"{paragraph(2)} {NOTICE}3 {paragraph(3)}", NOTICE]
        path = write_texts_corpus(tmp_path, texts, [f"dedup_substrings: {step}"], "c")
        config = load_corpus_config(path)
        build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda _: None)
        return config.place

    return make


def test_a_build_counts_and_inspect_names_the_document_that_keeps_the_text(built, capsys):
    place = built("{}")
    corpus = open_corpus(place)
    [row] = [row for row in corpus.manifest.funnel if row["step"] == "dedup_substrings"]
    assert (row["documents_out"], row["dropped"]) == (3, {"dedup_substrings.empty": 1})
    [part] = corpus.parts()
    texts = part.table(("edited_text",))["edited_text"].to_pylist()
    assert texts == [f"{NOTICE}1 {paragraph(1)}", "The end.", f"{paragraph(2)} 3 {paragraph(3)}", ""]
    assert row["bytes_out"] == sum(map(len, texts))
    [step] = [step for step in corpus.steps if step.stage == "dedup_substrings"]
    assert step.manifest.facts == {"substrings": 3, "bytes": 3 * len(NOTICE), "dropped": 1}
    show_document(place, "web/texts.jsonl#2", raw=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "substrings_winner web/texts.jsonl#0" in shown
    assert "substrings_winners 1 values: web/texts.jsonl#0" in shown
    assert f"dedup_substrings bytes {len(paragraph(2)) + 1} to" in shown
    show_document(place, "web/texts.jsonl#3", raw=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "drops: dedup_substrings.empty, in favour of web/texts.jsonl#0" in shown


def test_a_build_without_documents_that_lost_most(built):
    funnel = open_corpus(built("{min_left_words: 5}")).manifest.funnel
    [row] = [row for row in funnel if row["step"] == "dedup_substrings"]
    assert row["dropped"] == {"dedup_substrings.few_words": 2}


@pytest.mark.parametrize("later", ["dedup_exact: {}", "filter: [{signal: word_count, at_least: 5}]"])
def test_nothing_may_drop_documents_after_it(tmp_path, later):
    measured = ["text_hash: {}", "quality_signals: {}", "dedup_substrings: {}", later]
    config = load_corpus_config(write_texts_corpus(tmp_path, ["a", "b"], measured, "c"))
    with pytest.raises(ConfigError, match="drops documents after dedup_substrings, which keeps"):
        make_plan(config, take_inventory(config.sources, config.place))


def named_windows(documents, size):
    """Return the concatenated bytes, a number for each window of `size` bytes, and the first position of each
    number. Equal windows have the same number. The numbers are computed for substrings of doubling length
    (Karp, Miller and Rosenberg 1972).
    """
    data = np.frombuffer(b"".join(documents), np.uint8)
    names, length = data.astype(np.int64), 1
    while length < size:
        step = min(length, size - length)
        pairs = names[: len(names) - step] * (int(names.max()) + 1) + names[step:]
        _, names = np.unique(pairs, return_inverse=True)
        length += step
    _, first = np.unique(names, return_index=True)
    return data, names, first


@pytest.mark.slow
@pytest.mark.parametrize("name", ["legal_dc_acts_laws", "forum_20news", "wiki_zh"])
def test_five_megabytes_of_real_text(shared_data, tmp_path, name):
    with gzip.open(shared_data / "prose" / f"{name}.jsonl.gz", "rt") as lines:
        texts, size = [], 0
        while size < 5e6:
            texts.append(json.loads(next(lines))["text"])
            size += len(texts[-1].encode())
    third = len(texts) // 3
    parts = [
        part_of(tmp_path, "s", 0, texts[:third]),
        part_of(tmp_path, "s", 1, texts[third : 2 * third]),
        part_of(tmp_path, "s", 2, texts[2 * third :]),
    ]
    found, facts = run(DedupSubstrings(), parts, tmp_path)
    # A byte that no text has follows each document, numbered, so that no two windows across it are equal.
    documents = [text.encode() + b"\xff" + f"{number:099d}".encode() for number, text in enumerate(texts)]
    _, names, first = named_windows(documents, 100)
    place = 0
    for text, document, (left, *_) in zip(texts, documents, found, strict=True):
        length = len(document) - 100
        windows = np.arange(place, place + max(0, length - 99))
        firsts = first[names[windows]]
        repeated = windows[(firsts < place) | (firsts + 100 <= windows)] - place
        begins = np.flatnonzero(np.frombuffer(document, np.uint8) & 0xC0 != 0x80)  # of characters
        lows = begins[np.searchsorted(begins, repeated)]
        highs = begins[np.searchsorted(begins, repeated + 100, side="right") - 1]
        change = np.bincount(lows, minlength=length + 101) - np.bincount(highs, minlength=length + 101)
        assert left == left_of(text, np.cumsum(change)[:length] > 0)
        place += len(document)
    assert facts["bytes"] > size / 100
