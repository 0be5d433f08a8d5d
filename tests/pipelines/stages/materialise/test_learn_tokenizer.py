"""Tokenizer training and encoding in builds: shares, several tokenizers over the same documents, and lost
tokenizers.
"""

import json
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from gristmill.errors import UserError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus, load_step
from pipelines.contracts.shard_set import open_shard
from pipelines.kernels.text.segment import sentence_starts
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.published import add_published_files
from pipelines.stages.materialise.learn_tokenizer import LearnTokenizer, SampleCell, allot, weigh
from tokenizer.encode import Encoder
from tokenizer.kinds.train import train
from tokenizer.vocabulary.specials import SPECIAL_IDS, SPECIALS

LANGUAGES = {
    "en": "The river runs past the old mill and turns its wheel. People came from the whole valley to buy their flour there. ",
    "fr": "La rivière coule près du vieux moulin et fait tourner sa roue. Les gens venaient de loin pour acheter leur farine. ",
    "ru": "Река течёт мимо старой мельницы и вращает её колесо. Люди приходили со всей долины, чтобы купить здесь муку. ",
}


@pytest.fixture
def corpus(tmp_path):
    for name, texts in {
        "plain": [LANGUAGES["en"] * 3 + f"Number {n}." for n in range(40)],
        "mixed": [text * 2 + f"Number {n}." for n in range(6) for text in LANGUAGES.values()],
    }.items():
        (tmp_path / "raw" / name).mkdir(parents=True)
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
        (tmp_path / "raw" / name / "0.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def make(steps, say=lambda line: None):
        path = tmp_path / "corpus.yaml"
        path.write_text(f"""\
name: small
output: {tmp_path}/out
sources:
  - {{name: plain, root: {tmp_path}/raw/plain, format: jsonl, part_bytes: 8000}}
  - {{name: mixed, root: {tmp_path}/raw/mixed, format: jsonl, part_bytes: 4000, tokenizer_share: 0.5}}
steps:
{steps}""")
        config = load_corpus_config(path, ())
        plan = add_published_files(make_plan(config, take_inventory(config.sources, config.place)))
        return plan, build(plan, LocalCluster(), say)

    return make


def documents(root, corpus, name):
    """Return {id: (tokens, sentence starts or None)} for every document of a shard set."""
    found = {}
    for record in corpus.shard_sets[name].shards:
        shard = open_shard(root, record.file)
        begins = (
            [None] * len(shard.doc_ids)
            if shard.sentences is None
            else [shard.sentences[a:b] for a, b in pairwise(shard.sentence_offsets)]
        )
        for identifier, (a, b), sentences in zip(
            shard.doc_ids.to_pylist(), pairwise(shard.offsets), begins, strict=True
        ):
            found[identifier] = shard.tokens[a:b], sentences
    return found


def stored_texts(root):
    tables = [part.table(("id", "text")) for part in open_corpus(root).parts()]
    return {row["id"]: row["text"] for table in tables for row in table.to_pylist()}


SIX = """\
  - learn_tokenizer: {vocab_size: 500}
    name: byte_bpe
  - learn_tokenizer: {kind: wordpiece, vocab_size: 290, lowercase: true, coverage: 1}
    name: wordpiece
  - learn_tokenizer: {kind: unigram, vocab_size: 230, coverage: 1}
    name: unigram
  - learn_tokenizer: {kind: bpe, vocab_size: 300, coverage: 1}
    name: bpe
  - learn_tokenizer: {kind: bytes}
    name: bytes
  - learn_tokenizer: {kind: characters, unknown: error}
    name: characters
""" + "".join(
    f"  - shards: {{tokenizer: {kind}, sentences: true, validation_share: 0.2}}\n    name: for_{kind}\n"
    for kind in ("byte_bpe", "wordpiece", "unigram", "bpe", "bytes", "characters")
)


@pytest.mark.long
def test_several_tokenizers_encode_the_same_documents(corpus, tmp_path):
    _, built = corpus(SIX)
    root = tmp_path / "out"
    kinds = ("byte_bpe", "wordpiece", "unigram", "bpe", "bytes", "characters")
    assert set(built.shard_sets) == {f"for_{kind}" for kind in kinds}
    texts = stored_texts(root)
    for kind in kinds:
        shard_set = built.shard_sets[f"for_{kind}"]
        assert (shard_set.tokenizer.kind, shard_set.tokenizer.specials) == (kind, SPECIAL_IDS)
        assert sum(shard.text_bytes for shard in shard_set.shards) == sum(len(t.encode()) for t in texts.values())
        encoder = Encoder.load(str(root / shard_set.tokenizer.path))
        found = documents(root, built, f"for_{kind}")
        assert set(found) == set(texts)
        for identifier, (tokens, sentences) in found.items():
            text = pa.array([texts[identifier]], pa.large_string())
            np.testing.assert_array_equal(tokens, encoder.encode(text)[0])
            assert tokens.min() >= len(SPECIALS) or kind in ("wordpiece", "unigram")
            data = texts[identifier].encode()
            places = sentence_starts(text)[1].tolist()
            assert len(sentences) == len(places) > 3
            alone = [data[a:b].decode() for a, b in pairwise([*places, len(data)])]
            for (start, stop), sentence in zip(pairwise([*sentences, len(tokens)]), alone, strict=True):
                expected = encoder.decode(encoder.encode(pa.array([sentence], pa.large_string()))[0])
                assert encoder.decode(tokens[start:stop]).strip() == expected.strip()
    by_split = [{(s.source, s.split): s.documents for s in built.shard_sets[f"for_{kind}"].shards} for kind in kinds]
    assert all(split == by_split[0] for split in by_split)


@pytest.mark.long
def test_a_trainer_reads_the_configured_shard_set(corpus, tmp_path):
    from trainers.data.packed_corpus import open_corpus as open_for_training

    corpus(SIX)
    for kind in ("wordpiece", "bytes"):
        assert open_for_training((str(tmp_path / "out"),), f"for_{kind}").tokenizer.kind == kind


WORDPIECE = """\
  - learn_tokenizer: {kind: wordpiece, vocab_size: 290, coverage: 1}
  - shards: {tokenizer: learn_tokenizer, validation_share: 0}
"""


def lose_tokenizer(root):
    (directory,) = root.glob("learn_tokenizer-*")
    shutil.rmtree(directory)


def test_what_is_made_with_an_unrepeatable_tokenizer_depends_on_its_checksum(corpus, tmp_path):
    root = tmp_path / "out"
    plan, first = corpus(WORDPIECE)
    again, second = corpus(WORDPIECE)
    assert first == second
    assert again.step("shards").fingerprint != plan.step("shards").fingerprint  # known once it is trained
    assert load_step(root, again.step("shards").directory) is not None
    assert load_step(root, plan.step("shards").directory) is None
    identity = again.step("shards").identity["inputs"]["learn_tokenizer files"]
    tokenizer = first.shard_sets["shards"].tokenizer
    assert identity == [f"{tokenizer.xxh3_128[:12]}/tokenizer.json {tokenizer.xxh3_128}"]


@pytest.mark.long
def test_a_lost_tokenizer_is_trained_anew_and_its_shards_too(corpus, tmp_path):
    """Once a tokenizer is lost, every shard is encoded again with the new tokenizer, and no old shard is
    reused.
    """
    root = tmp_path / "out"
    _, first = corpus(WORDPIECE)
    before = first.shard_sets["shards"]
    lose_tokenizer(root)
    _, second = corpus(WORDPIECE)
    after = second.shard_sets["shards"]
    if after.tokenizer.xxh3_128 == before.tokenizer.xxh3_128:
        pytest.skip("the library has happened to learn the same vocabulary twice")
    assert {shard.path for shard in before.shards}.isdisjoint(shard.path for shard in after.shards)
    assert second.fingerprint != first.fingerprint
    encoder = Encoder.load(str(root / after.tokenizer.path))
    texts = stored_texts(root)
    for identifier, (tokens, _) in documents(root, second, "shards").items():
        np.testing.assert_array_equal(tokens, encoder.encode(pa.array([texts[identifier]], pa.large_string()))[0])


def test_half_made_shards_of_a_lost_tokenizer_are_not_taken_up(corpus, tmp_path, monkeypatch):
    import pipelines.stages.materialise.shards as stage

    root = tmp_path / "out"
    real, seen = stage._shard, []

    def dying(task, docs, split, group):
        if len(seen) == 2:
            raise UserError("the machine died")
        seen.append(task.unit)
        return real(task, docs, split, group)

    monkeypatch.setattr(stage, "_shard", dying)
    steps = WORDPIECE.replace("validation_share: 0", "validation_share: 0, shard_bytes: 1")
    with pytest.raises(UserError, match="died"):
        corpus(steps)
    lost = json.loads(next(root.glob("learn_tokenizer-*/manifest.json")).read_text())["files"][0]["xxh3_128"]
    lose_tokenizer(root)
    monkeypatch.setattr(stage, "_shard", real)
    _, built = corpus(steps)
    shard_set = built.shard_sets["shards"]
    if shard_set.tokenizer.xxh3_128 == lost:
        pytest.skip("the library has happened to learn the same vocabulary twice")
    assert len(shard_set.shards) > 2
    encoder = Encoder.load(str(root / shard_set.tokenizer.path))
    texts = stored_texts(root)
    found = documents(root, built, "shards")
    assert len(found) == len(texts)
    for identifier, (tokens, _) in found.items():
        np.testing.assert_array_equal(tokens, encoder.encode(pa.array([texts[identifier]], pa.large_string()))[0])


def test_a_plan_from_before_the_loss_publishes_no_stale_shards(corpus, tmp_path):
    root = tmp_path / "out"
    plan, _ = corpus(WORDPIECE)
    plan = add_published_files(plan)
    assert plan.files
    lose_tokenizer(root)
    built = build(plan, LocalCluster(), lambda line: None)
    recorded = built.shard_sets["shards"].tokenizer
    (directory,) = root.glob("learn_tokenizer-*")
    assert json.loads((directory / "manifest.json").read_text())["files"][0]["xxh3_128"] == recorded.xxh3_128
    steps = {step["step"]: step["fingerprint"] for step in built.steps}
    current = add_published_files(make_plan(plan.config, plan.inventories))
    assert steps == {step.label: step.fingerprint for step in current.steps}
    assert load_corpus(root) == built


def test_a_lost_reproducible_tokenizer_repeats_only_its_training(corpus, tmp_path):
    steps = WORDPIECE.replace("wordpiece", "bpe").replace("290", "300")
    _, first = corpus(steps)
    lose_tokenizer(tmp_path / "out")
    _, second = corpus(steps)
    assert first == second


# Shares.


def cells(**sizes):
    return {SampleCell(*name.split("__")): size for name, size in sizes.items()}


def test_shares_without_temperature_know_no_sizes():
    kept = cells(a__a=1000, b__b=10, c__c=0)
    assert weigh(kept, {"a": 1.0, "b": 0.5, "c": 1.0}) == cells(a__a=1.0, b__b=0.5, c__c=0.0)


@pytest.mark.parametrize(("temperature", "ratio"), [(1.0, 1000.0), (2.0, 1000**0.5), (1 / 0.3, 1000**0.3)])
def test_a_temperature_flattens_sizes(temperature, ratio):
    """With temperature 1 / 0.3, shares are proportional to size ** 0.3, as in XLM-R and mT5."""
    weights = weigh(cells(en__en=10**6, sw__sw=10**3), {"en": 1.0, "sw": 1.0}, temperature)
    assert weights[SampleCell("en", "en")] / weights[SampleCell("sw", "sw")] == pytest.approx(ratio)


def test_languages_are_divided_among_their_sources():
    kept = cells(en__web=900, en__wiki=100, de__wiki=100)
    weights = weigh(kept, {"web": 1.0, "wiki": 2.0})
    assert weights == pytest.approx(cells(en__web=0.9, en__wiki=0.2, de__wiki=2.0))
    weights = weigh(kept, {"web": 1.0, "wiki": 1.0}, 2.0)
    english = weights[SampleCell("en", "web")] + weights[SampleCell("en", "wiki")]
    assert english / weights[SampleCell("de", "wiki")] == pytest.approx(10**0.5)


def test_what_one_cannot_give_goes_to_the_others():
    weights, kept = cells(a__a=1.0, b__b=1.0, c__c=2.0), cells(a__a=1000, b__b=10, c__c=1000)
    assert allot(310, weights, kept) == cells(a__a=100, b__b=10, c__c=200)
    assert allot(10**6, weights, kept) == kept


def test_languages_get_their_shares(corpus, tmp_path):
    steps = """\
  - language: {}
  - learn_tokenizer: {kind: bpe, vocab_size: 250, sample_bytes: 3000, per: language, coverage: 1}
"""
    plan, _ = corpus(steps)
    facts = load_step(tmp_path / "out", plan.step("learn_tokenizer").directory).facts
    wanted = facts["sample_bytes_wanted"]
    per_language = {code: sum(n for name, n in wanted.items() if name.split("/")[0] == code) for code in LANGUAGES}
    # English: 40 documents of one source whole, 6 of the other at half its share; the others at half a share.
    size = {code: len(text.encode()) for code, text in LANGUAGES.items()}
    assert set(per_language) == set(size)
    assert per_language["fr"] == pytest.approx(per_language["ru"], rel=0.02)
    assert 1.5 < per_language["en"] / per_language["fr"] < 2
    assert sum(wanted.values()) == pytest.approx(3000, abs=5)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"kind": "bytes", "vocab_size": 500}, "vocab_size: got 500, but bytes always has 384"),
        ({"kind": "characters", "vocab_size": 500}, "vocab_size: got 500, but characters takes that of the text"),
        ({"unknown": "error"}, "unknown: got 'error', which is for characters"),
        ({"vocab_size": 383}, "expected at least 384"),
        ({"vocab_size": 10**11}, "expected at most 16,777,216"),
        ({"kind": "unigram", "vocab_size": 100}, "expected at least 129"),
        ({"lowercase": True}, "lowercase: got true, which byte_bpe does not support"),
        ({"coverage": 0.0}, "coverage: got 0.0"),
        ({"temperature": 0.3}, "temperature: got 0.3, expected 1"),
        ({"kind": "unigram", "grow": "x"}, "grow: got 'x', but only byte_bpe grows"),
    ],
)
def test_wrong_knobs_are_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        replace(LearnTokenizer(), **knobs).check()


# Tokenizers from elsewhere.


@pytest.mark.long
def test_a_hugging_face_tokenizer_is_taken_as_it_is(corpus, tmp_path, shared_data):
    folder = shared_data / "models" / "bert_uncased"
    _, built = corpus(
        f"  - shards: {{tokenizer: {folder}, sentences: true}}\n    name: as_it_is\n"
        f"  - shards: {{tokenizer: {folder}/tokenizer.json, add_reserved: [all]}}\n    name: completed\n"
    )
    root = tmp_path / "out"
    plain, completed = built.shard_sets["as_it_is"].tokenizer, built.shard_sets["completed"].tokenizer
    assert (root / plain.path).read_bytes() == (folder / "tokenizer.json").read_bytes()
    assert (plain.kind, plain.vocab_size, plain.specials["<cls>"], plain.specials["<mask>"]) == (
        "wordpiece",
        30522,
        101,
        103,
    )
    assert "<bos>" not in plain.specials
    assert set(SPECIALS) <= set(completed.specials)
    assert {name: completed.specials[name] for name in plain.specials} == plain.specials
    assert completed.vocab_size == 30522 + len(set(SPECIALS) - set(plain.specials))
    one, other = (documents(root, built, name) for name in ("as_it_is", "completed"))
    for identifier, (tokens, _) in one.items():
        np.testing.assert_array_equal(tokens, other[identifier][0])


@pytest.mark.long
def test_a_tokenizer_grows_with_the_text_of_a_corpus(corpus, tmp_path):
    """The parent tokenizer is identified by its content, not by its path, and its vocabulary is kept."""
    (tmp_path / "parent").mkdir()
    parent = train("byte_bpe", LANGUAGES.values(), 390)
    (tmp_path / "parent/tokenizer.json").write_bytes(parent)
    steps = "  - learn_tokenizer: {{grow: {}, vocab_size: 420}}\n  - shards: {{tokenizer: learn_tokenizer}}\n"
    _, built = corpus(steps.format(tmp_path / "parent"))
    record = built.shard_sets["shards"].tokenizer
    vocabulary = json.loads((tmp_path / "out" / record.path).read_bytes())["model"]["vocab"]
    before = json.loads(parent)["model"]["vocab"]
    assert record.vocab_size == len(vocabulary) == 420
    assert {token: vocabulary[token] for token in before} == before
    grown = Encoder.load(str(tmp_path / "out" / record.path))
    for identifier, (tokens, _) in documents(tmp_path / "out", built, "shards").items():
        assert grown.decode(tokens) == stored_texts(tmp_path / "out")[identifier]
    shutil.copytree(tmp_path / "parent", tmp_path / "elsewhere")
    _, again = corpus(steps.format(tmp_path / "elsewhere/tokenizer.json"))
    assert again.fingerprint == built.fingerprint
    (tmp_path / "parent/tokenizer.json").write_bytes(train("byte_bpe", LANGUAGES.values(), 391))
    _, other = corpus(steps.format(tmp_path / "parent"))
    assert other.fingerprint != built.fingerprint
    for path, message in (
        (tmp_path / "nowhere", r"learn_tokenizer: grow: no file .*/nowhere/tokenizer\.json"),
        (tmp_path / "raw", r"learn_tokenizer: grow: no file"),
        ("s3://bucket/tokenizer.json", r"learn_tokenizer\.grow: got a URL"),
    ):
        with pytest.raises(Exception, match=message):
            corpus(steps.format(path))


@pytest.mark.parametrize(
    "steps",
    [
        "  - learn_tokenizer: {grow: PATH, vocab_size: 420}\n  - shards: {tokenizer: learn_tokenizer}\n",
        "  - shards: {tokenizer: PATH/}\n",
    ],
)
def test_a_tokenizer_that_has_changed_since_the_build_was_planned_is_refused(corpus, tmp_path, steps):
    file = tmp_path / "parent/tokenizer.json"
    file.parent.mkdir()
    file.write_bytes(train("byte_bpe", LANGUAGES.values(), 390))

    def changed(line):
        if "read" in line:
            file.write_bytes(train("byte_bpe", LANGUAGES.values(), 391))

    with pytest.raises(UserError, match=r"parent/tokenizer\.json changed since the build was planned"):
        corpus(steps.replace("PATH", str(file.parent)), changed)


def test_a_directory_without_a_tokenizer_says_how_to_write_one(corpus, tmp_path):
    with pytest.raises(UserError, match=r"no file .*/tokenizer\.json; transformers' AutoTokenizer"):
        corpus(f"  - shards: {{tokenizer: {tmp_path}/}}\n")


def test_a_tokenizer_that_cannot_encode_a_text_is_named_with_its_step(corpus, tmp_path):
    """The tokenizer's merges produce a special token. Of two shard steps, only the second uses this
    tokenizer, and the error names that step.
    """
    definition = json.loads(train("byte_bpe", LANGUAGES.values(), 386))
    word = "".join(definition["model"]["merges"][-1])
    number = definition["model"]["vocab"][word]
    definition["added_tokens"].append({**definition["added_tokens"][0], "content": word, "id": number})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(UserError, match=r"^second-\w+: .*tokenizer\.json.*the reserved") as error:
        corpus(
            "  - learn_tokenizer: {kind: bytes}\n  - shards: {tokenizer: learn_tokenizer}\n    name: first\n"
            f"  - shards: {{tokenizer: {tmp_path}/tokenizer.json}}\n    name: second\n"
        )
    assert "ValueError" not in str(error.value)


def test_reserved_tokens_are_not_added_to_our_own(corpus):
    with pytest.raises(
        Exception, match=r"add_reserved: got \['all'\], but a tokenizer trained here has all reserved tokens"
    ):
        corpus("  - learn_tokenizer: {kind: bytes}\n  - shards: {tokenizer: learn_tokenizer, add_reserved: [all]}\n")


def test_a_kind_that_is_slow_to_train_says_so():
    assert "seconds of one core for every MB" in LearnTokenizer(kind="unigram", vocab_size=4096).notice()
    assert LearnTokenizer(vocab_size=4096).notice() == ""
