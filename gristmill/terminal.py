"""Text of strangers on a terminal: escaped, so that no document, name of a file or model can steer it."""

import re

# Control characters, and what reorders or hides text: bidirectional controls, invisible operators, line separators,
# tags. Joiners stay: emoji and several scripts need them.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def printable(text: str, lines: bool = False) -> str:
    r"""Text that is safe on a terminal: control and invisible characters become `\x1b` or `\u202e`.

    Line feeds and tabs stay where `lines` says so.
    """
    return _UNSAFE.sub(lambda found: found[0] if lines and found[0] in "\n\t" else _escaped(found[0]), text)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
