"""Cut windows around hits, with enough context for Presidio to find the same entities as in the whole text.

A window is cut where no match of the entity's patterns can cross, and contains every neighbouring character
that can decide whether they match. Neighbours that the patterns treat like the edge of the text are excluded,
so that equal candidates have equal windows and their results can be cached. Offsets are in code points.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Any, NamedTuple

import regex

from pipelines.kernels.search.pii_gate import PHONE_GAP, PHONE_PUNCTUATION, Kind
from pipelines.stages.pii.recognizers import API_KEY, PRIVATE_KEY, URL_CREDENTIALS, WHOLE_TEXT


class Window(NamedTuple):
    """The part text[start:end] of a text, to be analysed. A match counts only if it ends in (low, high]. All
    four fields are offsets in the text.
    """

    start: int
    end: int
    low: int
    high: int


Cut = Callable[[str, int, int, tuple[str, ...]], "Window | None"]  # (text, start and end of a hit, phone regions)


class Gate(NamedTuple):
    """How to find candidates of an entity: the kinds of hits, and a function that cuts the window around a
    hit.

    With `digits`, hits are chains of at least `digits(phone regions)` digits. With `codes`, the gaps within a
    chain may be those of identity numbers instead of those of phone numbers. With neither kinds nor digits,
    every text is one window.
    """

    kinds: tuple[Kind, ...]
    cut: Cut
    digits: Callable[[tuple[str, ...]], int] | None = None
    codes: bool = False


# Presidio's e-mail pattern: the characters of a local part, and an @ with the characters that surround it in
# any match, then the longest host name and the longest local part of another address that can follow.
_ADDRESS = r"[!#$%&'*+\-/=?^_`{|}~\.\w]"
_LOCAL_PART = regex.compile(rf"(?r){_ADDRESS}*")
_AT = regex.compile(rf"(?<=[!#$%&'*+\-/=?^_`{{|}}~\w])@(?=\w+(?:-+\w+)*\.\w)([\w.\-]*+){_ADDRESS}*+")
# Runs of all characters that a pattern matches or looks at, to the left and to the right.
_INTERNET = (regex.compile(r"(?r)[\w:.%/]*"), regex.compile(r"[\w:.%/]*"))
_HARDWARE = (regex.compile(r"(?r)[\w:.\-]*"), regex.compile(r"[\w:.\-]*"))
_WALLET = (regex.compile(r"(?ri)[a-z0-9]*"), regex.compile(r"(?i)[a-z0-9]*"))  # Presidio ignores case
_WORD = (regex.compile(r"(?r)\w*"), regex.compile(r"\w*"))
# A word with a digit and the separator between it and the next word, to the left and to the right; and any
# word.
_CODE_WORD = (regex.compile(r"(?r)\w*\d\w*[-\s+:]"), regex.compile(r"[-\s+:]\w*\d\w*"))
_NEXT_WORD = (regex.compile(r"(?r)\w*[-\s+:]"), regex.compile(r"[-\s+:]\w*"))
_API_KEY = regex.compile(API_KEY, regex.ASCII)
_API_KEY_RUN = (regex.compile(r"(?r)[A-Za-z0-9_.\-]*"), regex.compile(r"[A-Za-z0-9_.\-]*"))
_PRIVATE_KEY = regex.compile(PRIVATE_KEY, regex.ASCII)
_PRIVATE_KEY_LEAD = 51  # maximum characters of its pattern before PRIVATE KEY
_URL_CREDENTIALS = regex.compile(URL_CREDENTIALS, regex.ASCII)

_SECRET_NAME = re.compile(r"secret|token|passw|passphrase|pwd|key|credential", re.IGNORECASE)

_IBAN = re.compile(r"(?<![A-Z0-9])[A-Z]{2}[0-9]{2}(?:[ -]?[A-Z0-9]{4}){2}")
_IBAN_MIN_LENGTH = 14  # characters of the longest match of _IBAN
_IBAN_REACH = 44  # 2 letters, 2 digits, seven groups of 1 + 4, one of 1 + 3, and the next character

# Gaps inside a candidate of phonenumbers: punctuation, or the label of an extension. `_JOINED_LEFT` matches
# more (any spaces and hyphens), because leftwards it cannot see the # that must follow.
_GAP = f"[{re.escape(PHONE_PUNCTUATION)}x]{{0,{PHONE_GAP}}}"
_LABEL = (
    r";ext=|[ \xa0\t,]*(?:e?xt(?:ensi(?:o\u0301?|\xf3))?n?|\uff45?\uff58\uff54\uff4e?|\u0434\u043e\u0431|anexo"
    r"|[x\uff58#\uff03~\uff5e]|int|\uff49\uff4e\uff54)[:.\uff0e]?[ \xa0\t,-]*"
)
_JOINED_LEFT = regex.compile(rf"(?r)(?:\d(?:{_GAP}|{_LABEL}|[- ]+))*", regex.IGNORECASE)
_JOINED = regex.compile(rf"\d(?:{_GAP}\d|(?:{_LABEL})\d|[- ]+(?=\d{{1,6}}\#)\d)*", regex.IGNORECASE)
_LEAD = re.compile("[(\\[\uff08\uff3b+\uff0b]")
_LEAD_REACH = 2 * (1 + PHONE_GAP)  # two brackets or pluses may precede a number, each followed by punctuation
_PLUS = re.compile("[+\uff0b]")
INTERNATIONAL_DIGITS = 6  # of the shortest valid number with a plus: +43, +49 or +98 and four digits
CARD_DIGITS, SSN_DIGITS = 13, 9  # of the shortest matches of Presidio's patterns
_EXTENDS = re.compile("[^\\W\\d]|[#\uff03~\uff5e;,:=]")  # letters and signs that may introduce an extension
_NUMBER_TYPES = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost"),
    *("personal_number", "voip", "pager", "uan", "voicemail"),
)


def email_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """Return the address around the @ at `at`, and the addresses to its right that share characters with it,
    or None if there is no address.
    """
    match = _AT.match(text, at)
    if not match:
        return None
    start = _LOCAL_PART.match(text, 0, at).start()
    while text[match.end() : match.end() + 1] == "@" and (following := _AT.match(text, match.end())):
        match = following
    return Window(start, match.end(1), start, match.end(1))


def internet_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """Return the run of word characters, colons, dots, percent signs and slashes around `at`."""
    return _run(text, at, _INTERNET)


def hardware_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """Return the run of word characters, colons, dots and hyphens around `at`."""
    return _run(text, at, _HARDWARE)


def wallet_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """Return the run of characters around `at` that match [a-z0-9], ignoring case."""
    return _run(text, at, _WALLET)


def word_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """Return the run of word characters around `at`."""
    return _run(text, at, _WORD)


def code_window(text: str, start: int, end: int, regions: tuple[str, ...]) -> Window:
    """Return the chain text[start:end], extended to whole words, then over neighbouring words with digits,
    and then by one more word, if there is one, on each side.

    The last words are needed because some identity numbers begin or end with letters.
    """
    left, right = _WORD[0].match(text, 0, start).start(), _WORD[1].match(text, end).end()
    while match := _CODE_WORD[0].match(text, 0, left):
        left = match.start()
    while match := _CODE_WORD[1].match(text, right):
        right = match.end()
    if match := _NEXT_WORD[0].match(text, 0, left):
        left = match.start()
    if match := _NEXT_WORD[1].match(text, right):
        right = match.end()
    return Window(left, right, left, right)


def api_key_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """Return the run of ASCII letters, digits, dots, hyphens and underscores around `at`, or None if it
    contains no key.
    """
    window = _run(text, at, _API_KEY_RUN)
    return window if _API_KEY.search(text, window.start, window.end) else None


def private_key_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """Return the key whose first line has PRIVATE KEY at `at`, or None if there is no such key."""
    start = text.rfind("-----BEGIN ", max(0, at - _PRIVATE_KEY_LEAD), at)
    match = _PRIVATE_KEY.match(text, start) if start >= 0 else None
    return Window(start, match.end(), start, match.end()) if match else None


def secret_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """Return the line around `at`, or None if no word for a secret comes before `at` in the line."""
    start, stop = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    stop = len(text) if stop < 0 else stop
    return Window(start, stop, start, stop) if _SECRET_NAME.search(text, start, at) else None


def whole_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window:
    """Return the whole text."""
    return Window(0, len(text), 0, len(text))


def credentials_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """Return the user, password, host and port after the :// at `at`, and the character before the ://, or
    None if there is no password.
    """
    match = _URL_CREDENTIALS.match(text, at + 3)
    return Window(at - 1, match.end(), at - 1, match.end()) if match else None


def _run(text: str, at: int, sides: tuple[Any, Any]) -> Window:
    start, end = sides[0].match(text, 0, at).start(), sides[1].match(text, at).end()
    return Window(start, end, start, end)


def iban_window(text: str, at: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """Return the window from the country letters before `at` to the end of the longest IBAN that may begin
    there, or None if no IBAN can. If another candidate begins within this range, the window also covers that
    candidate, and so on.
    """
    start = at - 3
    if not _IBAN.match(text, start):
        return None
    reach = start + _IBAN_REACH
    last = start
    while (match := _IBAN.search(text, last + 1, reach + _IBAN_MIN_LENGTH)) and match.start() < reach:
        last = match.start()
        reach = last + _IBAN_REACH
    end = min(len(text), reach)
    return Window(start, end, start, end)


def chain_window(text: str, start: int, end: int, regions: tuple[str, ...]) -> Window:
    """Return the chain text[start:end], with the neighbouring character on each side if it may be a word
    character.
    """
    left = start - (start > 0 and _is_word(text[start - 1]))
    right = end + (end < len(text) and _is_word(text[end]))
    return Window(left, right, start, end)


def _is_word(character: str) -> bool:
    return not character.isascii() or character.isalnum() or character == "_"


def phone_window(text: str, start: int, end: int, regions: tuple[str, ...]) -> Window | None:
    """Return a window from the first candidate for a phone number in a chain of digits to the end of the
    chain. The chain consists of text[start:end] and the chains that extension labels, such as "ext.", join to
    it.

    Return None if text[start:end] by itself cannot be a phone number, and an empty window if the whole chain
    contains no candidate.
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
    if begin and _may_reject(text[begin - 1]):
        begin -= 1
    if text[high : high + 1] == ":":
        return Window(begin, min(high + 3, len(text)), start, high)  # :34 after 2012-01-02 12 makes it a time
    return Window(begin, high + (high < len(text) and _may_reject(text[high])), start, high)


def _first_candidate(text: str, begin: int, end: int, regions: tuple[str, ...]) -> int | None:
    """Return the start of the first candidate in text[begin:end] that phonenumbers might accept as a valid
    number, or None. Skipping hopeless candidates here saves time, because phonenumbers is slow on long tables
    of numbers.
    """
    from phonenumbers.phonenumbermatcher import _PATTERN
    from phonenumbers.phonenumberutil import _SECOND_NUMBER_START_PATTERN

    while match := _PATTERN.search(text, begin, end):
        candidate = match.group()
        if second := _SECOND_NUMBER_START_PATTERN.search(candidate):
            candidate = candidate[: second.start()]
        plus = _PLUS.search(candidate) is not None
        if any(can_be_phone(piece, plus, regions, whole=True) for piece in _pieces(candidate)):
            return int(match.start())
        begin = match.start() + len(candidate)
    return None


def _pieces(candidate: str) -> Iterator[str]:
    """Yield all pieces of a candidate that phonenumbers tries to parse as a number."""
    from phonenumbers.phonenumbermatcher import _INNER_MATCHES

    yield candidate
    for pattern in _INNER_MATCHES:
        if match := pattern.search(candidate):
            yield candidate[: match.start()]
        while match:
            yield match.group(1)
            match = pattern.search(candidate, match.start() + 1)


def _joined(text: str, at: int) -> tuple[int, int]:
    """Return the span of the chain that contains the digit at `at`, together with the chains joined to it by
    extension labels. A candidate that phonenumbers finds may exceed this span only by brackets, pluses and
    punctuation before the first digit, and by the # that ends an extension.
    """
    match = _JOINED.match(text, _JOINED_LEFT.match(text, 0, at).start())
    while match.end() <= at:
        match = _JOINED.search(text, match.end())
    return match.span()


def _may_reject(character: str) -> bool:
    if character.isascii():
        return character.isalpha() or character in "%$"
    return not (_LEAD.match(character) or character.isdecimal())


def can_be_phone(piece: str, plus: bool, regions: tuple[str, ...], whole: bool = False) -> bool:
    """Return whether a piece may contain a valid phone number; when in doubt, True. `plus` says whether the
    number may begin with a plus, inside or before the piece.

    With `whole`, the number must consist of all digits of the piece, apart from those of an extension.
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
    if sum(map(str.isalpha, piece)) >= 3:  # phonenumbers may read three or more letters as keypad digits
        return True
    if whole and not _EXTENDS.search(piece):
        return any(n.whole.fullmatch(digits) for n in map(_national, regions))
    return any(len(digits) >= n.least and n.part.search(digits) for n in map(_national, regions))


def phone_digits(regions: tuple[str, ...]) -> int:
    """Return the minimum number of digits of a valid phone number that is written with a plus or belongs to
    one of the `regions`.
    """
    return min(INTERNATIONAL_DIGITS, *(_national(region).least for region in regions))


class _National(NamedTuple):
    """Conditions that every valid phone number of a region meets if it is written without a plus: its digits
    contain a match of `part`, match `whole` from end to end, and number at least `least`.
    """

    part: re.Pattern[str]
    whole: re.Pattern[str]
    least: int


@cache
def _national(region: str) -> _National:
    """Return conditions that every phone number of a region meets. Numbers of the other regions with the same
    calling code meet them too, because phonenumbers may assign a number to any of these regions.

    If the rules of a region add digits to the written number, the only condition is a minimum number of
    digits.
    """
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata, country_code_for_region

    names = COUNTRY_CODE_TO_REGION_CODE[country_code_for_region(region)]
    own, *shared = (PhoneMetadata.metadata_for_region(name) for name in (region, *names))
    assert own is not None, f"{region}: no metadata, though check() asked phonenumbers for it"
    types = [getattr(metadata, name) for metadata in shared for name in _NUMBER_TYPES]
    kinds = [kind for kind in types if kind and kind.national_number_pattern]
    fewest = min(length for kind in kinds for length in kind.possible_length)
    rules = [metadata.national_prefix_transform_rule for metadata in (own, shared[0]) if metadata]
    rewritten = [re.sub(r"\\\d", "", rule or "", count=1) for rule in rules]
    if any(rewritten):
        fewest -= max(map(len, rewritten))
        return _National(re.compile(""), re.compile(rf"\d{{{fewest},}}"), fewest)
    abroad = rf"(?:{own.international_prefix})\d{{{INTERNATIONAL_DIGITS}}}"
    patterns = "|".join(sorted({kind.national_number_pattern for kind in kinds}))
    prefixes = [str(own.country_code), *(m.national_prefix_for_parsing for m in (own, shared[0]) if m)]
    before = "|".join(sorted({prefix for prefix in prefixes if prefix}))
    # the country code, with optional prefixes before and after it
    whole = rf"{abroad}\d*|(?:{before}){{0,3}}(?:{patterns})"
    return _National(re.compile(f"{abroad}|{patterns}"), re.compile(whole), fewest)


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
    "SECRET": Gate(("value",), secret_window),
    "IT_FISCAL_CODE": Gate(("fiscal",), word_window),
}
# Identity numbers by the minimum digits of a match, in a chain of digits with single letters or separators in
# between.
_IDENTITIES = {
    6: ("UK_NINO",),
    7: ("ES_NIE", "ES_NIF", "SG_NRIC_FIN"),
    9: ("AU_TFN", "CA_SIN", "FI_PERSONAL_IDENTITY_CODE", "US_ITIN"),
    10: ("AU_MEDICARE", "SE_PERSONNUMMER", "UK_NHS"),
    11: ("DE_SOCIAL_SECURITY", "DE_TAX_ID", "NG_NIN", "PL_PESEL", "TR_NATIONAL_ID"),
    12: ("IN_AADHAAR",),
    13: ("KR_RRN", "TH_TNIN", "ZA_ID_NUMBER"),
}


def _code_gate(fewest: int) -> Gate:
    return Gate((), code_window, lambda regions: fewest, codes=True)


GATES |= {entity: Gate((), whole_window) for entity in WHOLE_TEXT}
GATES |= {entity: _code_gate(least) for least, entities in _IDENTITIES.items() for entity in entities}
