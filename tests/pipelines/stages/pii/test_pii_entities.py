"""The PII gates for identity numbers and credentials lose no match of the recognizers."""

import random
from functools import cache

import pytest

from pipelines.stages.pii.detect import Detector
from pipelines.stages.pii.recognizers import OWN, PATTERN_ENTITIES, SHIPPED
from tests.pipelines.stages.pii.test_pii import annotated, gated, ungated

IDENTITIES = tuple(SHIPPED)[8:]
# d a digit, L a capital, l a small letter, s white space, anything else itself.
TEMPLATES = [
    *(
        "ddddddddd",
        "ddd ddd ddd",
        "ddd-ddd-ddd",
        "dddsdddsddd",
        "ddddsdddddsd",
        "dddddddddd",
        "9ddd-dddd",
        "9dd-7d-dddd",
    ),
    *("ddddddddddd", "ddddddddLddd", "dddddddL", "dddddddd-L", "Xddddddd-L", "dddddd-dddL", "dddddd+dddd", "ddddddddA"),
    *(
        "dddd dddd dddd",
        "dddd-dddd-dddd",
        "dddd:dddd:dddd",
        "dddddddddddd",
        "dd0112-ddddddd",
        "dd1231ddddddd",
        "Sdddddddl",
    ),
    *(
        "ddddddddddddd",
        "ddd ddd dddd",
        "AB dd dd dd C",
        "ABddddddC",
        "ab dddddd d",
        "dddddddd-dddd",
        "dd010100000dd",
        "\u0663dddddddd",
    ),
    *(
        "RSSMRAddA01HdddL",
        "rssmra85t10a562s",
        "MRTMTTddDddFddd\u017f",
        "d",
        "dd",
        "L",
        "lll",
        "AB",
        "word",
        "\u00e9",
        "\u017f",
        "_",
    ),
]
GLUE = ["", "", " ", " ", "-", "+", ":", "\n", "\t", ".", ", ", "  ", "/", "\u2009"]
A40, A64 = "Ab3dE" * 8, "Zx9_-Yw8" * 8
SECRETS = [
    *("AKIA" + "Q7X2" * 4, "AIza" + "Sy-a_" * 7, "ghp_" + "aB3d" * 9, "github_pat_" + A40, "glpat-" + "x-y_9" * 4),
    *("xoxb-" + "12-ab" * 4, "sk_" + "live_" + "aB3d" * 5, "sk-" + A64, "hf_" + A40, "npm_" + "aB3d" * 9),
    *(
        "SG." + "aB3_d-e9_ff" * 2 + "." + A40 + "xyz",
        "eyJ" + A40 + ".eyJ" + A40 + "." + A64,
        "dop_v1_" + "0123abcd" * 8,
    ),
    *(
        "pypi-AgE" + A64,
        "GOCSPX-" + "aB3_-x8" * 4,
        "ghp_short",
        "sk-learn-contrib",
        "a" * 30,
        "--------------------",
        ".....",
    ),
]
HEAD, TAIL = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
KEYS = [
    f"{HEAD}\n{A40}\n{A40}\n{TAIL}",
    f"{HEAD}\nProc-Type: 4,ENCRYPTED\n\n{A40}{TAIL}",
    f"{HEAD}\\n{A40}\\n{TAIL}",
    f"{HEAD}\n{A64.replace('_', 'x').replace('-', 'y')}\n{A40}\n",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nabc=\n-----END PGP PRIVATE KEY BLOCK-----",
    *(
        HEAD,
        TAIL,
        f"-{HEAD}",
        f"{TAIL}-",
        "PRIVATE KEY",
        "-----BEGIN ",
        "-----",
        "-----BEGIN CERTIFICATE-----\nabc\n-----END",
    ),
]
URLS = [
    *("https://joe:secret@host.example/x", "ftp://:pw@h", "http://u:p@q@host:8080", "ssh://git@github.com", "://a:b@c"),
    *(
        "http://host:80/a@b",
        "redis://u:p\u00e9\u3000@h\u00f6st",
        "x://http://a:b@c",
        "http://a:b@http://c:d@e",
        "s3://k:s@b,c",
    ),
]


@cache
def detector():
    """Return a detector of identity numbers and credentials that skips checksum validation."""
    made = Detector((*IDENTITIES, *OWN), ("US",))
    for recognizer in made.recognizers.values():
        recognizer.validate_result = recognizer.invalidate_result = lambda text: None
    return made


def filled(template, chance):
    kinds = {"d": "0123456789", "L": "ABCFKLMPRSTUXZ", "l": "abcklmsx", "s": " \t\n\u2003"}
    return "".join(chance.choice(kinds[c]) if c in kinds else c for c in template)


def scrambled(seed, pieces):
    chance = random.Random(seed)
    parts = []
    for _ in range(chance.randint(1, 16)):
        parts += [filled(chance.choice(pieces), chance) if pieces is TEMPLATES else chance.choice(pieces)]
        parts += [chance.choice(GLUE)]
    return "".join(parts)


@pytest.mark.long
@pytest.mark.parametrize("pieces", [TEMPLATES, SECRETS, KEYS, URLS], ids=["identities", "secrets", "keys", "urls"])
def test_gate_changes_nothing_in_scrambled_text(pieces):
    texts = [scrambled(seed, pieces) for seed in range(600 if pieces is TEMPLATES else 250)]
    texts += [f"\u4e2d{text}\u00e9" for text in pieces]
    found = gated(detector(), *texts)
    assert sum(map(len, found)) > 100
    for text, detections in zip(texts, found, strict=True):
        assert detections == ungated(detector(), text), ascii(text)


@pytest.mark.long
def test_every_identity_number_is_met_by_the_scrambled_texts():
    found = gated(detector(), *(scrambled(seed, TEMPLATES) for seed in range(600)))
    assert {*IDENTITIES} == {detection.entity for detections in found for detection in detections}


@pytest.mark.parametrize(
    ("entity", "text", "edited"),
    [
        (
            "URL_CREDENTIALS",
            "git clone https://joe:hunter2@git.example:8080/x.git",
            "git clone https://<URL_CREDENTIALS>/x.git",
        ),
        ("API_KEY", f"key={SECRETS[0]};", "key=<API_KEY>;"),
        ("API_KEY", f"Bearer {SECRETS[11]}", "Bearer <API_KEY>"),
        ("PRIVATE_KEY", f"x\n{KEYS[0]}\ny", "x\n<PRIVATE_KEY>\ny"),
        ("PRIVATE_KEY", f"{KEYS[3]}That was all.", "<PRIVATE_KEY>\nThat was all."),
        ("UK_NHS", "NHS 401 023 2137, not 401 023 2138", "NHS <UK_NHS>, not 401 023 2138"),
        ("UK_NINO", "NI AA 12 34 56 B", "NI <UK_NINO>"),
        ("CA_SIN", "SIN 130-692-544", "SIN <CA_SIN>"),
        ("ES_NIF", "NIF 55555555K, no 55555555A", "NIF <ES_NIF>, no 55555555A"),
        ("PL_PESEL", "PESEL 44051401359", "PESEL <PL_PESEL>"),
        ("FI_PERSONAL_IDENTITY_CODE", "131052-308T", "<FI_PERSONAL_IDENTITY_CODE>"),
        ("IT_FISCAL_CODE", "C.F. MRTMTT91D08F205J", "C.F. <IT_FISCAL_CODE>"),
    ],
)
def test_entities_of_the_allow_list(entity, text, edited):
    assert annotated(text, entities=(entity,))[0] == edited
    assert annotated(text)[0] != edited


def test_credentials_come_before_the_address_they_look_like():
    knobs = {"entities": ("EMAIL_ADDRESS", "URL_CREDENTIALS")}
    found = ("https://<URL_CREDENTIALS>", {"pii_url_credentials": 1})
    assert annotated("https://joe:hunter2@mail.example.com", **knobs) == found


def test_every_entity_has_a_gate():
    from pipelines.stages.pii.windows import GATES

    assert {*GATES} == {*PATTERN_ENTITIES}


@pytest.mark.long
@pytest.mark.timeout(120)
def test_hostile_texts_take_time_that_grows_with_their_length():
    """These texts take seconds; a quadratic search would take minutes."""
    size = 40_000
    texts = ["a-" * 10 + "-" * size, ("a" + "-" * 1000) * 100, "1aa " * size + "123456789 ", "http://a:" * (size // 9)]
    texts += [f"{HEAD}{A40}" * (size // 71), "eyJ" * size, "a1" * size, "1 " * size]
    gated(Detector((*IDENTITIES, *OWN), ("US",)), *texts)
