"""Repair mojibake by edits, with ftfy (https://ftfy.readthedocs.io). Mojibake is text in one encoding that
was decoded in another, such as `Ã©` for `é`.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import pyarrow as pa

from gristmill.libraries.extras import install_extra
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.document import TARGET_MARK
from pipelines.contracts.edits import EDITS, edits_column
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage, library_versions
from pipelines.reading.entries.normalise import normalise

_LIBRARY = "ftfy"
_COUNT = "mojibake_count"
_RULE = "mojibake"
# What repairs leave as it is: ASCII; but ftfy also turns a space into a no-break space, and sequences with a question mark into
# U+FFFD, where that completes a character.
_ANCHORS = (re.compile(r"([ -~\t\n])"), re.compile(r"([!->@-~\t\n])"))
_LONGEST = 1_000_000  # characters that ftfy looks at together, its own `max_decode_length`

_Edit = tuple[int, int, str, str]


@dataclass(frozen=True)
class Mojibake(ReadsText, PartStage):
    """Repair text that was decoded in a wrong encoding, as ftfy's function `fix_encoding` does (Speer 2019,
    "ftfy"). The repairs are `edits` with the rule `mojibake`.

    | column | unit | definition |
    |---|---|---|
    | mojibake_count | repairs | places that were repaired |

    ftfy judges each line by itself, and changes only character sequences that are implausible in real text:
    `schÃ¶n` becomes `schön`, `â€œ` a quotation mark. ftfy's other repairs (HTML entities, ligatures,
    character widths, quotes) are not applied. A character cannot be repaired if one of its bytes was lost:
    reading removes U+0081, U+008D, U+008F, U+0090 and U+009D, which stored text never contains. Repaired text
    is normalised in the same way as text that is read. Steps that should measure the repaired text read
    `edited_text`.
    """

    def writes(self) -> pa.Schema:
        return pa.schema([(DROP, pa.string()), (EDITS_COLUMN, EDITS), (_COUNT, pa.int32())])

    def never_null(self) -> tuple[str, ...]:
        return (_COUNT,)

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        return library_versions(_LIBRARY) | unicode_version()

    def check(self) -> None:
        if find_spec(_LIBRARY) is None:
            raise ValueError(f"mojibake: ftfy is not installed; run: {install_extra(_LIBRARY)}")
        super().check()

    def libraries(self) -> tuple[tuple[str, str], ...]:
        return ((_LIBRARY, install_extra(_LIBRARY)),)

    def annotate(self, docs: pa.Table) -> pa.Table:
        edits = [list(_repairs(text)) for text in docs[self.text].to_pylist()]
        counts = pa.array([len(each) for each in edits], pa.int32())
        return pa.table([pa.nulls(docs.num_rows, pa.string()), edits_column(edits), counts], schema=self.writes())


def _repairs(text: str) -> Iterator[_Edit]:
    """Yield the edits that repair the mojibake in a text, with positions in bytes."""
    if text.isascii():
        return
    from ftfy import TextFixerConfig, fix_encoding

    config = TextFixerConfig(explain=False)
    at = 0  # bytes before the line
    for line in _lines(text):
        if not line.isascii() and (fixed := fix_encoding(line, config)) != line:
            form = "NFC" if unicodedata.is_normalized("NFC", line) else "none"
            for start, end, replacement in _differences(line, normalise(fixed, form)[0].decode()):
                first = at + len(line[:start].encode())
                yield first, first + len(line[start:end].encode()), replacement, _RULE
        at += len(line.encode())


def _lines(text: str) -> Iterator[str]:
    """Yield the lines of a text with their line feeds, and cut long lines into pieces. A TARGET_MARK at the
    beginning of a line is yielded separately, so that no repair removes it.
    """
    start = 0
    while start < len(text):
        if text.startswith(TARGET_MARK, start):
            yield TARGET_MARK
            start += 1
            continue
        end = text.find("\n", start, start + _LONGEST) + 1 or min(len(text), start + _LONGEST)
        yield text[start:end]
        start = end


def _differences(old: str, new: str) -> Iterator[tuple[int, int, str]]:
    """Yield the replacements that turn `old` into `new`, as (start, end, replacement) with positions in
    characters.
    """
    for anchors in _ANCHORS:
        was, now = anchors.split(old), anchors.split(new)
        gaps = list(zip(was[::2], now[::2], strict=False))
        if was[1::2] == now[1::2] and not any(_inserts(*gap) for gap in gaps):
            break
    else:
        was, gaps = [old], [(old, new)]
    at = 0
    for (gap, repaired), anchor in zip(gaps, [*was[1::2], ""], strict=True):
        if gap != repaired:
            start, end = (0, 0) if _inserts(gap, repaired) else _trimmed(gap, repaired)
            yield at + start, at + len(gap) - end, repaired[start : len(repaired) - end]
        at += len(gap) + len(anchor)


def _inserts(old: str, new: str) -> bool:
    return old != new and sum(_trimmed(old, new)) == len(old)


def _trimmed(old: str, new: str) -> tuple[int, int]:
    """Return the lengths of the longest common prefix of two texts and of the longest common suffix of what
    remains.
    """
    most = min(len(old), len(new))
    start = next((n for n in range(most) if old[n] != new[n]), most)
    end = next((n for n in range(most - start) if old[-1 - n] != new[-1 - n]), most - start)
    return start, end
