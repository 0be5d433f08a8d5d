"""The inputs that a stage can declare: texts, columns, drops, files of earlier steps, tokenizer shares and
given splits. A plan finds the steps that provide them.
"""

from dataclasses import dataclass
from typing import ClassVar

from pipelines.contracts.columns import DROP

_STORED, _EDITED, _UPTO = "text", "edited_text", "text@"


@dataclass(frozen=True)
class Text:
    """The stored text of each document or, if `edited`, the text after the edits of earlier steps. With
    `upto`, which requires `edited`, only the edits of steps up to and including `upto` are applied.
    """

    edited: bool = False
    upto: str | None = None

    @classmethod
    def parse(cls, spelling: str) -> "Text":
        """Parse the name of a text in a corpus file: `text`, `edited_text` or `text@STEP`. Raises ValueError
        for any other name.
        """
        prefix, step = spelling[: len(_UPTO)], spelling[len(_UPTO) :]
        if spelling in (_STORED, _EDITED):
            return cls(spelling == _EDITED)
        if prefix == _UPTO and step:
            return cls(True, step)
        raise ValueError(f"text: got {spelling!r}, allowed: text, text@STEP, edited_text")

    @property
    def name(self) -> str:
        """The name of the text in corpus files and in tables."""
        if self.upto is not None:
            return f"{_UPTO}{self.upto}"
        return _EDITED if self.edited else _STORED


@dataclass(frozen=True)
class Column:
    """An input that is a column: either a column of the documents, or one that an earlier step writes. An
    `optional` column is left out if no step writes it.
    """

    name: str
    optional: bool = False


@dataclass(frozen=True)
class Drop:
    """The rule that dropped each document, or null: the first non-null `drop` of all earlier steps."""

    name: ClassVar[str] = DROP


@dataclass(frozen=True)
class StepFiles:
    """The files of the earlier corpus step named `step`."""

    step: str


@dataclass(frozen=True)
class TokenizerShares:
    """The weight of every source in the training text of tokenizers. A stage reads it from
    `Part.tokenizer_share`.
    """


@dataclass(frozen=True)
class GivenSplits:
    """The splits that sources come with, which a stage reads from `Part.splits()`. With `required`, at least
    one source must come with a split.
    """

    required: bool = False


TableInput = Text | Column | Drop
Input = TableInput | StepFiles | TokenizerShares | GivenSplits

TEXT, EDITED_TEXT = Text(), Text(edited=True)
_COMPUTED: dict[str, TableInput] = {each.name: each for each in (TEXT, EDITED_TEXT, Drop())}


def column_named(name: str) -> TableInput:
    """Return the input with this name: a `Text` for `text` or `edited_text`, `Drop` for `drop`, otherwise a
    `Column`.
    """
    return _COMPUTED.get(name, Column(name))
