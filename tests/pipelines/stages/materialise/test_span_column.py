"""The `spans` column: the dates and names found by patterns and an NER model, and the tokens that cover
them, with every kind of tokenizer.
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
from pipelines.contracts.shard_set import SPAN_TYPES, open_shard
from pipelines.erasure.forget import forget
from pipelines.kernels.text.dates_and_names import find_dates_and_names
from pipelines.kernels.text.segment import sentence_starts
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.published import add_published_files
from pipelines.stages.materialise.named_spans import entities_of, find_named_spans
from pipelines.stages.pii.name_finders import Named, NameFinder
from tokenizer.encode import Encoder


def found_spans(texts, types=SPAN_TYPES):
    text = pa.array(texts, pa.large_string())
    return find_dates_and_names(text, types, sentence_starts(text))


def found(*texts, types=SPAN_TYPES):
    spans = found_spans(texts, types)
    data = [text.encode() for text in texts]
    return [
        [
            (data[d][spans.begins[i] : spans.ends[i]].decode(), SPAN_TYPES[spans.types[i]])
            for i in range(spans.offsets[d], spans.offsets[d + 1])
        ]
        for d in range(len(texts))
    ]


def of(kind, text):
    return [span for span, its in found(text)[0] if its == kind]


@pytest.mark.parametrize(
    "date",
    [
        "July 1969", "July, 1969", "4 July 1969", "4th of July", "July 4", "July 4th, 1969", "Friday, 4 July 1969",
        "Friday, July 4, 1969", "Sept. 1969", "Sep 3", "1969-07-20", "1969", "1960s", "1914-1918", "1914–18",
    ],
)  # fmt: skip
def test_dates(date):
    assert of("dates", f"it was {date}.") == [date]
    assert of("dates", f"it was {date}, they say") == [date]


@pytest.mark.parametrize(
    "text",
    [
        "1969.5", "3.1415", "10,000", "$1969", "¥1969", "₹1969", "#1969", "1969%", "21969", "0969", "3069", "v1.1969", "x1969",
        "a/1969", "May", "4 Julys",
    ],
)  # fmt: skip
def test_what_is_no_date(text):
    assert of("dates", f"it is {text} here") == []


def test_names():
    text = (
        "The mill of Jean-Luc O'Brien was sold to Mr. J. R. R. Smith. Nobody knew Smith in Zürich. Smith left. The\u2019s "
        'no word. Mills are old.\nVerse begins so. He said: "Never again", and I\'m sure the United States’s army heard\n'
        "Friday's news."
    )
    names = ["Jean-Luc O'Brien", "Mr. J. R. R. Smith", "Smith", "Zürich", "Smith", "United States"]
    assert of("names", text) == names


def test_a_word_that_begins_a_sentence_is_a_name_if_the_document_says_so():
    assert of("names", "Paris is old.") == []
    assert of("names", "Paris is old. We saw Paris.") == ["Paris", "Paris"]
    assert of("names", "Old Paris burned.") == ["Old Paris"]
    assert of("names", "Old Paris burned. It was old.") == ["Paris"]
    assert of("names", "It is so. The end of The Hague, the end.") == ["The Hague"]
    assert of("names", "Will came. We saw Will. They will go.") == ["Will"]


def test_a_date_is_never_a_name():
    text = "we met Ann Lee on Monday, 4 May 2020 in May. He met May Day July 4"
    assert found(text)[0][:3] == [("Ann Lee", "names"), ("Monday, 4 May 2020", "dates"), ("May", "names")]
    both = found(text)[0]
    for kind in SPAN_TYPES:
        assert found(text, types=(kind,))[0] == [span for span in both if span[1] == kind]


@given(st.lists(st.text(st.sampled_from("AbÉß çZ.,'’-1920 July\n\"é漢𝐀")), max_size=4))
def test_spans_are_ascending_and_disjoint_and_found_in_each_document_alone(texts):
    spans = found_spans(texts)
    assert len(spans.offsets) == len(texts) + 1
    for d, text in enumerate(texts):
        alone = found_spans([text])
        own = slice(spans.offsets[d], spans.offsets[d + 1])
        for whole, part in zip(spans[1:], alone[1:], strict=True):
            assert whole[own].tolist() == part.tolist()
        places = [place for pair in zip(alone.begins, alone.ends, strict=True) for place in pair]
        assert places == sorted(places)
        for begin, last, end in zip(alone.begins, alone.lasts, alone.ends, strict=True):
            assert begin <= last < end <= len(text.encode())
            text.encode()[begin:last].decode()
            assert len(text.encode()[last:end].decode()) == 1


TEXTS = [
    "Ann Lee met O'Brien in Zürich on Friday, 4 July 1969. Lee, who knew Mr. J. R. Smith, wrote in May 1970 that A. Y is old. ",
    "nothing here is a name, and no day is told. ",
    "The River Elbe and the Élysée Palace were there in 1914-18. We saw Élysée, and 1969-07-20 too. ",
]
KINDS = {
    "byte_bpe": "{vocab_size: 420}",
    "wordpiece": "{kind: wordpiece, vocab_size: 230, lowercase: true, coverage: 1}",
    "unigram": "{kind: unigram, vocab_size: 210, coverage: 1}",
    "bpe": "{kind: bpe, vocab_size: 260, coverage: 1}",
    "bytes": "{kind: bytes}",
    "characters": "{kind: characters, unknown: error}",
}


def made(directory, options, kinds=("byte_bpe",), texts=TEXTS * 10):
    (directory / "raw").mkdir(exist_ok=True)
    lines = [json.dumps({"text": f"{text}Number {n}."}) for n, text in enumerate(texts)]
    (directory / "raw" / "0.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    steps = "".join(f"  - learn_tokenizer: {KINDS[kind]}\n    name: {kind}\n" for kind in kinds) + "".join(
        f"  - shards: {{tokenizer: {kind}, validation_share: 0.2{options}}}\n    name: for_{kind}\n" for kind in kinds
    )
    path = directory / "corpus.yaml"
    path.write_text(
        f"name: small\noutput: {directory}/out\nsources:\n  - {{name: a, root: {directory}/raw, format: jsonl}}\nsteps:\n{steps}"
    )
    config = load_corpus_config(path, ())
    plan = add_published_files(make_plan(config, take_inventory(config.sources, config.place)))
    return build(plan, LocalCluster(), lambda line: None)


def shards_of(root, shard_set):
    return [open_shard(root, record.file) for record in shard_set.shards]


@pytest.mark.long
def test_tokens_of_spans_hold_their_text_with_every_kind_of_tokenizer(tmp_path):
    built = made(tmp_path, ", sentences: true, spans: [names, dates]", KINDS)
    root = tmp_path / "out"
    tables = [part.table(("id", "text")) for part in open_corpus(root).parts()]
    texts = {row["id"]: row["text"] for table in tables for row in table.to_pylist()}
    for kind in KINDS:
        shard_set = built.shard_sets[f"for_{kind}"]
        assert (shard_set.columns, shard_set.span_types) == (("sentences", "spans"), ("names", "dates"))
        encoder, seen = Encoder.load(str(root / shard_set.tokenizer.path)), 0
        for shard in shards_of(root, shard_set):
            for i, identifier in enumerate(shard.doc_ids.to_pylist()):
                tokens = shard.tokens[shard.offsets[i] : shard.offsets[i + 1]]
                spans = shard.spans[shard.span_offsets[i] : shard.span_offsets[i + 1]]
                expected = found(texts[identifier])[0]
                assert [SPAN_TYPES[number] for number in spans[:, 2]] == [its for _, its in expected]
                for (first, end, _), (text, _) in zip(spans, expected, strict=True):
                    plain = encoder.decode(encoder.encode(pa.array([text], pa.large_string()))[0]).strip()
                    held = encoder.decode(tokens[first:end])
                    # Merges may join the characters around a span to it, but neither adds a word.
                    assert plain.replace(" ", "") in held.replace(" ", "")
                    assert len(held.strip()) <= len(plain) + 2
                    seen += 1
        assert seen > 100


@pytest.mark.long
def test_the_column_is_written_only_where_it_is_wanted_and_changes_nothing_else(tmp_path):
    without = made(tmp_path, "").shard_sets["for_byte_bpe"]
    before = shards_of(tmp_path / "out", without)
    wanted = made(tmp_path, ", spans: [dates]").shard_sets["for_byte_bpe"]
    after = shards_of(tmp_path / "out", wanted)
    assert (without.columns, without.span_types, wanted.columns, wanted.span_types) == ((), (), ("spans",), ("dates",))
    for old, new in zip(before, after, strict=True):
        assert old.spans is None
        assert set(new.spans[:, 2].tolist()) == {SPAN_TYPES.index("dates")}
        assert (old.tokens.tolist(), old.offsets.tolist()) == (new.tokens.tolist(), new.offsets.tolist())
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["shard_sets"]["for_byte_bpe"]["span_types"] == ["dates"]
    again = made(tmp_path, "").shard_sets["for_byte_bpe"]
    assert again.shards == without.shards


@pytest.mark.parametrize(
    ("spans", "message"), [("[dates, dates]", "spans.*'dates' occurs twice"), ("[places]", "got 'places'")]
)
def test_wrong_types_are_refused(tmp_path, spans, message):
    with pytest.raises(ConfigError, match=message):
        made(tmp_path, f", spans: {spans}")


@pytest.fixture(scope="module")
def ruler(tmp_path_factory):
    import spacy

    directory = tmp_path_factory.mktemp("model") / "ruler"
    pipeline = spacy.blank("en")
    known = {
        "PERSON": ["ann lee", "lee"],
        "GPE": ["Zürich"],
        "ORG": ["the mill"],
        "DATE": ["midsummer 1969", "next week"],
    }
    pipeline.add_pipe("entity_ruler").add_patterns(
        [{"label": label, "pattern": pattern} for label, patterns in known.items() for pattern in patterns]
    )
    pipeline.to_disk(directory)
    return directory


def finder(model, *types):
    return NameFinder(str(model), entities_of(types))


NAMED = "über ann lee, who left the mill in Zürich at midsummer 1969 with Tom. next week lee says more. "


def test_a_language_model_finds_spans_in_place_of_the_patterns(ruler, tmp_path):
    texts = pa.array([NAMED, "", "nobody here", "Zürich"], pa.large_string())
    spans = find_named_spans(texts, ("dates", "names"), finder(ruler, "dates", "names"))
    data = NAMED.encode()
    held = [data[begin:end].decode() for begin, end in zip(spans.begins[:5], spans.ends[:5], strict=True)]
    assert held == ["ann lee", "the mill", "Zürich", "midsummer 1969", "lee"]
    assert [data[last:end].decode() for last, end in zip(spans.lasts[:5], spans.ends[:5], strict=True)] == list("elh9e")
    assert [SPAN_TYPES[kind] for kind in spans.types] == ["names", "names", "names", "dates", "names", "names"]
    assert spans.offsets.tolist() == [0, 5, 5, 5, 6]
    dates = find_named_spans(texts, ("dates",), finder(ruler, "dates"))
    assert (dates.begins.tolist(), dates.types.tolist()) == ([spans.begins[3]], [SPAN_TYPES.index("dates")])


def test_of_finds_that_overlap_the_first_and_longest_is_a_span(ruler, monkeypatch):
    finds = [
        Named(4, 7, "PERSON", 1.0),
        Named(0, 3, "PERSON", 1.0),
        Named(0, 5, "LOCATION", 1.0),
        Named(5, 6, "NRP", 1.0),
    ]
    monkeypatch.setattr(NameFinder, "find", lambda self, texts: iter([finds]))
    spans = find_named_spans(pa.array(["abcdefgh"], pa.large_string()), ("names",), finder(ruler, "names"))
    assert list(zip(spans.begins.tolist(), spans.ends.tolist(), strict=True)) == [(0, 5), (5, 6)]


@pytest.mark.long
def test_shards_have_the_spans_of_a_language_model(ruler, tmp_path):
    built = made(tmp_path, f", spans: [dates, names], ner_model: {ruler}", texts=[NAMED] * 12)
    shard_set, encoded = built.shard_sets["for_byte_bpe"], []
    encoder = Encoder.load(str(tmp_path / "out" / shard_set.tokenizer.path))
    for shard in shards_of(tmp_path / "out", shard_set):
        tokens = shard.tokens[: shard.offsets[1]]
        encoded += [encoder.decode(tokens[a:b]).strip(" ,.") for a, b, _ in shard.spans[: shard.span_offsets[1]]]
    assert encoded[:5] == ["ann lee", "the mill", "Zürich", "midsummer 1969", "lee"]
    patterns = made(tmp_path, ", spans: [dates, names]", texts=[NAMED] * 12).shard_sets["for_byte_bpe"]
    assert [shard.xxh3_128 for shard in patterns.shards] != [shard.xxh3_128 for shard in shard_set.shards]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (", ner_model: en_core_web_sm", "ner_model: got 'en_core_web_sm' without `spans`"),
        (", spans: [names], ner_model: no_such_model", "ner_model: got 'no_such_model', which is not installed"),
        (", spans: [names], ner_model: no/such/model", "ner_model: got 'no/such/model', no such directory"),
    ],
)
def test_a_language_model_that_cannot_be_used_is_refused_before_the_build(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        made(tmp_path, options)


@pytest.mark.long
def test_documents_keep_their_spans_if_another_one_is_forgotten(tmp_path):
    made(tmp_path, ", sentences: true, spans: [dates, names]")
    root = tmp_path / "out"

    def rows():
        held = {}
        for shard in shards_of(root, open_corpus(root).manifest.shard_sets["for_byte_bpe"]):
            for i, (a, b) in enumerate(pairwise(shard.span_offsets)):
                held[shard.doc_ids[i].as_py()] = shard.spans[a:b].tolist()
        return held

    before = rows()
    forget(root, ["a/0.jsonl#3"], [])
    after = rows()
    assert len(after) == len(before) - 1
    assert after.items() <= before.items()
