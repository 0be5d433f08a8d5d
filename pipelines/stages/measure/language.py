"""Language identification: label, score and second guess of each document and, on request, of
each paragraph.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pyarrow as pa

from gristmill.storage.store import file_checksum
from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage, library_versions

if TYPE_CHECKING:
    import numpy as np

    from pipelines.stages.score.fasttext_model import FastTextModel

LANGUAGE = pa.schema(
    [
        ("language", pa.string()),
        ("language_score", pa.float32()),
        ("language_2", pa.string()),
        ("language_2_score", pa.float32()),
    ]
)
PARAGRAPH = pa.struct([("start", pa.int64()), ("end", pa.int64()), ("language", pa.string()), ("score", pa.float32())])
PARAGRAPHS = pa.schema([("language_share", pa.float32()), ("language_paragraphs", pa.list_(PARAGRAPH))])
FARTHEST = 1200  # resiliparse's own limit: "values above 1200 are usually false results"
_RESILIPARSE = "resiliparse"
LONG_PARAGRAPH = 200
"""Length in UTF-8 bytes from which a paragraph without a language counts in the share of the document's
language."""
UNDETERMINED = "und"
"""The label of a text without a language: BCP 47 (RFC 5646, section 2.2.1), ISO 639-2."""


class _Guesses(NamedTuple):
    """Two guesses per text, best first: indices into `names` (-1 for none) and scores."""

    names: tuple[str, ...]
    indices: "np.ndarray"  # int32 [n, 2]
    scores: "np.ndarray"  # float32 [n, 2]


@dataclass(frozen=True)
class Language(MeasuresText, PartStage):
    """`language`, an ISO 639 code as the model writes it, and `language_score` from 0 to 1, higher for more
    certain labels.

    The score of fastText is its probability. resiliparse measures how far the text's n-grams are out of place
    in the language's profile; the score is 1 - distance / 1200, which is 0 at the distance from which
    resiliparse itself gives no answer. The scales differ, and thresholds do not carry over: most English
    pages score 0.4 to 0.85 with resiliparse. It has no answer for most texts of a sentence or less. In that
    case the script gives the language if it identifies one (Hangul, Thai, Greek, kana and Han, ...), and the
    score is the share of the letters in that script, 0.9 or more.

    `language_2` and `language_2_score` are the second guess. Without an answer, the label is `und`, BCP 47's
    subtag for an undetermined language, and the score 0: for texts of fewer than `min_bytes`, texts less
    probable than 1e-5 (fastText), or texts too far from every profile whose script identifies no language
    (resiliparse). Numbers, code and languages that the model does not know are `und` or a wrong guess, often
    with a low score, so also filter by `language_score`.

    With `paragraphs`, `language_paragraphs` holds start and end (UTF-8 bytes of the text read), language and
    score of each paragraph. `language_share` is the share of the document's language: the characters of
    paragraphs in it divided by those of all paragraphs. Paragraphs of less than 200 bytes that are `und` do
    not count: they are headings and single sentences, too short for a model. Longer ones without a language
    do count: they are tables, code, base64. The share is null if the document is `und` or no paragraph
    counts. A rule then decides about mixed documents:
    `filter: [{signal: language, one_of: [en]}, {signal: language_share, at_least: 0.8, null: drop}]`.
    """

    model: str = _RESILIPARSE
    """`resiliparse` (101 languages), or the path of a supervised fastText model such as lid.176.ftz."""
    max_bytes: int = 65_536
    """UTF-8 bytes read from the beginning of a text, cut at a character boundary. Cost grows with it."""
    min_bytes: int = 20
    """Texts with fewer UTF-8 bytes other than ASCII white space get no language: both models only guess on them."""
    paragraphs: bool = False
    """Also label each paragraph."""

    version: ClassVar[int] = 5
    paths: ClassVar[tuple[str, ...]] = ("model",)

    def writes(self) -> pa.Schema:
        """Return labels and scores; with `paragraphs`, also those of paragraphs and the share of the
        document's language.
        """
        return self.named(pa.schema([*LANGUAGE, *PARAGRAPHS]) if self.paragraphs else LANGUAGE)

    def never_null(self) -> tuple[str, ...]:
        """Return all columns except the paragraphs and the share of the document's language."""
        return tuple(self.named(LANGUAGE).names)

    def depends(self) -> dict[str, str]:
        """Return resiliparse's version or the checksum of the model file; with `paragraphs`, the Unicode
        version.
        """
        from pipelines.kernels.text.tables import unicode_version

        model = library_versions(_RESILIPARSE) if self.model == _RESILIPARSE else {"model xxh3_128": self._checksum}
        return model | unicode_version() if self.paragraphs else model

    def check(self) -> None:
        """Check that the model is an existing file and that limits are in range."""
        if self.model != _RESILIPARSE and not Path(self.model).is_file():
            raise ValueError(
                f"model: got {self.model!r}, which is not a file; expected resiliparse, or the path of a fastText model "
                "from the working directory; `python -m pipelines doctor --fetch-lid` writes models/lid.176.ftz"
            )
        super().check()
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes: got {self.min_bytes}, allowed 1 or more")
        if self.max_bytes < self.min_bytes:
            raise ValueError(f"max_bytes: got {self.max_bytes}, allowed min_bytes = {self.min_bytes} or more")

    def setup(self) -> None:
        """Load the fastText model, if one is configured. Raises UserError if it is invalid or not the planned
        one.
        """
        if self.model != _RESILIPARSE:
            _ = self._fasttext

    @cached_property
    def _checksum(self) -> str:
        """The xxh3_128 of the model file, computed on first use, which is when the build is planned."""
        return file_checksum(Path(self.model))

    @cached_property
    def _fasttext(self) -> "FastTextModel":
        from pipelines.stages.score.fasttext_model import load_fasttext

        return load_fasttext(Path(self.model), self._checksum, "language")

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return the guesses of each document."""
        import numpy as np

        from pipelines.kernels.text.buffers import text_buffers

        offsets, data = text_buffers(docs[self.text])
        ends, guesses = self._guess(data, offsets[:-1], offsets[1:])
        names = pa.array(guesses.names, pa.string())
        columns = []
        for guess in range(2):
            indices = guesses.indices[:, guess]
            columns += [_labels(names, indices), pa.array(guesses.scores[:, guess])]
        if self.paragraphs:
            heads = np.column_stack([offsets[:-1], ends])
            columns += self._by_paragraph(offsets, data, heads, guesses)
        return pa.table(columns, schema=self.writes())

    def _guess(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> tuple["np.ndarray", _Guesses]:
        """Return (ends of the prefixes read, guesses) of the texts data[start:end]."""
        import numpy as np

        from pipelines.kernels.text.prefixes import cut_prefixes

        ends, filled = cut_prefixes(data, starts, ends, self.max_bytes, self.min_bytes)
        some = _resiliparse if self.model == _RESILIPARSE else self._predict
        names, indices, scores = some(data, starts[filled], ends[filled])
        all_indices, all_scores = np.full((len(starts), 2), -1, np.int32), np.zeros((len(starts), 2), np.float32)
        all_indices[filled], all_scores[filled] = indices, scores
        return ends, _Guesses(names, all_indices, all_scores)

    def _predict(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> _Guesses:
        return _Guesses(self._fasttext.labels, *self._fasttext.predict(data, starts, ends, 2))

    def _by_paragraph(
        self, offsets: "np.ndarray", data: "np.ndarray", heads: "np.ndarray", documents: _Guesses
    ) -> list[pa.Array]:
        """Return `language_share` and `language_paragraphs`; `heads` are start and end of the prefixes read."""
        import numpy as np

        from pipelines.kernels.text.prefixes import count_characters
        from pipelines.kernels.text.text_units import text_units

        rows, starts, ends = text_units(offsets, data, "paragraph")
        inside = starts < heads[rows, 1]
        rows, starts, ends = rows[inside], starts[inside], np.minimum(ends, heads[rows, 1])[inside]
        _, guesses = self._guess(data, starts, ends)
        indices, characters = guesses.indices[:, 0], count_characters(data, starts, ends)
        languages = _labels(pa.array(guesses.names, pa.string()), indices)
        labels = np.array([documents.names[index] if index >= 0 else "" for index in documents.indices[:, 0]], object)
        same = np.array(languages.to_pylist(), object) == labels[rows]
        count = len(heads)
        counts = (indices >= 0) | (ends - starts >= LONG_PARAGRAPH)
        ours = np.bincount(rows[same], characters[same], count)
        counted = np.bincount(rows[counts], characters[counts], count)
        missing = (documents.indices[:, 0] < 0) | (counted == 0)
        share = (ours / np.maximum(counted, 1)).astype(np.float32)
        begins = heads[rows, 0]
        fields = [pa.array(starts - begins), pa.array(ends - begins), languages, pa.array(guesses.scores[:, 0])]
        bounds = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
        entries = pa.StructArray.from_arrays(fields, fields=list(PARAGRAPH))
        return [pa.array(share, mask=missing), pa.ListArray.from_arrays(pa.array(bounds), entries)]


def _labels(names: pa.Array, indices: "np.ndarray") -> pa.Array:
    """Return the names by index; `und` for -1."""
    return names.take(pa.array(indices, mask=indices < 0)).fill_null(UNDETERMINED)


def _resiliparse(data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> _Guesses:
    import numpy as np
    from resiliparse.parse.lang import detect_fast

    from pipelines.stages.measure.language_scripts import language_of_script, written_in

    names: dict[str, int] = {}
    indices, scores = np.full((len(starts), 2), -1, np.int32), np.zeros((len(starts), 2), np.float32)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        text = data[start:end].tobytes().decode()
        guesses = detect_fast(text, cutoff=FARTHEST, n_results=2)
        if (
            len(guesses) == 2
            and guesses[0][1] == guesses[1][1]
            and detect_fast(text, cutoff=FARTHEST)[0] == guesses[1][0]
        ):
            guesses = guesses[::-1]  # on a tie, the single answer of the library comes first
        if not guesses or not written_in(text, guesses[0][0]):
            # The n-grams of base64 resemble those of Chinese.
            by_script = language_of_script(text)
            if by_script is not None:
                indices[row, 0], scores[row, 0] = names.setdefault(by_script[0], len(names)), by_script[1]
            continue
        for guess, (name, distance) in enumerate(guesses):
            indices[row, guess] = names.setdefault(name, len(names))
            scores[row, guess] = 1 - distance / FARTHEST
    return _Guesses(tuple(names), indices, scores)
