"""Console output: lines of text, escaped and clipped; a progress display; and lists of names with their
meanings.
"""

import inspect
import re
import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from gristmill.terminal import printable

_VALUE = 200  # characters shown of a single value
_PLAIN_INTERVAL_SECONDS = 10.0


class Page:
    """Prints lines, headings, fields and texts to the terminal. Characters that the terminal's encoding
    cannot represent are escaped.
    """

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False)

    def line(self, text: str = "", style: str = "") -> None:
        """Print one line, without wrapping. Control characters in `text` are not escaped."""
        encoding = self._console.encoding
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._console.print(Text(text, style=style), soft_wrap=True)

    def heading(self, text: str) -> None:
        """Print an empty line, then the heading in bold."""
        self.line()
        self.line(printable(text), "bold")

    def fields(self, values: Mapping[str, str], indent: int = 2) -> None:
        """Print names and values, one pair per line, with the values aligned."""
        width = max([26 - indent, *(len(printable(name)) for name in values)])
        for name, value in values.items():
            self.field(name, value, indent, width)

    def field(self, name: str, value: str, indent: int = 2, width: int = 0) -> None:
        """Print a name and a value on one line. Values are cut off after 200 characters. The column of the
        name is `width` characters wide; 0 means 26 minus `indent`.
        """
        if len(value) > _VALUE:
            value = f"{value[:_VALUE]}... ({len(value) - _VALUE:,} more characters)"
        self.line(f"{' ' * indent}{printable(name):<{width or 26 - indent}} {printable(value)}")

    def text(self, text: str, limits: tuple[int, int]) -> None:
        """Print the beginning of a text, at most `limits` (characters, lines). If the text is longer, also
        print how many bytes are not shown.
        """
        characters, lines = limits
        shown = "\n".join(text[:characters].split("\n")[:lines])
        for line in printable(shown, lines=True).split("\n"):
            self.line(f"  | {line}")
        hidden = len(text.encode()) - len(shown.encode())
        if hidden:
            self.line(f"  ({hidden:,} more bytes not shown)")


class ProgressDisplay:
    """Shows progress: as a bar on a terminal, and elsewhere as at most one line every ten seconds."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, emoji=False)
        self._bars = Progress(
            TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self._console, transient=True,
        )  # fmt: skip
        self._live = sys.stdout.isatty()
        self._task: TaskID | None = None
        self._phase = ""
        self._last_line = 0.0
        self._started = time.perf_counter()

    def __enter__(self) -> "ProgressDisplay":
        if self._live:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bars.stop()

    def say(self, line: str) -> None:
        """Print a line, preceded by the seconds since the display was created. If there is a bar, the line
        appears above it.
        """
        self._console.print(
            f"[dim]{time.perf_counter() - self._started:6.1f}s[/dim] {escape(printable(line))}", soft_wrap=True
        )

    def progress(self, phase: str, done: int, total: int) -> None:
        """Show that `done` of the `total` tasks of a phase are finished."""
        if self._live:
            if self._task is None or phase != self._phase:
                if self._task is not None:
                    self._bars.remove_task(self._task)
                self._task = self._bars.add_task(phase, total=total)
            self._bars.update(self._task, completed=done)
        elif total > 1 and done and time.perf_counter() - self._last_line > _PLAIN_INTERVAL_SECONDS:
            self._last_line = time.perf_counter()
            self.say(f"  {phase}: {done} of {total}")
        self._phase = phase


def wide_console() -> Console:
    """Return a console as wide as the terminal, or 120 columns wide if the output is a file or pipe."""
    return Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 120)


def print_pairs(pairs: Mapping[str, str]) -> None:
    """Print names and what they mean, one pair per line, with the meanings aligned."""
    width = max(map(len, pairs), default=0)
    for name, meaning in pairs.items():
        print(f"{name:<{width}}  {meaning}")


def first_sentence(documented: object) -> str:
    """Return the first sentence of an object's docstring, without its full stop."""
    text = " ".join((inspect.getdoc(documented) or "").split())
    return re.split(r"(?<!et al)\.(?: |$)", text, maxsplit=1)[0]
