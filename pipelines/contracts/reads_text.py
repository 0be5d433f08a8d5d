"""Base classes of stages that read text, with their knobs: which text to read, and the prefix of the columns
they write.
"""

from dataclasses import dataclass, field

import pyarrow as pa

from pipelines.contracts.reads import Input, Text
from pipelines.contracts.stage import Stage


@dataclass(frozen=True)
class ReadsText(Stage):
    """The base class of stages that read one text of each document, chosen by the knob `text`."""

    text: str = field(default="text", kw_only=True)
    """The text to read: `text`, as stored; `edited_text`, with the edits of all earlier steps; `text@STEP`,
    with the edits up to that step.
    """

    @property
    def input_text(self) -> Text:
        """The text that the knob `text` names. Raises ValueError for an invalid name."""
        return Text.parse(self.text)

    def reads(self) -> tuple[Input, ...]:
        return (self.input_text,)

    def judges(self) -> frozenset[str]:
        """Return the units of text that decide what the stage removes: `lines`, `words`, both or, by default,
        neither. A plan warns about sources whose text is not divided into these units.
        """
        return frozenset()

    def check(self) -> None:
        Text.parse(self.text)


@dataclass(frozen=True)
class MeasuresText(ReadsText):
    """The base class of stages that measure a text. The names of their columns are fixed, except for a
    `prefix`.
    """

    prefix: str = field(default="", kw_only=True)
    """Prefix of the column names, needed if two texts are measured: `{text: edited_text, prefix: edited_}`
    writes `edited_NAME`. Stages that read a column with a fixed name, such as `dedup_exact`, read the column
    without a prefix.
    """

    def check(self) -> None:
        super().check()
        if self.prefix and not self.prefix.isidentifier():
            raise ValueError(f"prefix: got {self.prefix!r}, expected letters, digits and underscores, such as edited_")

    def named(self, columns: pa.Schema) -> pa.Schema:
        """Return `columns` with the prefix, if any, added to each name."""
        if not self.prefix:
            return columns
        return pa.schema([column.with_name(f"{self.prefix}{column.name}") for column in columns])
