"""The `target` column marks where the second text of each pair begins, with every kind of tokenizer, after
edits and takedowns.
"""

import json
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import ConfigError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.shard_set import open_shard
from pipelines.erasure.forget import forget
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.published import add_published_files
from pipelines.stages.decide.mojibake import Mojibake
from pipelines.stages.materialise.optional_columns import encode_pairs, sides_of, without_borders
from tokenizer.encode import Encoder
from tokenizer.kinds.train import train

KINDS = {
    "byte_bpe": "{vocab_size: 420}",
    "wordpiece": "{kind: wordpiece, vocab_size: 230, lowercase: true, coverage: 1}",
    "unigram": "{kind: unigram, vocab_size: 180, coverage: 1}",
    "bytes": "{kind: bytes}",
}
RECORDS = [
    *({"en": f"The mill {n} stands there. It is old.", "de": f"Die Mühle {n} steht dort. Sie ist alt."} for n in range(20)),
    {"en": "Nobody wrote the other side."},
    {"de": "Niemand schrieb die andere Seite."},
    {"en": "one\u2029mark", "de": "\u2029zwei"},
]  # fmt: skip


def made(directory, options, kinds=("byte_bpe",), steps="", target="de"):
    (directory / "raw").mkdir(exist_ok=True)
    lines = [json.dumps(record) for record in RECORDS]
    (directory / "raw" / "0.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    steps += "".join(f"  - learn_tokenizer: {KINDS[kind]}\n    name: {kind}\n" for kind in kinds) + "".join(
        f"  - shards: {{tokenizer: {kind}, validation_share: 0.2{options}}}\n    name: for_{kind}\n" for kind in kinds
    )
    text = f"{{fields: [en], target: {target}}}" if target else "{fields: [en, de]}"
    path = directory / "corpus.yaml"
    path.write_text(
        f"name: small\noutput: {directory}/out\nsources:\n"
        f"  - {{name: a, root: {directory}/raw, format: jsonl, text: {text}}}\nsteps:\n{steps}"
    )
    config = load_corpus_config(path, ())
    plan = add_published_files(make_plan(config, take_inventory(config.sources, config.place)))
    return build(plan, LocalCluster(), lambda line: None)


def documents(root, shard_set):
    """Return {record number: (tokens, target, number of bytes, sentences, spans)} of all documents, with None
    for columns that the shard lacks.
    """
    numbers = {row["id"]: int.from_bytes(row["id"][8:], "big") for p in open_corpus(root).parts()
               for row in p.table(("id",)).to_pylist()}  # fmt: skip
    found = {}
    for record in shard_set.shards:
        shard = open_shard(root, record.file)
        assert (shard.targets is not None) == ("target" in shard_set.columns)
        if shard.targets is not None:
            assert record.pairs == (shard.targets >= 0).sum()
        for i, (a, b) in enumerate(pairwise(shard.offsets)):
            lists = [
                None if values is None else values[offsets[i] : offsets[i + 1]].tolist()
                for values, offsets in ((shard.sentences, shard.sentence_offsets), (shard.spans, shard.span_offsets))
            ]
            at = None if shard.targets is None else int(shard.targets[i])
            found[numbers[shard.doc_ids[i].as_py()]] = (shard.tokens[a:b].tolist(), at, int(shard.n_bytes[i]), *lists)
    return found


def alone(encoder, text):
    return encoder.encode(pa.array([text], pa.large_string()))[0].tolist()


@pytest.mark.long
def test_both_sides_are_encoded_by_themselves_with_every_kind_of_tokenizer(tmp_path):
    built, root = made(tmp_path, ", sentences: true, spans: [names], target: true", KINDS), tmp_path / "out"
    for kind in KINDS:
        shard_set = built.shard_sets[f"for_{kind}"]
        assert shard_set.columns == ("sentences", "spans", "target")
        encoder, found = Encoder.load(str(root / shard_set.tokenizer.path)), documents(root, shard_set)
        assert sum(record.pairs for record in shard_set.shards) == 21
        for number, record in enumerate(RECORDS):
            tokens, at, size, sentences, spans = found[number]
            source, target = (record.get(side, "").replace("\u2029", "\n") for side in ("en", "de"))
            halves = [alone(encoder, side) for side in (source, target)]
            assert tokens == halves[0] + halves[1]
            assert at == (len(halves[0]) if source and target else -1)
            assert size == len((source + target).encode())
            if number < 20:
                assert len(sentences) == 4
                assert at in sentences
                second = encoder.decode(tokens[at:])
                assert any(second.startswith(word) for word in ("Die", "die"))
            for first, end, _ in spans:
                assert not first < at < end  # no span has tokens of both sides


@pytest.mark.long
def test_without_the_option_a_line_feed_is_between_the_sides(tmp_path):
    root, built = tmp_path / "out", made(tmp_path, "")
    shard_set = built.shard_sets["for_byte_bpe"]
    assert shard_set.columns == ()
    encoder, found = Encoder.load(str(root / shard_set.tokenizer.path)), documents(root, shard_set)
    for number, record in enumerate(RECORDS):
        sides = [record[side].replace("\u2029", "\n") for side in ("en", "de") if side in record]
        assert found[number][:3] == (alone(encoder, "\n".join(sides)), None, len("\n".join(sides).encode()))
    assert "\u2029" not in (root / shard_set.tokenizer.path).read_text(encoding="utf-8")


@pytest.mark.long
def test_shards_of_other_sources_are_the_same_with_the_column_and_without_it(tmp_path):
    root = tmp_path / "out"
    without = made(tmp_path, ", sentences: true", target="").shard_sets["for_byte_bpe"]
    before = documents(root, without)
    wanted = made(tmp_path, ", sentences: true, target: true", target="").shard_sets["for_byte_bpe"]
    after = documents(root, wanted)
    assert {number: (*each[:1], *each[2:]) for number, each in after.items()} == {
        number: (*each[:1], *each[2:]) for number, each in before.items()
    }
    assert {each[1] for each in after.values()} == {-1}
    assert [record.pairs for record in wanted.shards] == [0] * len(wanted.shards)


@pytest.mark.long
def test_edits_that_remove_a_side_or_the_border_leave_a_document_without_a_target(tmp_path):
    rules = [
        {"name": "seventh", "pattern": "The mill 7 .*", "replacement": ""},
        {"name": "border", "pattern": "(?s)\\n.Die Mühle 8", "replacement": ""},
    ]
    cut = f"  - patterns: {json.dumps(rules)}\n"
    root, built = tmp_path / "out", made(tmp_path, ", target: true", steps=cut)
    shard_set = built.shard_sets["for_byte_bpe"]
    found, encoder = documents(root, shard_set), Encoder.load(str(root / shard_set.tokenizer.path))
    assert found[7][1] == -1
    assert encoder.decode(found[7][0]).strip() == "Die Mühle 7 steht dort. Sie ist alt."
    assert found[8][1] == -1
    assert encoder.decode(found[8][0]) == "The mill 8 stands there. It is old. steht dort. Sie ist alt."
    assert found[9][1] > 0
    assert sum(record.pairs for record in shard_set.shards) == 19


@pytest.mark.long
def test_documents_keep_their_targets_if_another_one_is_forgotten(tmp_path):
    made(tmp_path, ", target: true")
    root = tmp_path / "out"

    def found():
        return documents(root, open_corpus(root).manifest.shard_sets["for_byte_bpe"])

    before = found()
    forget(root, ["a/0.jsonl#3"], [])
    after = found()
    assert after == {number: each for number, each in before.items() if number != 3}
    assert sum(record.pairs for record in open_corpus(root).manifest.shard_sets["for_byte_bpe"].shards) == 20


@pytest.fixture(scope="module")
def bytes_encoder(tmp_path_factory):
    file = tmp_path_factory.mktemp("bytes") / "tokenizer.json"
    file.write_bytes(train("bytes", [], None))
    return Encoder.load(str(file))


SIDES = st.text(st.sampled_from("ab \nÉ漢"), max_size=6)


@given(st.lists(st.tuples(SIDES, SIDES, st.integers(0, 3)), max_size=5))
def test_texts_are_divided_at_their_only_border(bytes_encoder, documents):
    texts = ["\n\u2029".join([source, *[target] * marks]) for source, target, marks in documents]
    array = pa.array(texts, pa.large_string())
    expected = []
    for (source, target, marks), text in zip(documents, texts, strict=True):
        expected += [source, target] if marks == 1 else [text.replace("\u2029", ""), ""]
    assert sides_of(array).to_pylist() == expected
    assert without_borders(array).to_pylist() == [text.replace("\u2029", "") for text in texts]
    made = encode_pairs(bytes_encoder, sides_of(array), False, ())
    for i, (source, target, marks) in enumerate(documents):
        pair = marks == 1 and source and target
        assert made.targets[i] == (len(source.encode()) if pair else -1)


def test_a_repair_of_mojibake_leaves_the_border():
    text = "The cafÃ© is old\n\u2029Das CafÃ© ist alt â€© ja"
    edits = Mojibake().annotate(pa.table({"text": pa.array([text], pa.large_string())}))["edits"].to_pylist()[0]
    data = text.encode()
    for edit in reversed(edits):
        data = data[: edit["start"]] + edit["replacement"].encode() + data[edit["end"] :]
    assert data.decode().count("\u2029") == 1
    assert data.decode().startswith("The café is old\n\u2029Das Café ist alt")


@pytest.mark.parametrize(
    ("target", "message"), [("en", "target: got 'en', which is a field of the source too"), ("[de]", "target: ")]
)
def test_wrong_targets_are_refused(tmp_path, target, message):
    with pytest.raises(ConfigError, match=message):
        made(tmp_path, "", target=target)
