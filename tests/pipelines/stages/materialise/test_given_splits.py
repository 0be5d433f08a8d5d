"""Splits defined by the sources (for a whole source, by a field, or by files of ids), and what a build
refuses or protects.
"""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from gristmill.errors import ConfigError, UserError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.commands.show_plan import show_plan
from pipelines.contracts.given_split import IdSplit
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus, load_step
from pipelines.contracts.shard_set import open_shard
from pipelines.erasure.forget import forget
from pipelines.export.text_export import export_corpus
from pipelines.planning.corpus import load_corpus_config, plain_config
from pipelines.planning.forecast import Forecast
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from tests.conftest import paragraph

SPLITS = ("train", "validation", "test")
STEPS = "  - text_hash: {}\n  - minhash_signatures: {}\n  - dedup_exact: {}\n  - dedup_minhash: {}\n"
TOKENS = "  - learn_tokenizer: {kind: characters}\n  - shards: {tokenizer: learn_tokenizer, validation_share: 0.2}\n"
# Records 0 to 19 train, 20 to 24 validate, 25 to 29 test. 20 copies 3, 25 nearly copies 4, 21 and 22 are equal, 5 and 6 too.
TEXTS = [paragraph(number) for number in range(30)]
TEXTS[20], TEXTS[22], TEXTS[6] = TEXTS[3], TEXTS[21], TEXTS[5]
TEXTS[25] = TEXTS[4].replace("stands", "stood", 1) + " The end."
LABELS = ["train"] * 20 + ["dev"] * 5 + ["held"] * 5


@pytest.fixture
def corpus(tmp_path):
    records = [
        json.dumps({"text": text, "subset": label, "key": number})
        for number, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))
    ]
    (tmp_path / "all.jsonl").write_text("\n".join(records) + "\n")
    for name, rows in {"train": records[:20], "validation": records[20:25], "test": records[25:]}.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")

    def plan(sources, steps=STEPS + TOKENS, name="out"):
        path = tmp_path / "corpus.yaml"
        path.write_text(
            f"name: c\noutput: {tmp_path}/{name}\nsources:\n{sources.format(root=tmp_path)}\nsteps:\n{steps}"
        )
        config = load_corpus_config(path)
        return make_plan(config, take_inventory(config.sources, config.place))

    def make(*arguments, **named):
        return build(plan(*arguments, **named), LocalCluster(), lambda line: None)

    make.plan, make.root = plan, tmp_path / "out"
    return make


def one_source(split):
    return f"  - {{{{name: web, root: {{root}}/all.jsonl, format: jsonl, part_bytes: 6000, split: {split}}}}}"


WHOLE = "\n".join(f"  - {{{{name: {n}_docs, root: {{root}}/{n}.jsonl, format: jsonl, split: {n}}}}}" for n in SPLITS)
FIELD = one_source("{{kind: field, field: subset, validation: [dev], test: [held]}}")
KEYS = one_source("{{kind: ids, field: key, validation: {root}/dev.txt, test: {root}/test.txt}}")
PRINTED = one_source("{{kind: ids, validation: {root}/dev.txt, test: {root}/test.txt}}")


def write_ids(folder, printed):
    form = "web/all.jsonl#{}" if printed else "{}"
    (folder / "dev.txt").write_text(
        "\n".join(form.format(n) for n in range(20, 25)), encoding="utf-8-sig"
    )  # as from Windows
    (folder / "test.txt").write_text("\n".join(form.format(n) for n in range(25, 30)) + "\n\n")


def by_split(root, manifest):
    found = {split: [] for split in SPLITS}
    texts = {
        row["id"]: row["text"] for part in open_corpus(root).parts() for row in part.table(("id", "text")).to_pylist()
    }
    (shards,) = manifest.shard_sets.values()
    for shard in shards.shards:
        found[shard.split] += [texts[each] for each in open_shard(root, shard.file).doc_ids.to_pylist()]
    return found


def test_ids_end_at_line_feeds_alone(tmp_path):
    (tmp_path / "dev.txt").write_bytes("a\x85b\r\nc\u2028d\n".encode())
    split = IdSplit("ids", str(tmp_path / "dev.txt"), field="key")
    keys = ("a\x85b", "c\u2028d", "a", "d")
    docs = pa.table({"id": [bytes(16)] * len(keys), "meta": [json.dumps({"key": key}) for key in keys]})
    assert split.label(docs, "web").to_pylist() == ["validation", "validation", "train", "train"]


def test_an_export_says_the_split_of_each_document(corpus, tmp_path):
    corpus(WHOLE + "\n  - {{name: web, root: {root}/all.jsonl, format: jsonl}}", TOKENS)
    export_corpus(corpus.root, tmp_path / "export", "parquet", None)
    rows = pa.concat_tables(map(parquet.read_table, sorted((tmp_path / "export" / "data").iterdir()))).to_pylist()
    assert {(row["source"], row["split"]) for row in rows} == {
        *((f"{name}_docs", name) for name in SPLITS),
        ("web", None),
    }


@pytest.mark.long
@pytest.mark.parametrize("sources", [WHOLE, FIELD, KEYS, PRINTED], ids=["whole", "field", "keys", "printed"])
def test_documents_are_in_their_published_split(corpus, tmp_path, sources):
    """Deduplication drops copies only from the training split; held-out documents are kept even if they are
    copies.
    """
    write_ids(tmp_path, sources is PRINTED)
    manifest = corpus(sources)
    found = by_split(corpus.root, manifest)
    assert sorted(found["validation"]) == sorted(TEXTS[20:25])
    assert sorted(found["test"]) == sorted(TEXTS[25:])
    assert sorted(found["train"]) == sorted(text for n, text in enumerate(TEXTS[:20]) if n != 6)
    counts = {}
    for facts in manifest.sources.values():
        counts |= facts["splits"]
    assert counts == {
        "train": {"documents": 20, "kept": 19},
        "validation": {"documents": 5, "kept": 5},
        "test": {"documents": 5, "kept": 5},
    }
    directory = next(step["directory"] for step in manifest.steps if step["stage"] == "shards")
    overlap = {}
    for facts in load_step(corpus.root, directory).facts["overlap"].values():
        overlap |= {name: value for name, value in facts.items() if value}
    assert overlap == {"validation": 5, "near_copies_in_training": 1, "test": 5, "test_near_copies_in_training": 1}


def test_the_tokenizer_learns_from_training_documents_alone(corpus, tmp_path):
    lines = (tmp_path / "validation.jsonl").read_text().splitlines()
    (tmp_path / "validation.jsonl").write_text("\n".join([json.dumps({"text": "☃" + TEXTS[22]}), *lines]))
    manifest = corpus(WHOLE, TOKENS)
    (shards,) = manifest.shard_sets.values()
    assert shards.tokenizer.vocab_size == 128 + len(set("".join(TEXTS[:20])))
    with pytest.raises(UserError, match=r"document 0 .*U\+2603, which is not in the vocabulary"):
        corpus(WHOLE, TOKENS.replace("characters", "characters, unknown: error"), name="strict")


def test_sources_without_a_split_are_split_by_hash_beside_the_others(corpus):
    validation = WHOLE.splitlines()[1]
    manifest = corpus("  - {{name: web, root: {root}/all.jsonl, format: jsonl}}\n" + validation, TOKENS)
    (shards,) = manifest.shard_sets.values()
    found = {(shard.source, shard.split): shard.documents for shard in shards.shards}
    assert found["validation_docs", "validation"] == 5
    assert ("validation_docs", "train") not in found
    assert 0 < found["web", "validation"] < 15
    assert set(manifest.sources["web"]) & {"splits"} == set()


def test_only_what_reads_splits_depends_on_them(corpus, tmp_path):
    write_ids(tmp_path, True)
    hashed = {step.label: step.fingerprint for step in corpus.plan(one_source("null")).steps}
    given = {step.label: step.fingerprint for step in corpus.plan(PRINTED).steps}
    same = {label for label in hashed if hashed[label] == given[label]}
    assert same == {"read.web", "text_hash.web", "minhash_signatures.web"}
    (tmp_path / "dev.txt").write_text("web/all.jsonl#20\n")
    assert corpus.plan(PRINTED).step("dedup_exact").fingerprint != given["dedup_exact"]
    assert "split" not in plain_config(corpus.plan(one_source("null")).config)["sources"][0]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("valid", "split.kind: got 'valid', expected one of train, validation, test"),
        ("{{kind: field, field: subset}}", "split.validation: got no value"),
        ("{{kind: field, field: subset, validation: [a], test: [a]}}", "test: 'a' is also a value of validation"),
        ("{{kind: field, field: text, validation: [a]}}", "split: field: got 'text'"),
        ("{{kind: ids}}", "validation: got no file"),
        ("{{kind: ids, test: {root}/none.txt}}", "source web: split.test: no file .*none.txt"),
        ("{{kind: ids, test: {root}/empty.txt}}", "split.test: .*empty.txt: holds no id"),
        ("{{kind: ids, test: {root}/other.txt}}", "the id 'code/a#1' is of source 'code', expected ids of 'web'"),
        ("{{kind: ids, test: {root}/words.txt}}", "words.txt: 'a word': not a document id"),
        (
            "{{kind: ids, validation: {root}/dev.txt, test: {root}/dev.txt}}",
            "the id 'web/all.jsonl#20' is also in validation",
        ),
    ],
)
def test_a_wrong_split_is_refused_before_anything_is_read(corpus, tmp_path, split, message):
    write_ids(tmp_path, True)
    for name, content in {"empty": "\n", "other": "code/a#1", "words": "a word"}.items():
        (tmp_path / f"{name}.txt").write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        corpus.plan(one_source(split))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("split", "steps", "message"),
    [
        ("{{kind: field, field: subset, test: [dve]}}", TOKENS, "source web: no document is in its split test"),
        ("{{kind: field, field: part, test: [a]}}", TOKENS, "source web: split: the record .* has no field 'part'"),
        (
            "{{kind: field, field: key, validation: ['25']}}",
            "  - quality_signals: {}\n  - filter: [{signal: word_count, at_most: 90}]\n" + TOKENS,
            "source web: all 1 documents of its split validation were dropped",
        ),
    ],
)
def test_a_split_without_documents_stops_the_build(corpus, split, steps, message):
    with pytest.raises(UserError, match=message) as caught:
        corpus(one_source(split), steps)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_near_copies_of_held_out_documents_are_dropped_from_training_if_asked(corpus, capsys):
    config = corpus.plan(FIELD).config
    corpus(FIELD)
    show_plan(corpus.plan(FIELD), config.place, Forecast({}, (), 1))
    assert "1 of 5 test documents of web have a near-copy in training" in capsys.readouterr().out
    asked = STEPS.replace("  - dedup_exact", "  - dedup_held_out: {}\n  - dedup_exact")
    manifest = corpus(FIELD, asked + TOKENS, name="asked")
    (step,) = (each for each in manifest.steps if each["stage"] == "dedup_held_out")
    assert load_step(corpus.root.parent / "asked", step["directory"]).facts == {"dropped": 2}
    assert manifest.sources["web"]["splits"]["train"]["kept"] == 17
    assert [row["dropped"] for row in manifest.funnel if row["step"] == "dedup_held_out"] == [{"dedup_held_out": 2}]
    with pytest.raises(ConfigError, match="step dedup_held_out: none of its sources gives a `split`"):
        corpus.plan(one_source("null"), asked + TOKENS)
    with pytest.raises(ConfigError, match="after the deduplication step dedup_minhash"):
        corpus.plan(FIELD, STEPS + "  - dedup_held_out: {}\n" + TOKENS)


def test_a_takedown_counts_splits_again_and_needs_no_lists(corpus, tmp_path):
    write_ids(tmp_path, True)
    corpus(PRINTED, TOKENS)
    forget(corpus.root, ["web/all.jsonl#21"], [])
    assert load_corpus(corpus.root).sources["web"]["splits"]["validation"] == {"documents": 4, "kept": 4}
    for name in ("dev", "test"):
        (tmp_path / f"{name}.txt").unlink()
    forget(corpus.root, ["web/all.jsonl#22"], [])
    assert "splits" not in load_corpus(corpus.root).sources["web"]


def test_a_list_that_changed_since_the_build_is_refused(corpus, tmp_path):
    """Its splits would be others than those of the shards."""
    write_ids(tmp_path, True)
    corpus(PRINTED, TOKENS)
    parts = list(open_corpus(corpus.root).parts())
    assert set(pa.chunked_array([part.splits() for part in parts]).to_pylist()) == set(SPLITS)
    (tmp_path / "dev.txt").write_text("web/all.jsonl#1\n")
    message = (
        r"source web: split.validation: .*dev.txt has changed since the corpus was built; restore it or, if the "
        r"change was intended \(ids of forgotten documents removed, for example\), build again"
    )
    for part in open_corpus(corpus.root).parts():
        with pytest.raises(ConfigError, match=message):
            part.splits()
    with pytest.raises(ConfigError, match=message):
        export_corpus(corpus.root, tmp_path / "export", "parquet", None)
    forget(corpus.root, ["web/all.jsonl#22"], [])
    assert "splits" not in load_corpus(corpus.root).sources["web"]


def test_equal_texts_stay_together_if_only_some_sources_have_hashes(corpus):
    sources = "\n".join(f"  - {{{{name: {name}, root: {{root}}/all.jsonl, format: jsonl}}}}" for name in "ab")
    steps = "  - text_hash: {}\n    sources: [a]\n" + TOKENS.replace("0.2", "0.5, split_by: content")
    found = by_split(corpus.root, corpus(sources, steps))
    assert found["train"]
    assert found["validation"]
    assert not set(found["train"]) & set(found["validation"])


def test_spans_of_held_out_documents_stay(corpus):
    manifest = corpus(FIELD, "  - dedup_spans: {unit: sentence, min_left_words: 0}\n" + TOKENS)
    assert manifest.sources["web"]["splits"]["validation"] == {"documents": 5, "kept": 5}
    for part in open_corpus(corpus.root).parts():
        held_out = pa.array(part.held_out())
        table = part.table(("text", "edited_text")).filter(held_out)
        assert table["text"].to_pylist() == table["edited_text"].to_pylist()
    assert manifest.funnel[0]["bytes_out"] < manifest.funnel[0]["bytes_in"]
