"""From hits to windows: what Presidio must see around a hit to find what it would find in the whole text.

A window is cut where no match of the entity's patterns can cross, and it holds every neighbouring character that the
patterns look at. Neighbours that they treat like the edge of the text are left out, so that equal candidates give equal
windows and can be remembered. Offsets are code points.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import regex

from pipelines.kernels.search.pii_gate import PHONE_GAP, PHONE_PUNCTUATION, Kind
from pipelines.stages.pii.recognizers import API_KEY, PRIVATE_KEY, URL_CREDENTIALS


class Window(NamedTuple):
    """text[start:end] is to be analysed; a match found there counts if it ends in (low, high]."""

    start: int
    end: int
    low: int
    high: int


Cut = Callable[[str, int, int, tuple[str, ...]], "Window | None"]  # (text, start and end of a hit, phone regions)


class Gate(NamedTuple):
    """How the candidates of an entity are found: the kinds of hit, and the window around one (None: nothing can match).

    Where `digits` is given, hits are chains of at least as many digits as it says for the phone regions; with `codes`,
    chains as in identity numbers.
    """

    kinds: tuple[Kind, ...]
    cut: Cut
    digits: Callable[[tuple[str, ...]], int] | None = None
    codes: bool = False


# Presidio's e-mail pattern: the characters of a local part, and an @ with what surely surrounds it in any match, then
# the longest host name and the longest local part of another address that can follow.
_ADDRESS = r"[!#$%&'*+\-/=?^_`{|}~\.\w]"
_LOCAL_PART = regex.compile(rf"(?r){_ADDRESS}*")
_AT = regex.compile(rf"(?<=[!#$%&'*+\-/=?^_`{{|}}~\w])@(?=\w+(?:-+\w+)*\.\w)([\w.\-]*+){_ADDRESS}*+")
# Runs of all characters that a pattern uses or looks at, to the left and to the right.
_INTERNET = (regex.compile(r"(?r)[\w:.%/]*"), regex.compile(r"[\w:.%/]*"))
_HARDWARE = (regex.compile(r"(?r)[\w:.\-]*"), regex.compile(r"[\w:.\-]*"))
_WALLET = (regex.compile(r"(?ri)[a-z0-9]*"), regex.compile(r"(?i)[a-z0-9]*"))  # Presidio ignores case
_WORD = (regex.compile(r"(?r)\w*"), regex.compile(r"\w*"))
# A word with a digit and the separator between it and the next word, to the left and to the right; and any word.
_CODE_WORD = (regex.compile(r"(?r)\w*\d\w*[-\s+:]"), regex.compile(r"[-\s+:]\w*\d\w*"))
_NEXT_WORD = (regex.compile(r"(?r)\w*[-\s+:]"), regex.compile(r"[-\s+:]\w*"))
_API_KEY = regex.compile(API_KEY, regex.ASCII)
_API_KEY_RUN = (regex.compile(r"(?r)[A-Za-z0-9_.\-]*"), regex.compile(r"[A-Za-z0-9_.\-]*"))
_PRIVATE_KEY = regex.compile(PRIVATE_KEY, regex.ASCII)
_PRIVATE_KEY_LEAD = 51  # characters of its pattern before PRIVATE KEY, at most
_URL_CREDENTIALS = regex.compile(URL_CREDENTIALS, regex.ASCII)

_IBAN = re.compile(r"(?<![A-Z0-9])[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2}")
_IBAN_LEAST = 14  # characters of the longest match of _IBAN
_IBAN_REACH = 44  # 2 letters, 2 digits, seven groups of 1 + 4, one of 1 + 3, and the character after

# The gaps inside what phonenumbers takes for one candidate: punctuation, or what introduces an extension.
# `_JOINED_LEFT` takes more (any spaces and hyphens), because looking to the left it cannot see the # that must follow.
_GAP = f"[{re.escape(PHONE_PUNCTUATION)}x]{{0,{PHONE_GAP}}}"
_LABEL = (
    r";ext=|[ \xa0\t,]*(?:e?xt(?:ensi(?:o\u0301?|\xf3))?n?|\uff45?\uff58\uff54\uff4e?|\u0434\u043e\u0431|anexo"
    r"|[x\uff58#\uff03~\uff5e]|int|\uff49\uff4e\uff54)[:.\uff0e]?[ \xa0\t,-]*"
)
_JOINED_LEFT = regex.compile(rf"(?r)(?:\d(?:{_GAP}|{_LABEL}|[- ]+))*", regex.IGNORECASE)
_JOINED = regex.compile(rf"\d(?:{_GAP}\d|(?:{_LABEL})\d|[- ]+(?=\d{{1,6}}\#)\d)*", regex.IGNORECASE)
_LEAD = re.compile("[(\\[\uff08\uff3b+\uff0b]")
_LEAD_REACH = 2 * (1 + PHONE_GAP)  # two brackets or pluses may lead a number, each with punctuation after it
_PLUS = re.compile("[+\uff0b]")
INTERNATIONAL_DIGITS = 6  # of the shortest number with a plus that can be valid: +43, +49 or +98 and four digits
CARD_DIGITS, SSN_DIGITS = 13, 9  # of the shortest matches of Presidio's patterns
_EXTENDS = re.compile("[^\\W\\d]|[#\uff03~\uff5e;,:=]")  # letters and signs that may introduce an extension
_NUMBER_TYPES = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost"),
    *("personal_number", "voip", "pager", "uan", "voicemail"),
)


def email_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """The address around the @ at `at`, and on its right the addresses that share characters with it."""
    found = _AT.match(text, at)
    if not found:
        return None
    start = _LOCAL_PART.match(text, 0, at).start()
    while text[found.end() : found.end() + 1] == "@" and (following := _AT.match(text, found.end())):
        found = following
    return Window(start, found.end(1), start, found.end(1))


def internet_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """The run of word characters, colons, dots, per cents and slashes around `at`."""
    return _run(text, at, _INTERNET)


def hardware_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """The run of word characters, colons, dots and hyphens around `at`."""
    return _run(text, at, _HARDWARE)


def wallet_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """The run of letters and digits around `at`."""
    return _run(text, at, _WALLET)


def word_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """The run of word characters around `at`."""
    return _run(text, at, _WORD)


def code_window(text: str, start: int, end: int, regions: tuple[str, ...]) -> Window:
    """The words that the chain lies in, the words with digits that are a separator apart, and one more at either end.

    Some numbers begin or end with letters that a separator sets apart.
    """
    left, right = _WORD[0].match(text, 0, start).start(), _WORD[1].match(text, end).end()
    while found := _CODE_WORD[0].match(text, 0, left):
        left = found.start()
    while found := _CODE_WORD[1].match(text, right):
        right = found.end()
    if found := _NEXT_WORD[0].match(text, 0, left):
        left = found.start()
    if found := _NEXT_WORD[1].match(text, right):
        right = found.end()
    return Window(left, right, left, right)


def api_key_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """The run of letters, digits, dots, hyphens and underscores around `at`, if a key is in it."""
    window = _run(text, at, _API_KEY_RUN)
    return window if _API_KEY.search(text, window.start, window.end) else None


def private_key_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """The key whose first line has PRIVATE KEY at `at`."""
    start = text.rfind("-----BEGIN ", max(0, at - _PRIVATE_KEY_LEAD), at)
    found = _PRIVATE_KEY.match(text, start) if start >= 0 else None
    return Window(start, found.end(), start, found.end()) if found else None


def credentials_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """User, password and host after the :// at `at`, with the character before it."""
    found = _URL_CREDENTIALS.match(text, at + 3)
    return Window(at - 1, found.end(), at - 1, found.end()) if found else None


def _run(text: str, at: int, sides: tuple[Any, Any]) -> Window:
    start, end = sides[0].match(text, 0, at).start(), sides[1].match(text, at).end()
    return Window(start, end, start, end)


def iban_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """From the country letters before `at` as far as a match can reach, further where candidates begin in reach."""
    start = at - 3
    if not _IBAN.match(text, start):
        return None
    reach = start + _IBAN_REACH
    last = start
    while (found := _IBAN.search(text, last + 1, reach + _IBAN_LEAST)) and found.start() < reach:
        last = found.start()
        reach = last + _IBAN_REACH
    end = min(len(text), reach)
    return Window(start, end, start, end)


def chain_window(text: str, start: int, end: int, regions: tuple[str, ...]) -> Window:
    """The chain, with a word character on either side."""
    left = start - (start > 0 and _is_word(text[start - 1]))
    right = end + (end < len(text) and _is_word(text[end]))
    return Window(left, right, start, end)


def _is_word(character: str) -> bool:
    """Whether a character may be of class \\w, for which patterns look across the edge of a chain."""
    return not character.isascii() or character.isalnum() or character == "_"


def phone_window(text: str, start: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """From the first candidate that may be a number to the end of all that is joined to the chain.

    Leading brackets and pluses belong to it, and the neighbours for which phonenumbers refuses a number.
    """
    plus = _PLUS.search(text, max(0, start - _LEAD_REACH), start) is not None
    if not can_be_phone(text[start:end], plus, regions):
        return None
    start, end = _joined(text, start)
    high = end + (text[end : end + 1] == "#")
    lead = _LEAD.search(text, max(0, start - _LEAD_REACH), start)
    begin = _first_candidate(text, lead.start() if lead else start, high, regions)
    if begin is None:
        return Window(start, start, start, high)
    if begin and _decides(text[begin - 1]):
        begin -= 1
    if text[high : high + 1] == ":":
        return Window(begin, min(high + 3, len(text)), start, high)  # :34 after 2012-01-02 12 makes it a time
    return Window(begin, high + (high < len(text) and _decides(text[high])), start, high)


def _first_candidate(text: str, begin: int, end: int, regions: tuple[str, ...]) -> int | None:
    """Where the first candidate begins that phonenumbers can call valid. It walks over those before without a result.

    A table of numbers is one long chain that has almost no phone number in it and costs phonenumbers a millisecond for
    each twenty cells, so its own expressions are asked first which pieces it would try.
    """
    from phonenumbers.phonenumbermatcher import _PATTERN
    from phonenumbers.phonenumberutil import _SECOND_NUMBER_START_PATTERN

    while found := _PATTERN.search(text, begin, end):
        candidate = found.group()
        if second := _SECOND_NUMBER_START_PATTERN.search(candidate):
            candidate = candidate[: second.start()]
        plus = _PLUS.search(candidate) is not None
        if any(can_be_phone(piece, plus, regions, whole=True) for piece in _pieces(candidate)):
            return int(found.start())
        begin = found.start() + len(candidate)
    return None


def _pieces(candidate: str) -> Iterator[str]:
    """All that phonenumbers tries to read as a number in a candidate."""
    from phonenumbers.phonenumbermatcher import _INNER_MATCHES

    yield candidate
    for pattern in _INNER_MATCHES:
        if found := pattern.search(candidate):
            yield candidate[: found.start()]
        while found:
            yield found.group(1)
            found = pattern.search(candidate, found.start() + 1)


def _joined(text: str, at: int) -> tuple[int, int]:
    """Chains joined by labels of extensions, around the digit at `at`: no candidate of phonenumbers crosses the ends.

    Only a # that ends an extension is not in it.
    """
    found = _JOINED.match(text, _JOINED_LEFT.match(text, 0, at).start())
    while found.end() <= at:
        found = _JOINED.search(text, found.end())
    return found.span()


def _decides(character: str) -> bool:
    """Whether phonenumbers may refuse a number for this neighbour: a letter, a combining mark, a currency sign, %."""
    if character.isascii():
        return character.isalpha() or character in "%$"
    return not (_LEAD.match(character) or character.isdecimal())


def can_be_phone(piece: str, plus: bool, regions: tuple[str, ...], whole: bool = False) -> bool:
    """Whether a number in the piece can be valid, by the metadata that phonenumbers itself validates with.

    With `whole`, only the number that all digits of the piece make, but for those of an extension.
    """
    return (_can_be_phone if len(piece) <= 40 else _can_be_phone.__wrapped__)(piece, plus, regions, whole)


@lru_cache(1 << 16)
def _can_be_phone(piece: str, plus: bool, regions: tuple[str, ...], whole: bool) -> bool:
    if piece.isascii():
        digits = "".join(filter(str.isdigit, piece))
    else:
        digits = "".join(str(unicodedata.decimal(character, "")) for character in piece)
    if plus and len(digits) >= INTERNATIONAL_DIGITS:
        return True
    if sum(map(str.isalpha, piece)) >= 3:  # phonenumbers may read three letters as the digits of their keys
        return True
    if whole and not _EXTENDS.search(piece):
        return any(n.whole.fullmatch(digits) for n in map(_national, regions))
    return any(len(digits) >= n.least and n.part.search(digits) for n in map(_national, regions))


def phone_digits(regions: tuple[str, ...]) -> int:
    """The fewest digits of a number that can be valid in one of the regions, or with a plus."""
    return min(INTERNATIONAL_DIGITS, *(_national(region).least for region in regions))


class _National(NamedTuple):
    """What the digits of every valid number without a plus contain, and are, in a region, and how many at least."""

    part: re.Pattern[str]
    whole: re.Pattern[str]
    least: int


@cache
def _national(region: str) -> _National:
    """From the metadata of all regions of the calling code, since any of them may call the number its own.

    Where a region's rules add digits to what was written, only the length is left to go by.
    """
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata, country_code_for_region

    names = COUNTRY_CODE_TO_REGION_CODE[country_code_for_region(region)]
    own, *shared = (PhoneMetadata.metadata_for_region(name) for name in (region, *names))
    assert own is not None, f"{region}: no metadata, though check() asked phonenumbers for it"
    types = [getattr(metadata, name) for metadata in shared for name in _NUMBER_TYPES]
    kinds = [kind for kind in types if kind and kind.national_number_pattern]
    least = min(length for kind in kinds for length in kind.possible_length)
    rules = [metadata.national_prefix_transform_rule for metadata in (own, shared[0]) if metadata]
    rewritten = [re.sub(r"\\\d", "", rule or "", count=1) for rule in rules]
    if any(rewritten):
        least -= max(map(len, rewritten))
        return _National(re.compile(""), re.compile(rf"\d{{{least},}}"), least)
    abroad = rf"(?:{own.international_prefix})\d{{{INTERNATIONAL_DIGITS}}}"
    patterns = "|".join(sorted({kind.national_number_pattern for kind in kinds}))
    prefixes = [str(own.country_code), *(m.national_prefix_for_parsing for m in (own, shared[0]) if m)]
    before = "|".join(sorted({prefix for prefix in prefixes if prefix}))
    whole = rf"{abroad}\d*|(?:{before}){{0,3}}(?:{patterns})"  # the country's code, and a prefix before and after it
    return _National(re.compile(f"{abroad}|{patterns}"), re.compile(whole), least)


GATES: dict[str, Gate] = {
    "EMAIL_ADDRESS": Gate(("at",), email_window),
    "PHONE_NUMBER": Gate((), phone_window, phone_digits),
    "CREDIT_CARD": Gate((), chain_window, lambda regions: CARD_DIGITS),
    "IBAN_CODE": Gate(("iban",), iban_window),
    "US_SSN": Gate((), chain_window, lambda regions: SSN_DIGITS),
    "IP_ADDRESS": Gate(("quad", "colons"), internet_window),
    "CRYPTO": Gate(("wallet",), wallet_window),
    "MAC_ADDRESS": Gate(("hardware",), hardware_window),
    "URL_CREDENTIALS": Gate(("userinfo",), credentials_window),
    "API_KEY": Gate(("secret",), api_key_window),
    "PRIVATE_KEY": Gate(("private",), private_key_window),
    "IT_FISCAL_CODE": Gate(("fiscal",), word_window),
}
# Identity numbers by the fewest digits of a match, in a chain of digits with single letters or separators between them.
_IDENTITIES = {
    6: ("UK_NINO",),
    7: ("ES_NIE", "ES_NIF", "SG_NRIC_FIN"),
    9: ("AU_TFN", "CA_SIN", "FI_PERSONAL_IDENTITY_CODE", "US_ITIN"),
    10: ("AU_MEDICARE", "SE_PERSONNUMMER", "UK_NHS"),
    11: ("DE_SOCIAL_SECURITY", "DE_TAX_ID", "NG_NIN", "PL_PESEL", "TR_NATIONAL_ID"),
    12: ("IN_AADHAAR",),
    13: ("KR_RRN", "TH_TNIN", "ZA_ID_NUMBER"),
}


def _code_gate(least: int) -> Gate:
    return Gate((), code_window, lambda regions: least, codes=True)


GATES |= {entity: _code_gate(least) for least, entities in _IDENTITIES.items() for entity in entities}
