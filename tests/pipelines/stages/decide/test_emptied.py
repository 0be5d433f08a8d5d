"""A document that has been edited down to nothing is dropped by the step that emptied it, and no later step
reads it.
"""

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from gristmill.errors import ConfigError
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from tests.conftest import paragraph, write_texts_corpus

GOOD = "This line has five words."
MENU = "Home | News | Contact"


@pytest.fixture
def write(tmp_path):
    def corpus(texts, steps, name="c"):
        return write_texts_corpus(tmp_path, texts, steps, name, ", part_bytes: 4000")

    return corpus


def built(path):
    config = load_corpus_config(path)
    plan = make_plan(config, take_inventory(config.sources, config.place))
    return build(plan, LocalCluster(), lambda line: None)


def drops(manifest):
    return {row["step"]: row["dropped"] for row in manifest.funnel}


def exported(path, tmp_path):
    manifest = built(path)
    out = tmp_path / f"{path.stem}_export"
    assert main(["export", str(path.with_suffix("")), str(out), "--format", "parquet"]) == 0
    return manifest, [
        text for file in sorted(out.rglob("*.parquet")) for text in pq.read_table(file)["text"].to_pylist()
    ]


def test_what_edits_emptied_is_dropped_and_never_leaves_the_corpus(write, tmp_path, capsys):
    texts = [paragraph(k) for k in range(6)] + [MENU, f"{MENU}\n\n{MENU}", GOOD]
    steps = ["c4_lines: {rules: tfds}", "text_hash: {}", "dedup_exact: {}", "learn_tokenizer: {vocab_size: 500}"]
    path = write(texts, [*steps, "shards: {tokenizer: learn_tokenizer, validation_share: 0.2}"])
    manifest, left = exported(path, tmp_path)
    assert drops(manifest)["c4_lines"] == {"c4_lines.empty": 2}
    row = next(row for row in manifest.funnel if row["step"] == "c4_lines")
    assert (row["documents_in"], row["documents_out"]) == (9, 7)
    assert row["bytes_out"] == sum(len(text.encode()) for text in left)
    assert len(left) == 7
    assert all(text.strip() for text in left)
    shards = manifest.shard_sets["shards"].shards
    assert sum(shard.documents for shard in shards) == 7
    assert main(["inspect", str(tmp_path / "c"), "--rule", "c4_lines.empty"]) == 0
    assert "2 documents dropped" in " ".join(capsys.readouterr().out.split())


def test_an_emptied_document_wins_no_cluster(write, tmp_path):
    """Of two pages with the same URL, the first would win, but it is emptied."""
    pages = [(MENU, "https://a.example/x"), (GOOD, "https://a.example/x"), (paragraph(1), "https://a.example/y")]
    path = write([], ["url_rules: {}", "c4_lines: {rules: tfds}", "dedup_url: {}"])
    lines = "".join(json.dumps({"text": text, "url": url}) + "\n" for text, url in pages)
    (tmp_path / "texts.jsonl").write_text(lines)
    manifest, left = exported(path, tmp_path)
    assert (drops(manifest), left) == ({"c4_lines": {"c4_lines.empty": 1}, "dedup_url": {}}, [GOOD, paragraph(1)])


def test_steps_that_empty_a_document_together_name_the_last_one(write, tmp_path):
    """One step removes the menu, another removes a line found in another document. Only both together empty
    the document.
    """
    texts = [f"{paragraph(1)}\n{GOOD}", f"{MENU}\n{GOOD}", f"{GOOD}\n{paragraph(2)}"]
    spans = "dedup_spans: {unit: line, text: text, min_left_words: 0}"
    manifest, left = exported(write(texts, ["c4_lines: {rules: tfds}", spans]), tmp_path)
    assert drops(manifest) == {"c4_lines": {}, "dedup_spans": {"dedup_spans.line.empty": 1}}
    assert len(left) == 2


def test_two_steps_of_one_stage_name_themselves(write, tmp_path):
    texts = ["Some words for five here.'", MENU, GOOD]
    steps = ["c4_lines: {rules: datatrove}", "c4_lines: {rules: tfds, prefix: again_}\n    name: again"]
    manifest, left = exported(write(texts, steps), tmp_path)
    assert drops(manifest) == {"c4_lines": {"c4_lines.empty": 1}, "again": {"again.empty": 1}}
    assert left == [GOOD]


@pytest.mark.long
def test_placeholders_are_text(write, tmp_path):
    texts = ["jane.roe@example.org", "8.8.4.4 jane.roe@example.org", GOOD]
    pii = "pii: {entities: [EMAIL_ADDRESS, IP_ADDRESS]}"
    manifest, left = exported(write(texts, [pii]), tmp_path)
    assert drops(manifest) == {"pii": {}}
    assert left == ["<EMAIL_ADDRESS>", "<IP_ADDRESS> <EMAIL_ADDRESS>", GOOD]


def test_redaction_that_leaves_nothing_drops(write, tmp_path):
    question = "what is the tallest mountain that stands in the whole of the solar system today"
    (tmp_path / "set.jsonl").write_text(json.dumps({"question": question}) + "\n")
    sets = f"{{name: quiz, file: {tmp_path}/set.jsonl, prompts: [question]}}"
    steps = [f"decontaminate: {{sets: [{sets}], redact_at: 0.5}}", "quality_signals: {}",
             "filter: [{signal: word_count, at_least: 1}]"]  # fmt: skip
    manifest, left = exported(write([question, f"{GOOD} {question}", GOOD], steps), tmp_path)
    assert drops(manifest)["decontaminate"] == {"decontaminate.empty": 1}
    assert left == [f"{GOOD} ", GOOD]


def test_documents_that_a_step_is_not_shown_are_not_judged(write, tmp_path):
    steps = ["quality_signals: {}", "filter: [{signal: word_count, at_least: 4}]",
             "c4_lines: {rules: tfds}\n    where: filter"]  # fmt: skip
    manifest, left = exported(write([MENU, f"{MENU} | More", GOOD], steps), tmp_path)
    assert drops(manifest) == {"filter": {"word_count": 1}, "c4_lines": {"c4_lines.empty": 1}}
    assert left == [GOOD]


def test_edits_that_may_empty_a_winner_come_before_deduplication(write):
    path = write([GOOD], ["text_hash: {}", "dedup_exact: {}", "c4_lines: {rules: tfds}"])
    with pytest.raises(ConfigError, match=r"step c4_lines: drops documents that its edits empty after .* dedup_exact"):
        built(path)


def test_an_earlier_step_that_edits_differently_is_looked_at_again(write):
    """The check for emptied documents depends on all earlier edits, even for a step that reads the stored
    text.
    """
    texts = ["Here are five words'\nThis line has five words.", f"This line has five words.\n{paragraph(2)}"]
    spans = "dedup_spans: {unit: line, text: text, min_left_words: 0}"
    before = built(write(texts[::-1], ["c4_lines: {rules: datatrove}", spans]))
    after = built(write(texts[::-1], ["c4_lines: {rules: tfds}", spans]))
    assert drops(before)["dedup_spans"] == {}
    assert drops(after)["dedup_spans"] == {"dedup_spans.line.empty": 1}


@pytest.mark.parametrize("full", [[], ["--full"]])
def test_what_a_filter_newly_keeps_is_not_kept_where_it_is_emptied(write, tmp_path, capsys, full):
    texts = [MENU, "One two three four.", GOOD]
    steps = ["quality_signals: {}", "filter: [{signal: word_count, at_least: 5}]", "c4_lines: {rules: paper}"]
    path = write(texts, steps)
    built(path)
    assert main(["whatif", str(path), "--set", "filter.word_count.at_least=1", *full]) == 0
    out = capsys.readouterr().out
    assert "c4_lines.empty" in out
    row = next(line for line in out.splitlines() if line.startswith("web"))
    assert row.split()[1:5] == ["1", "1", "0", "0"]


def test_parts_and_workers_change_nothing(write, tmp_path):
    texts = [text for k in range(12) for text in (paragraph(k), MENU)]
    path = write(texts, ["c4_lines: {rules: tfds}"])
    config = load_corpus_config(path)
    whole = replace(config, output=f"{tmp_path}/whole", sources=(replace(config.sources[0], part_bytes=1 << 20),))
    many, one = (build(make_plan(c, take_inventory(c.sources, c.place)), LocalCluster(), lambda line: None)
                 for c in (config, whole))  # fmt: skip
    assert drops(many) == drops(one) == {"c4_lines": {"c4_lines.empty": 12}}


@pytest.mark.slow
def test_posts_that_c4s_line_rules_empty(shared_data, tmp_path):
    path = tmp_path / "c.yaml"
    head = f"name: c\noutput: {tmp_path}/c\nsources:\n"
    root = shared_data / "prose" / "forum_20news.jsonl.gz"
    path.write_text(
        f"{head}  - {{name: web, root: {root}, format: jsonl}}\nsteps:\n  - c4_lines: {{rules: datatrove}}\n"
    )
    built(path)
    manifest = load_corpus(tmp_path / "c")
    row = manifest.funnel[0]
    corpus = open_corpus(tmp_path / "c")
    kept = blank = 0
    for part in corpus.parts():
        table = part.table(("drop", "edited_text"))
        left = [not text.strip() for text in table["edited_text"].to_pylist()]
        kept += sum(1 for rule in table["drop"].to_pylist() if rule is None)
        blank += sum(left)
        assert left == [rule == "c4_lines.empty" for rule in table["drop"].to_pylist()]
    assert row["dropped"] == {"c4_lines.empty": blank}
    assert row["documents_out"] == kept
