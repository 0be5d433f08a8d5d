"""The PII stage: its gates, which pass only windows around possible hits to Presidio, change no result, and
edits cover the right bytes.
"""

import gzip
import itertools
import json
import random
from functools import cache

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.contracts.edits import apply_edits, check_edits
from pipelines.contracts.reads import Text
from pipelines.stages.pii.detect import Detection, Detector
from pipelines.stages.pii.pii import Pii, _RowDetection, count_column
from pipelines.stages.pii.recognizers import OWN, PATTERN_ENTITIES, SHIPPED

ENTITIES = tuple(SHIPPED)[:8]
PIECES = [
    *(
        "joe@example.com",
        "a.b-c@d-e.co.uk",
        ".x@y.org",
        "@",
        "a@b",
        "a@b.com@d.net",
        "!!@q.com",
        "é@müller.de",
        "x“y@z.org",
    ),
    *("192.168.1.1", "::1", "::", "fe80::1%eth0", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4/64", "10.0.0.0/8", "1.2.3.4.5"),
    *(
        "4111 1111 1111 1111",
        "4111-1111-1111-1111",
        "378282246310005",
        "5555555555554444",
        "123-45-6789",
        "123 45 6788",
    ),
    *(
        "219099999",
        "21909-9999",
        "219-099999",
        "DE89370400440532013000",
        "DE89 3704 0044 0532 0130 00",
        "FR1420041010050500",
    ),
    *(
        "GB82 WEST 1234 5698 7654 32",
        "GB82WEST12345698765432 AND",
        "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2",
        "ſ",
        "12:30:45",
    ),
    *("bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq", "3J98t1WpEZ73CNmQviecrnyiWrnqRhWNLy", "00:1A:2B:3C:4D:5E"),
    *(
        "00-1A-2B-3C-4D-5E",
        "0012.3456.789A",
        "2012-01-02 08:00",
        "1995–2005",
        "3/10/2011",
        "211-227 (2003)",
        "310-1234",
    ),
    *(
        "011 44 20 7946 0958",
        "(650) 253-0000",
        "+1 650-253-0000 ext. 12",
        "650.253.0000x99",
        "1-800-555-0199",
        "+49 1234",
    ),
    *(
        "650/253/0000",
        "6502530000 8002341234",
        "12345 - 650-253-0000",
        "٦٥٠٢٥٣٠٠٠٠",
        "６５０２５３００００",
        "555 123 456#",
    ),
    *(
        "#",
        "ext",
        "x",
        " int ",
        "доб",
        "+",
        "((",
        "[",
        "１",
        "     ",
        "          ",
        "\n",
        ";ext=",
        "%",
        "$",
        "€",
        "a",
        "é",
        "́",
    ),
    *(
        "中",
        "。",
        "_",
        ":",
        ".",
        "-",
        "/",
        "12",
        "7",
        "123",
        "0",
        "650",
        "253-0000",
        "1234567890",
        "~",
        "“",
        "call",
        "IBAN",
    ),
]


@cache
def detector(*regions):
    return Detector(ENTITIES, regions or ("US",))


def table(*texts):
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})


def gated(detector, *texts):
    docs = table(*texts)
    found = [[] for _ in texts]
    for row, detection in detector.detect(docs["text"], docs["id"]):
        found[row].append(detection)
    return [sorted(detections) for detections in found]


def ungated(detector, text):
    """Run Presidio's recognizers over the whole text and return the detections, with offsets in bytes."""
    found = []
    for entity, recognizer in detector.recognizers.items():
        for result in recognizer.analyze(text, [entity]):
            start, end = (len(text[:offset].encode()) for offset in (result.start, result.end))
            found.append(Detection(start, end, entity, float(result.score)))
    return sorted(found)


def spans(text, detections):
    return [(d.entity, text.encode()[d.start : d.end].decode()) for d in detections]


def scrambled(seed, phones=()):
    chance = random.Random(seed)
    parts = []
    for _ in range(chance.randint(1, 14)):
        draw = chance.random()
        if draw < 0.4:
            parts.append(chance.choice(PIECES))
        elif draw < 0.5 and phones:
            parts.append(chance.choice(phones))
        elif draw < 0.65:
            parts.append("".join(chance.choice("0123456789") for _ in range(chance.randint(1, 12))))
        elif draw < 0.85:
            parts.append("".join(chance.choice(" -.()/x+#~,:;[]\n") for _ in range(chance.randint(1, 3))))
        parts.append(" " * (chance.random() < 0.4))
    return "".join(parts)


def annotated(text, **knobs):
    stage = Pii(**knobs)
    stage.check()
    docs = table(text)
    result = stage.annotate(docs)
    assert result.schema == stage.writes()
    column, edits = docs["text"].chunk(0), result["edits"].combine_chunks()
    check_edits(column, edits)
    counts = {name: count for name, count in result.drop_columns("edits").to_pylist()[0].items() if count}
    return apply_edits(column, edits)[0].as_py(), counts


@pytest.mark.parametrize(
    ("text", "entity", "found"),
    [
        ("write to joe.smith@example.com.", "EMAIL_ADDRESS", ["joe.smith@example.com"]),
        ("a@b.com@c.net or nobody@nowhere.invalid", "EMAIL_ADDRESS", ["a@b.com"]),
        ("call (650) 253-0000 or +49 30 123456 ext. 12, not 1995-2005", "PHONE_NUMBER", None),
        ("call 310-1234 from Canada", "PHONE_NUMBER", ["310-1234"]),
        ("card 4111 1111 1111 1111, not 4111 1111 1111 1112", "CREDIT_CARD", ["4111 1111 1111 1111"]),
        ("IBAN DE89 3704 0044 0532 0130 00, not DE88 3704 0044 0532 0130 00", "IBAN_CODE", None),
        ("SSN 219-09-9998, not 000-12-3456", "US_SSN", ["219-09-9998"]),
        ("from 192.168.0.1 and fe80::1, not 999.1.1.1", "IP_ADDRESS", ["192.168.0.1", "fe80::1"]),
        ("send to 1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "CRYPTO", ["1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2"]),
        ("eth0 00:1A:2B:3C:4D:5E 0012.3456.789A", "MAC_ADDRESS", ["00:1A:2B:3C:4D:5E", "0012.3456.789A"]),
    ],
)
def test_each_entity_is_found(text, entity, found):
    expected = {
        "PHONE_NUMBER": ["(650) 253-0000", "+49 30 123456 ext. 12"],
        "IBAN_CODE": ["DE89 3704 0044 0532 0130 00"],
    }
    [detections] = gated(detector(), text)
    strong = [d for d in detections if d.score >= Pii.score_threshold]
    values = [value for kind, value in spans(text, strong) if kind == entity]
    assert values == (expected[entity] if found is None else found)


@pytest.mark.parametrize("piece", PIECES)
def test_gate_changes_nothing_around_one_piece(piece):
    texts = [
        piece,
        f"é {piece}",
        f"{piece} 中",
        f"a{piece}b",
        f"({piece})",
        f"1{piece}2",
        f"+{piece}:34",
        f"\n{piece}\n{piece}",
    ]
    for text, found in zip(texts, gated(detector(), *texts), strict=True):
        assert found == ungated(detector(), text), ascii(text)


@pytest.mark.long
def test_gate_changes_nothing_in_scrambled_text():
    texts = [scrambled(seed) for seed in range(600)]
    found = gated(detector(), *texts)
    assert sum(map(len, found)) > 500
    for text, detections in zip(texts, found, strict=True):
        assert detections == ungated(detector(), text), ascii(text)


@pytest.mark.long
@pytest.mark.parametrize("regions", [("GB",), ("DE", "AR"), ("KN", "JP", "US")])
def test_gate_changes_nothing_in_other_regions(regions):
    from phonenumbers import example_number, format_number

    phones = [format_number(example_number(region), form) for region in (*regions, "FR", "AT") for form in range(4)]
    texts = [scrambled(f"{regions}{seed}", phones) for seed in range(150)]
    for text, found in zip(texts, gated(detector(*regions), *texts), strict=True):
        assert found == ungated(detector(*regions), text), ascii(text)


def test_results_depend_on_nothing_but_the_text():
    texts = [scrambled(seed) for seed in range(200)]
    together = gated(detector(), *texts)
    assert gated(detector(), *texts) == together  # everything remembered
    assert [gated(Detector(ENTITIES, ("US",)), text)[0] for text in texts[:3]] == together[:3]
    assert gated(detector(), *reversed(texts)) == together[::-1]


@pytest.mark.long
def test_gate_changes_nothing_in_tables_of_numbers():
    chance = random.Random(0)
    texts = []
    for _ in range(60):
        sep = chance.choice([" ", "  ", ".", "-", " - ", "/", "x", " (", ") ", "–", ". ", "  -  ", " ext ", "#", "~"])
        cells = [str(chance.randrange(10 ** chance.choice([1, 3, 4, 7, 10, 11]))) for _ in range(chance.randint(5, 60))]
        texts.append(sep.join(cells))
    for text, found in zip(texts, gated(detector(), *texts), strict=True):
        assert found == ungated(detector(), text), ascii(text)


def test_a_long_document_equals_its_windows():
    text = "\n".join(scrambled(seed) for seed in range(1000, 1300))
    assert len(text) > 5000
    assert gated(detector(), text) == [ungated(detector(), text)]


def test_edits_are_bytes_of_the_text_in_any_script():
    text = "Größe 中文 joe@example.com 🙂 (650) 253-0000 ü 4111-1111-1111-1111 ½ 2001:4860:4860::8888 Ω"
    edited, counts = annotated(text)
    assert edited == "Größe 中文 <EMAIL_ADDRESS> 🙂 <PHONE_NUMBER> ü <CREDIT_CARD> ½ <IP_ADDRESS> Ω"
    assert counts == {"pii_email_address": 1, "pii_phone_number": 1, "pii_credit_card": 1, "pii_ip_address": 1}


def test_golden():
    result = Pii(entities=("EMAIL_ADDRESS", "US_SSN")).annotate(table("", "x@example.com and 219-09-9998"))
    edits = [
        {"start": 0, "end": 13, "replacement": "<EMAIL_ADDRESS>", "rule": "EMAIL_ADDRESS"},
        {"start": 18, "end": 29, "replacement": "<US_SSN>", "rule": "US_SSN"},
    ]
    assert result.to_pylist() == [
        {"edits": [], "pii_email_address": 0, "pii_us_ssn": 0},
        {"edits": edits, "pii_email_address": 1, "pii_us_ssn": 1},
    ]


def test_rows_and_columns_stay_aligned():
    texts = ["", "nothing here", "a@example.com b@example.com", "", "8.8.8.8", "c@example.com"]
    result = Pii().annotate(table(*texts))
    assert result["pii_email_address"].to_pylist() == [0, 0, 2, 0, 0, 1]
    assert result["pii_ip_address"].to_pylist() == [0, 0, 0, 0, 1, 0]
    assert [len(edits) for edits in result["edits"].to_pylist()] == [0, 0, 2, 0, 1, 1]
    assert Pii().annotate(table(*texts).slice(2, 3)).to_pylist() == result.to_pylist()[2:5]
    assert Pii().annotate(table()).num_rows == 0


def test_hits_do_not_cross_documents():
    found = gated(detector(), "joe@", "example.com 650 253", "0000 192.168", ".0.1", "4111 1111", "1111 1111")
    assert found == [[]] * 6


def test_overlapping_detections_become_one_edit():
    """The edit covers the union of the detections. Its entity is taken from the detection with the highest
    score; ties go to the longest detection, then to the entity listed first in `entities`.
    """
    stage = Pii(entities=("PHONE_NUMBER", "US_SSN", "CREDIT_CARD"))
    group = [(0, 5, 12, "US_SSN", 0.5), (0, 8, 20, "PHONE_NUMBER", 0.4), (0, 19, 25, "CREDIT_CARD", 0.5)]
    apart = [(0, 25, 30, "PHONE_NUMBER", 0.4), (1, 0, 9, "PHONE_NUMBER", 0.4), (1, 0, 9, "CREDIT_CARD", 0.4)]
    resolved = list(stage._resolve([_RowDetection(*found) for found in (*group, *apart)]))
    assert [found[:4] for found in resolved] == [
        (0, 5, 25, "US_SSN"),
        (0, 25, 30, "PHONE_NUMBER"),
        (1, 0, 9, "PHONE_NUMBER"),
    ]


def test_score_threshold():
    text = "219099999 and std :: vector"
    assert annotated(text, score_threshold=0.0, public_ips_only=False)[0] == "<US_SSN> and std <IP_ADDRESS> vector"
    assert annotated(text) == (text, {})


def test_phone_regions():
    text = "Tel. 030 123456, +49 30 123456"
    assert annotated(text, phone_regions=("US",))[0] == "Tel. 030 123456, <PHONE_NUMBER>"
    assert annotated(text)[0] == "Tel. <PHONE_NUMBER>, <PHONE_NUMBER>"


def test_a_text_other_than_the_stored_one():
    stage = Pii(text="text@lines")
    assert stage.reads() == (Text(edited=True, upto="lines"),)
    result = stage.annotate(table("a@example.com").rename_columns(["id", "text@lines"]))
    assert result["pii_email_address"].to_pylist() == [1]


def test_knobs_and_columns():
    stage = parse(Pii, {"entities": ["EMAIL_ADDRESS"], "phone_regions": ["GB"]}, where="corpus.yaml")
    assert stage.writes().names == ["edits", count_column("EMAIL_ADDRESS")] == ["edits", "pii_email_address"]
    libraries = {"presidio-analyzer", "phonenumbers", "tldextract", "regex"}
    assert set(stage.depends()) == {*libraries, "false_finds.yaml xxh3_128"}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"entities": ["EMAIL_ADRESS"]}, "entities: got 'EMAIL_ADRESS', no such entity; did you mean 'EMAIL_ADDRESS'?"),
        ({"entities": []}, "entities: got [], expected at least one, each once"),
        ({"entities": ["CRYPTO", "CRYPTO"]}, "expected at least one, each once"),
        ({"score_threshold": 1.5}, "score_threshold: got 1.5, allowed 0 to 1"),
        ({"phone_regions": ["us"]}, "phone_regions: got 'us', expected an ISO 3166 code in capitals"),
        ({"phone_regions": []}, "phone_regions: got none"),
        ({"text": "txt"}, "text: got 'txt', allowed: text, text@STEP, edited_text"),
    ],
)
def test_knobs_out_of_range(knobs, message):
    with pytest.raises(UserError) as error:
        parse(Pii, knobs, where="corpus.yaml")
    assert message in str(error.value)


@pytest.mark.slow
def test_gate_changes_nothing_on_2000_forum_posts(shared_data):
    """The check covers every entity that is found by patterns."""
    with gzip.open(shared_data / "prose" / "forum_20news.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for number, line in enumerate(lines) if number % 9 == 0][:2000]
    assert len(texts) == 2000
    every = Detector(PATTERN_ENTITIES, ("US",))
    found = gated(every, *texts)
    assert sum(map(len, found)) > 5000
    for number, (text, detections) in enumerate(zip(texts, found, strict=True)):
        assert detections == ungated(every, text), f"post {number}"


@pytest.mark.slow
def test_recognizers_one_by_one_are_an_analyzer(shared_data):
    """Called one by one, the recognizers find the same entities in the same places as Presidio's
    AnalyzerEngine with these recognizers and a blank spaCy model.
    """
    import spacy
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    entities = tuple(entity for entity in PATTERN_ENTITIES if entity in ENTITIES or entity in OWN)
    every = Detector(entities, ("US",))
    registry = RecognizerRegistry(list(every.recognizers.values()), supported_languages=["en"])
    engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": "blank"}])
    engine.nlp = {"en": spacy.blank("en")}
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=["en"])
    with gzip.open(shared_data / "prose" / "forum_20news.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in itertools.islice(lines, 100)]
    for text, detections in zip(texts, gated(every, *texts), strict=True):
        results = analyzer.analyze(text, language="en", entities=[*entities])
        spans = [(len(text[: r.start].encode()), len(text[: r.end].encode()), r.entity_type) for r in results]
        assert sorted(spans) == sorted((d.start, d.end, d.entity) for d in detections)


def test_the_default_regions_are_those_of_presidio():
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer

    assert Pii().phone_regions == tuple(PhoneRecognizer.DEFAULT_SUPPORTED_REGIONS)
    assert annotated("router 192.168.0.1, server 8.8.8.8")[0] == "router 192.168.0.1, server <IP_ADDRESS>"
