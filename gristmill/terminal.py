"""Make text safe for terminals, and format sizes, counts and times."""

import re

# Control characters; characters that reorder or hide text (bidirectional controls, invisible operators, line
# separators, tags); and code points that are no characters: U+FFFE, U+FFFF and halves of surrogate pairs.
# Joiners are not included, because emoji and several scripts need them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def printable(text: str, lines: bool = False) -> str:
    """Replace characters that are unsafe on a terminal with their Python escapes: control characters, lone
    surrogates, and characters that hide or reorder text. With `lines`, line feeds and tabs are kept.
    """
    return _UNSAFE.sub(lambda found: found[0] if lines and found[0] in "\n\t" else _escaped(found[0]), text)


def is_utf8(text: str) -> bool:
    """Return whether `text` can be encoded as UTF-8. A command-line argument or file name with other bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def human_seconds(seconds: float) -> str:
    """Format a duration in a suitable unit: `35 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for limit, size, unit in ((100, 1, "s"), (6000, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            amount = seconds / size
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86_400:.1f} days"


def human_count(count: float) -> str:
    """Format a count with at most three significant digits and a unit for the power of 1000: `1.47M`."""
    for unit in ("", "k", "M", "G"):
        if count < 999.5:  # from there on, three digits round to the next unit
            return f"{count:.0f}" if not unit else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T" if count < 999.5 else f"{count:,.0f}T"


def human_bytes(size: float) -> str:
    """Format a number of bytes with decimal units (powers of 1000): `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.95:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def quantity(number: int, noun: str) -> str:
    """Format a number with a noun, adding `s` to the noun unless the number is 1: `1 document`, `1,024
    documents`.
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
