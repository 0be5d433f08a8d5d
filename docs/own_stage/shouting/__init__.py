"""A stage for gristmill that measures how much of a text is in capitals. A corpus file names it as `shouting:shouts`."""

from dataclasses import dataclass

import pyarrow as pa

from pipelines import EDITED_TEXT, PartStage


@dataclass(frozen=True)
class Shouts(PartStage):
    """Measure the share of words in capitals.

    The stage drops nothing, but a `filter` step with a rule over `shouts` can drop documents.
    """

    shortest: int = 2
    """Words with fewer letters are not counted: "I" and "A" are not shouting."""

    def reads(self) -> tuple[object, ...]:
        """Return the columns that `annotate` gets: here the text as edited by earlier steps. `Column("url")`
        would be another.
        """
        return (EDITED_TEXT,)

    def writes(self) -> pa.Schema:
        """Return the columns that the stage adds."""
        return pa.schema([("shouts", pa.float32())])

    def check(self) -> None:
        """Raise an error for an invalid knob, when the corpus file is read."""
        if self.shortest < 1:
            raise ValueError(f"shortest: got {self.shortest}, expected 1 or more")

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return a row for each document, in the same order."""
        shares = [self.share(text) for text in docs["edited_text"].to_pylist()]
        return pa.table([pa.array(shares, pa.float32())], schema=self.writes())

    def share(self, text: str) -> float | None:
        """Return the share of words in capitals, or None (null in the column) for a text without words."""
        words = [word for word in text.split() if word.isalpha() and len(word) >= self.shortest]
        return sum(word.isupper() for word in words) / len(words) if words else None
