"""The PII stage: its levels, postal addresses, identity documents, secrets, and the list of known false
positives.
"""

import random
import string

import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.stages.pii import false_finds
from pipelines.stages.pii.pii import Pii
from pipelines.stages.pii.recognizers import CONTACT, LEVELS, NER_ENTITIES, PATTERN_ENTITIES, load_recognizers
from tests.pipelines.stages.pii.test_pii import annotated

ADDRESSES = [
    "24 Clarke Avenue",
    "90 Whitchurch Road, London SW7 2BZ",
    "1600 Pennsylvania Ave NW, Washington, DC 20500",
    "2018 Oak Street, Apt. 5, Springfield, IL 62701",
    "Musterstr. 12, 12345 Stadt",
    "Augsburger Strasse 36",
    "Hauptstra\u00dfe 5a, 10115 Berlin",
    "ul. P\u00f3\u0142nocna 73",
    "Rua Diadema 190",
    "31 rue Victor Hugo",
    "Via Roma 131, 00184 Roma",
    "Kir\u00e1ly u. 15.",
    "Snellmaninkatu 55",
    "Vesterskovvej 79",
    "Parijsstraat 8",
    "28030 Edeby 55\n Apt. 297\n TYSTBERGA\n Sweden 99178",
    "P.O. Box 242",
    "Postfach 1203",
    "PSC 6293, Box 8158\nAPO AP 04336",
    "the corner of Alder Street and Main Street",
    "Seattle, WA 98195",
    "Saskatoon, SK S7N 0W0",
    "Suite 464",
]
NO_ADDRESSES = [
    "The 2018 Moscow Victory Day Parade was long.",
    "The 2010 Supreme Court of the land ruled.",
    "On 2 November 1578 he left, and on 20 February 2000 he came back.",
    "Between 1 and 23 February 2000 it rained.",
    "See Executive Order 9346 in May 1943.",
    "The Brigade 101 won, and Alaska 49 lost.",
    "Chapter 12, Section 4, Table 3",
    "It began in Spring 2003 in Springfield.",
    "He scored 12 points. Street musicians played.",
    "Aa-Bb-" * 5000,  # takes time in proportion to its length, not to its square
]


@pytest.mark.long
@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_of_several_countries(address):
    assert annotated(f"it is {address}", entities=("STREET_ADDRESS",)) == (
        "it is <STREET_ADDRESS>",
        {"pii_street_address": 1},
    )


@pytest.mark.long
@pytest.mark.parametrize("text", NO_ADDRESSES)
def test_what_is_no_address(text):
    assert annotated(text, entities=("STREET_ADDRESS",)) == (text, {})


@pytest.mark.parametrize(
    ("entity", "text", "edited"),
    [
        ("DATE_OF_BIRTH", "Ann was born on 3 May 1971 in June 1999", "Ann was born on <DATE_OF_BIRTH> in June 1999"),
        ("DATE_OF_BIRTH", "DOB: 1971-05-03, seen 2001-02-03", "DOB: <DATE_OF_BIRTH>, seen 2001-02-03"),
        ("DATE_OF_BIRTH", "geboren am 03.05.1971", "geboren am <DATE_OF_BIRTH>"),
        ("PASSPORT", "Passport No. C01X00T47, passport photo 12", "Passport No. C01X00T47, passport photo 12"),
        ("PASSPORT", "passport number: 912803456", "passport number: <PASSPORT>"),
        ("DRIVER_LICENSE", "driver's license F162-8235-4011 of 2003", "driver's license <DRIVER_LICENSE> of 2003"),
        ("ORGANIZATION", "he works for Drake Holdings PLC now", "he works for <ORGANIZATION> now"),
        ("ORGANIZATION", "a big plc and An Inc of it", "a big plc and An Inc of it"),
    ],
)
def test_identity_documents_and_companies(entity, text, edited):
    assert annotated(text, entities=(entity,))[0] == edited


def random_value(seed, length=24):
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=length))


@pytest.mark.parametrize(
    "form", ['password = "{}"', "API_KEY={}", "'client_secret': '{}'", "auth-token => {} # x", "db.passwd:={}"]
)
def test_random_values_of_secret_names(form):
    value = random_value(form)
    assert annotated(form.format(value), entities=("SECRET",))[0] == form.format("<SECRET>")


@pytest.mark.parametrize(
    "text",
    [
        'password = "correct-horse-battery"',  # no digit
        "token = aaaaaaaaaaaaaaaaaaaa1111",
        "token = get_session_token2(request)",
        "api_key: YOUR_API_KEY_0000000",
        "password: hunter2",
        f"checksum = {random_value(1)}",
        f"token {random_value(2)}",
        f"token =\n{random_value(3)}",
    ],
)
def test_what_is_no_secret(text):
    assert annotated(text, entities=("SECRET",)) == (text, {})


def test_placeholders_of_keys_are_no_keys():
    assert annotated(f"ghp_{'x' * 36}", entities=("API_KEY",))[1] == {}
    assert annotated(f"ghp_{random_value(0, 36)}", entities=("API_KEY",))[0] == "<API_KEY>"


@pytest.mark.parametrize("entry", false_finds.read_list(), ids=lambda entry: entry.name)
def test_every_false_find_is_found_without_the_list_and_ignored_with_it(entry, monkeypatch):
    knobs = {"entities": entry.entities, "public_ips_only": False, "score_threshold": 0.0}
    assert entry.examples
    for text in entry.examples:
        assert annotated(text, **knobs) == (text, {})
    with monkeypatch.context() as patch:
        patch.setattr("pipelines.stages.pii.pii.is_false", lambda *find: False)
        for text in entry.examples:
            assert annotated(text, **knobs)[1], text
    for text in entry.kept:
        assert annotated(text, **knobs)[1], text


def test_false_finds_in_any_script():
    text = "\u00dcber \u4e2d ISBN 0-7356-2364-1 \u00fc, Tel. 650-253-0000 \u4e2d"
    assert annotated(text)[0] == text.replace("650-253-0000", "<PHONE_NUMBER>")


def test_levels_contain_one_another():
    assert {*LEVELS["contact"]} < {*LEVELS["identity"]} < {*LEVELS["everything"]} == {*PATTERN_ENTITIES, *NER_ENTITIES}
    assert Pii(level="contact").writes() == Pii().writes()
    text = "joe@example.com, 8.8.8.8"
    assert annotated(text, level="contact") == annotated(text)


def test_everything_has_the_recognizers_of_presidios_default_registry():
    load_recognizers((), ("US",))
    from presidio_analyzer.recognizer_registry import RecognizerRegistry

    registry = RecognizerRegistry()
    registry.load_predefined_recognizers(languages=["en"])
    shipped = {entity for recognizer in registry.recognizers for entity in recognizer.supported_entities}
    of_models = {"AGE", "ID", "EMAIL"}  # labels of other NER models than spaCy's
    assert shipped - of_models <= {*LEVELS["everything"]}


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"level": "all"}, "level: got 'all', expected one of '', 'contact', 'identity', 'everything'"),
        (
            {"level": "contact", "entities": ["CRYPTO"]},
            "level: got 'contact' together with `entities`; a level is a set",
        ),
        ({"level": "identity"}, "ner_model: got ''; only an NER model finds PERSON and LOCATION of level identity"),
        ({"level": "contact", "actions": {"CRYPTO": "mask"}}, "actions: got 'CRYPTO', not one of `entities`"),
        (
            {"level": "identity", "ner_model": "/no/such"},
            "ner_model: got '/no/such', no such directory; expected one that spaCy saved",
        ),
        ({"level": "contact", "phone_regions": ["XX"]}, "phone_regions: got 'XX', expected an ISO 3166 code"),
        ({"level": "contact", "ner_model": "made_up"}, "ner_model: got 'made_up', but none of PERSON"),
    ],
)
def test_levels_that_do_not_go_together(knobs, message):
    with pytest.raises(UserError) as error:
        parse(Pii, knobs, where="corpus.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_published_level_parses_again():
    stage = Pii(level="contact")
    assert parse(Pii, {"level": "contact", "entities": [*CONTACT]}, where="manifest") == stage
