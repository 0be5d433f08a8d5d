"""Text of strangers on a terminal: escaped, so that no document can steer it, and clipped."""

import re

from rich.console import Console
from rich.text import Text

_VALUE = 200  # characters shown of a single value

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


class Page:
    """Lines on the terminal; nothing in them is taken for markup, and what its encoding lacks is escaped."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)

    def line(self, text: str = "", style: str = "") -> None:
        """One line; it is not folded."""
        encoding = self._console.encoding
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._console.print(Text(text, style=style), soft_wrap=True)

    def heading(self, text: str) -> None:
        """A bold line after an empty one."""
        self.line()
        self.line(printable(text), "bold")

    def field(self, name: str, value: str, indent: int = 2) -> None:
        """A name and a value, clipped."""
        if len(value) > _VALUE:
            value = f"{value[:_VALUE]}... ({len(value) - _VALUE:,} more characters)"
        self.line(f"{' ' * indent}{printable(name):<{26 - indent}} {printable(value)}")

    def text(self, text: str, limits: tuple[int, int]) -> None:
        """The beginning of a text: at most so many characters and lines."""
        characters, lines = limits
        shown = "\n".join(text[:characters].split("\n")[:lines])
        for line in printable(shown, lines=True).split("\n"):
            self.line(f"  | {line}")
        hidden = len(text.encode()) - len(shown.encode())
        if hidden:
            self.line(f"  ({hidden:,} more bytes not shown)")
