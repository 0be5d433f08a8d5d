"""Windows around hits: where they are cut, and the assumptions about phonenumbers that the cuts rely on."""

import pytest

from pipelines.stages.pii.recognizers import WHOLE_TEXT
from pipelines.stages.pii.windows import GATES, can_be_phone, email_window, phone_window

US = ("US",)


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("to <joe@example.com>, now", "joe@example.com"),
        ("x@y@joe@example.com!", "joe@example.com"),  # the @ before joins nothing: no dot follows it
        ("a@b.com@c.net@d.org/x", "a@b.com@c.net@d.org"),  # which match wins is for Presidio to say
        ("“joe.é@müller.example-site.de”", "joe.é@müller.example-site.de"),
        ("joe@localhost", None),
        ("joe.@example.com", None),
    ],
)
def test_email_windows(text, window):
    found = email_window(text, text.index("@" if "x@y" not in text else "@example"), 0, US)
    assert (found and text[found.start : found.end]) == window


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("Tel: 650-253-0000, now", "650-253-0000"),
        ("Tel: (650) 253-0000x12 now", "(650) 253-0000x12"),
        ("id650-253-0000z", "d650-253-0000z"),  # letters beside it decide
        ("1 ext 650-253-0000 ext. 5#", "1 ext 650-253-0000 ext. 5#"),
        ("+ 650-253-0000:34:56", "+ 650-253-0000:34"),
        ("in 1995-2005", None),  # no area code anywhere in the digits
    ],
)
def test_phone_windows(text, window):
    digits = text.index("1995" if "1995" in text else "650")
    found = phone_window(text, digits, digits + (9 if "1995" in text else text[digits:].rindex("0") + 1), US)
    assert (found and text[found.start : found.end]) == window


def test_digits_that_can_be_a_number():
    assert can_be_phone("650-253-0000", False, US)
    assert can_be_phone("٦٥٠٢٥٣٠٠٠٠", False, US)
    assert can_be_phone("12 650-253-0000 34", False, US)
    assert can_be_phone("310-1234", False, US)
    assert can_be_phone("49 1234", True, US)
    assert can_be_phone("011 49 1234", False, US)
    assert not can_be_phone("49 1234", False, US)
    assert not can_be_phone("1995-2005", False, US)


def test_every_gate_says_how_hits_are_found():
    for entity, gate in GATES.items():
        ways = bool(gate.kinds) + bool(gate.digits) + (entity in WHOLE_TEXT)
        assert ways == 1, entity


EXTENSIONS = (
    ";ext=(\\d{1,20})|[ \xa0\\t,]*(?:e?xt(?:ensi(?:o\u0301?|\xf3))?n?|\uff45?\uff58\uff54\uff4e?|\u0434\u043e\u0431|anexo"
    ")[:\\.\uff0e]?[ \xa0\\t,-]*(\\d{1,20})#?|[ \xa0\\t,]*(?:[x\uff58#\uff03~\uff5e]|int|\uff49\uff4e\uff54)"
    "[:\\.\uff0e]?[ \xa0\\t,-]*(\\d{1,9})#?|[- ]+(\\d{1,6})#"
)


def test_what_the_gate_assumes_about_phonenumbers():
    """The gate copies constants of phonenumbers and must be updated if a new version changes them."""
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata, phonenumbermatcher, phonenumberutil

    from pipelines.kernels.search.pii_gate import PHONE_PUNCTUATION
    from pipelines.stages.pii import windows as pii_windows

    assert phonenumbermatcher._PUNCTUATION_LIMIT == "{0,4}"
    assert phonenumbermatcher._LEAD_LIMIT == "{0,2}"
    assert phonenumbermatcher._LEAD_CLASS == "[(\\[\uff08\uff3b+\uff0b]"
    punctuation = phonenumbermatcher.re.compile(f"[{phonenumberutil._VALID_PUNCTUATION}]")
    assert {chr(code) for code in range(0x20000) if punctuation.match(chr(code))} == {*PHONE_PUNCTUATION, "x"}
    assert phonenumberutil._EXTN_PATTERNS_FOR_MATCHING == EXTENSIONS
    for code, regions in COUNTRY_CODE_TO_REGION_CODE.items():
        for region in regions:
            metadata = PhoneMetadata.metadata_for_region_or_calling_code(code, region)
            shortest = len(str(code)) + min(metadata.general_desc.possible_length)
            assert shortest >= pii_windows.INTERNATIONAL_DIGITS
            kinds = [getattr(metadata, name) for name in pii_windows._NUMBER_TYPES]
            assert not [k for k in kinds if k and k.national_number_pattern and "(?!" in k.national_number_pattern]
