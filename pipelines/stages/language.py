"""Language identification: one label and one score per document."""

import itertools
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipelines.contracts.errors import UserError
from pipelines.contracts.stage import PartStage, library_versions
from pipelines.contracts.store import file_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

LANGUAGE = pa.schema([("language", pa.string()), ("language_score", pa.float32())])
FARTHEST = 1200  # resiliparse's own limit: "values above 1200 are usually false results"
_LABEL = "__label__"
_BATCH = 256  # texts per call of fastText


@dataclass(frozen=True)
class Language(PartStage):
    """`language`, an ISO 639 code as the model writes it, and `language_score` from 0 to 1, higher where it is surer.

    The score of fastText is its probability. resiliparse measures how far the text's n-grams are out of place in the
    language's profile; the score is 1 - distance / 1200, which is 0 where resiliparse itself stops giving an answer.
    The scales differ, and thresholds do not carry over: most English pages score 0.4 to 0.85 by the latter.

    `language` is null and the score 0 where there is no answer: fewer than `min_bytes`, or too far from every profile.
    """

    model: str = "resiliparse"
    """`resiliparse` (101 languages), or the path of a supervised fastText model such as lid.176.ftz."""
    max_bytes: int = 65_536
    """How much of the beginning of a text is looked at, in UTF-8 bytes, cut before a character. Cost grows with it."""
    min_bytes: int = 20
    """Texts with fewer UTF-8 bytes that are not ASCII white space get no language: both models guess on less."""

    def reads(self) -> tuple[str, ...]:
        """The stored text."""
        return ("text",)

    def writes(self) -> pa.Schema:
        """`language` and `language_score`."""
        return LANGUAGE

    def depends(self) -> dict[str, str]:
        """The library's version, and the checksum of a model file."""
        if self.model == "resiliparse":
            return library_versions("resiliparse")
        return library_versions("fasttext-numpy2") | {"model xxh3_128": file_checksum(Path(self.model))}

    def check(self) -> None:
        """ValueError for a model that is no file, or limits out of range."""
        if self.model != "resiliparse" and not Path(self.model).is_file():
            raise ValueError(
                f"model: got {self.model!r}, which is no file; expected resiliparse, or the path of a fastText model "
                "from the working directory, such as models/lid.176.ftz"
            )
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes: got {self.min_bytes}, allowed from 1")
        if self.max_bytes < self.min_bytes:
            raise ValueError(f"max_bytes: got {self.max_bytes}, allowed from min_bytes = {self.min_bytes}")

    def setup(self) -> None:
        """Load the fastText model, where there is one."""
        if self.model != "resiliparse":
            _ = self._fasttext

    @cached_property
    def _fasttext(self) -> Any:
        """The model. UserError where the file is not a supervised fastText model."""
        import fasttext

        try:
            model = fasttext.load_model(self.model)
            model.predict("a")
        except ValueError as error:
            raise UserError(f"language: {self.model}: not a supervised fastText model ({error})") from None
        return model

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Language and score of each document."""
        texts = self._beginnings(docs["text"])
        rows = [row for row, text in enumerate(texts) if text is not None]
        find = _resiliparse if self.model == "resiliparse" else self._predict
        languages: list[str | None] = [None] * len(texts)
        scores = [0.0] * len(texts)
        for row, (language, score) in zip(rows, find([text for text in texts if text is not None]), strict=True):
            languages[row], scores[row] = language, score
        return pa.table([pa.array(languages, pa.string()), pa.array(scores, pa.float32())], schema=LANGUAGE)

    def _beginnings(self, column: pa.ChunkedArray) -> list[str | None]:
        """The part of each text that is looked at; None where it is too short."""
        from pipelines.kernels.buffers import text_buffers

        offsets, data = text_buffers(column)
        bounds = offsets.tolist()
        result: list[str | None] = []
        for start, end in itertools.pairwise(bounds):
            beginning = data[start : min(end, start + self.max_bytes)].tobytes()
            enough = _is_filled(beginning[: 4 * self.min_bytes], self.min_bytes) or _is_filled(
                beginning, self.min_bytes
            )
            # A cut may leave part of a character at the end, and nothing else can be wrong with the bytes.
            result.append(beginning.decode("utf-8", "ignore") if enough else None)
        return result

    def _predict(self, texts: "Sequence[str]") -> "list[tuple[str | None, float]]":
        """fastText's first label and its probability. It reads one line, so line ends become spaces."""
        result: list[tuple[str | None, float]] = []
        for first in range(0, len(texts), _BATCH):
            lines = [text.replace("\n", " ") for text in texts[first : first + _BATCH]]
            for labels, probabilities in zip(*self._fasttext.predict(lines), strict=True):
                if len(labels):
                    result.append((labels[0].removeprefix(_LABEL), min(1.0, float(probabilities[0]))))
                else:
                    result.append((None, 0.0))
        return result


def _is_filled(text: bytes, least: int) -> bool:
    """Whether at least so many bytes are not ASCII white space."""
    return len(text.translate(None, b" \t\n\r\v\f")) >= least


def _resiliparse(texts: "Sequence[str]") -> "list[tuple[str | None, float]]":
    from resiliparse.parse.lang import detect_fast

    found = (detect_fast(text, cutoff=FARTHEST) for text in texts)
    return [(None, 0.0) if name == "unknown" else (name, 1 - distance / FARTHEST) for name, distance in found]
