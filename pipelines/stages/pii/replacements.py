"""Replacements for personal data in a text: a placeholder, a mask, a keyed hash, or a pseudonym that is valid
in form.

Hashes and pseudonyms are derived from the HMAC-SHA256 of entity and value under the user's key. So equal
values have equal replacements in every document and run with that key, and without the key nobody can recover
a value by trying all telephone numbers. Values are compared in a canonical form: e-mail addresses in lower
case, numbers as their digits and letters. Some pseudonyms keep the punctuation of the value.

Pseudonyms come from ranges that are reserved for examples or belong to nobody. Some of these ranges are small,
so different values can share a pseudonym.

| entity | pseudonym | reserved by |
|---|---|---|
| EMAIL_ADDRESS | 50 bits of letters and digits at example.com, .net, .org | RFC 2606 |
| PHONE_NUMBER | +44 20 7946 0000 to 0999 for values that begin with +44, else 555-0100 to 0199 in 40 area codes | Ofcom, \
NANPA |
| IP_ADDRESS | 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24; 2001:db8::/32 | RFC 5737, RFC 3849 |
| MAC_ADDRESS | 00:00:5E:00:53:00 to FF | RFC 7042 |
| CREDIT_CARD | 4000 00, random digits, Luhn's digit | Stripe's test cards |
| IBAN_CODE | GB, bank TEST, sort code 000000, mod 97 | no such bank |
| US_SSN | 900 to 999, group 01 to 49 | never issued as SSN or ITIN |
| CRYPTO | a Bitcoin address with its checksum | nobody has its key |
"""

import hashlib
import hmac
import ipaddress
import os
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Literal

Action = Literal["placeholder", "mask", "hmac", "pseudonym", "annotate"]
KEYED: tuple[str, ...] = ("hmac", "pseudonym")
_KEY_BYTES = 16  # minimum: 128 bits
_HASH_DIGITS = 16  # hexadecimal, 64 bits: among a billion values, two collide with a probability of 3 %
_AREAS = (
    *(*range(201, 204), 205, 206, 208, *range(212, 220), 224, 225, 228, 229, 231, 234),
    *(*range(301, 306), *range(307, 311), 312, 401, 402, *range(404, 411), 412),
)
_AS_WRITTEN = (
    *(
        "CRYPTO",
        "URL_CREDENTIALS",
        "API_KEY",
        "PRIVATE_KEY",
        "SECRET",
        "URL",
        "PERSON",
        "LOCATION",
        "ORGANIZATION",
        "NRP",
    ),
    *("STREET_ADDRESS", "DATE_TIME"),
)
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def read_key(where: str) -> bytes:
    """Return the key at `file:PATH` or `env:NAME`. Raises ValueError if there is none or it is too short. The
    message never quotes the key.
    """
    kind, _, name = where.partition(":")
    if kind == "file" and name:
        try:
            key = Path(name).read_bytes().strip()
        except OSError as error:
            raise ValueError(f"key: the file cannot be read: {error.strerror}") from None
    elif kind == "env" and name:
        key = os.environ.get(name, "").strip().encode()
    else:
        raise ValueError("key: expected file:PATH or env:NAME, which give the location of the key, not the key itself")
    if len(key) < _KEY_BYTES:
        make = "python -c 'import secrets; print(secrets.token_hex(32))'"
        raise ValueError(f"key: {kind} holds {len(key)} bytes, expected at least {_KEY_BYTES}; make one with {make}")
    return key


def fingerprint(key: bytes) -> str:
    """Return a digest that distinguishes keys without revealing them."""
    return hmac.new(key, b"fingerprint", hashlib.sha256).hexdigest()[:16]


def replacement(action: str, entity: str, value: str, key: bytes) -> str:
    """Return the text that replaces a value under an action other than `annotate`. `pseudonym` needs an
    entity in PSEUDONYMS. `key` is used only for `hmac` and `pseudonym`.
    """
    if action == "mask":
        return "".join(character if character.isspace() else "*" for character in value)
    if action == "placeholder":
        return f"<{entity}>"
    form = _canonical(entity, value)
    digest = hmac.new(key, f"{entity}\0{form}".encode(), hashlib.sha256).digest()
    if action == "hmac":
        return f"<{entity}:{digest.hex()[:_HASH_DIGITS]}>"
    return PSEUDONYMS[entity](value, int.from_bytes(digest))


def is_public(value: str) -> bool:
    """Return whether an IP address belongs to the public internet. Addresses that the standard library cannot
    parse count as public.
    """
    address = _address(value)
    return address is None or address.is_global


def _address(value: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address, ignoring its zone and prefix length. Returns None for values that Presidio accepts
    but the standard library does not.
    """
    try:
        return ipaddress.ip_address(value.partition("/")[0].partition("%")[0])
    except ValueError:
        return None


def _canonical(entity: str, value: str) -> str:
    """Normalise a value before it is hashed, so that different spellings of it have the same hash."""
    if entity == "EMAIL_ADDRESS":
        return value.lower()
    if entity == "IP_ADDRESS":
        return str(_address(value) or value.lower())
    if entity == "PHONE_NUMBER":
        digits = _digits(value)
        return digits[1:] if len(digits) == 11 and digits[0] == "1" else digits
    if entity in _AS_WRITTEN:
        return value
    return "".join(filter(str.isalnum, value)).upper()


def _digits(value: str) -> str:
    return "".join(str(unicodedata.decimal(character, "")) for character in value)


def _fill_digits(value: str, digits: str) -> str:
    """Return `value` with its digits replaced by `digits`, in order, or `digits` alone if `value` has more or
    fewer digits.
    """
    if sum(map(str.isdecimal, value)) != len(digits):
        return digits
    following = iter(digits)
    return "".join(next(following) if character.isdecimal() else character for character in value)


def _email(value: str, number: int) -> str:
    name = "".join(_BASE32[number >> 5 * i & 31] for i in range(10))
    return f"{name}@example.{('com', 'net', 'org')[(number >> 50) % 3]}"


def _phone(value: str, number: int) -> str:
    digits = _digits(value)
    abroad = value.lstrip("([ ").startswith(("+", "\uff0b")) and not digits.startswith("1")
    if abroad and digits.startswith("44"):
        return f"+44 20 7946 0{number % 1000:03d}"
    area, line = _AREAS[number // 100 % len(_AREAS)], f"{number % 100:02d}"
    local = f"{area}55501{line}"
    if digits[:1] == "1" and len(digits) == 11:
        return _fill_digits(value, f"1{local}")
    return _fill_digits(value, local) if len(digits) == 10 and not abroad else f"+1 {area}-555-01{line}"


def _ip(value: str, number: int) -> str:
    if ":" not in value:
        return f"{('192.0.2', '198.51.100', '203.0.113')[(number >> 8) % 3]}.{number & 255}"
    return str(ipaddress.IPv6Address(0x20010DB8 << 96 | number & (1 << 96) - 1))


def _mac(value: str, number: int) -> str:
    digits = iter(f"00005E0053{number & 255:02X}")
    return "".join(next(digits) if character.isalnum() else character for character in value)


def _card(value: str, number: int) -> str:
    digits = f"400000{number % 10**9:09d}"
    doubled = [int(digit) * (2 - i % 2) for i, digit in enumerate(digits)]
    check = -sum(digit - 9 * (digit > 9) for digit in doubled) % 10
    return _fill_digits(value, f"{digits}{check}")


def _iban(value: str, number: int) -> str:
    account = f"TEST000000{number % 10**8:08d}"
    check = 98 - int("".join(str(int(character, 36)) for character in f"{account}GB00")) % 97
    iban = f"GB{check:02d}{account}"
    return " ".join(iban[at : at + 4] for at in range(0, len(iban), 4)) if " " in value else iban


def _ssn(value: str, number: int) -> str:
    area, rest = number % 100, number // 100
    group, serial = 1 + rest % 49, 1 + rest // 49 % 9999
    return _fill_digits(value, f"{900 + area}{group:02d}{serial:04d}")


def _wallet(value: str, number: int) -> str:
    payload = b"\0" + number.to_bytes(32)[:20]
    whole = payload + hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:4]
    rest, text = int.from_bytes(whole), ""
    while rest:
        rest, digit = divmod(rest, 58)
        text = _BASE58[digit] + text
    return "1" * (len(whole) - len(whole.lstrip(b"\0"))) + text


PSEUDONYMS: dict[str, Callable[[str, int], str]] = {
    "EMAIL_ADDRESS": _email,
    "PHONE_NUMBER": _phone,
    "IP_ADDRESS": _ip,
    "MAC_ADDRESS": _mac,
    "CREDIT_CARD": _card,
    "IBAN_CODE": _iban,
    "US_SSN": _ssn,
    "CRYPTO": _wallet,
}
