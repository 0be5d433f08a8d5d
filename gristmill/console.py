"""Text of strangers on a terminal: escaped, as `gristmill.terminal` does it, and clipped."""

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from gristmill.terminal import printable as printable

_VALUE = 200  # characters shown of a single value


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

    def fields(self, values: Mapping[str, str], indent: int = 2) -> None:
        """Names and values, one below the other; the values begin in one column."""
        width = max([26 - indent, *(len(printable(name)) for name in values)])
        for name, value in values.items():
            self.field(name, value, indent, width)

    def field(self, name: str, value: str, indent: int = 2, width: int = 0) -> None:
        """A name and a value, clipped; `width` is that of the name's column."""
        if len(value) > _VALUE:
            value = f"{value[:_VALUE]}... ({len(value) - _VALUE:,} more characters)"
        self.line(f"{' ' * indent}{printable(name):<{width or 26 - indent}} {printable(value)}")

    def text(self, text: str, limits: tuple[int, int]) -> None:
        """The beginning of a text: at most so many characters and lines."""
        characters, lines = limits
        shown = "\n".join(text[:characters].split("\n")[:lines])
        for line in printable(shown, lines=True).split("\n"):
            self.line(f"  | {line}")
        hidden = len(text.encode()) - len(shown.encode())
        if hidden:
            self.line(f"  ({hidden:,} more bytes not shown)")
