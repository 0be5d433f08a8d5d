"""Language identification: the label, its score and the second guess of a document, and of each paragraph on request."""

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
"""UTF-8 bytes from which a paragraph without a language counts against the share of the document's language."""
UNDETERMINED = "und"
"""The label of a text without a language: BCP 47 (RFC 5646, section 2.2.1), ISO 639-2."""


class _Guesses(NamedTuple):
    """Two guesses a text, best first: places in `names` (-1 where there is none), and scores."""

    names: tuple[str, ...]
    places: "np.ndarray"  # int32 [n, 2]
    scores: "np.ndarray"  # float32 [n, 2]


@dataclass(frozen=True)
class Language(MeasuresText, PartStage):
    """`language`, an ISO 639 code as the model writes it, and `language_score` from 0 to 1, higher where it is surer.

    The score of fastText is its probability. resiliparse measures how far the text's n-grams are out of place in the
    language's profile; the score is 1 - distance / 1200, which is 0 where resiliparse itself stops giving an answer.
    The scales differ, and thresholds do not carry over: most English pages score 0.4 to 0.85 by the latter. It has no answer
    for most texts of a sentence or less. Then the script decides where it names the language (Hangul, Thai, Greek, kana and
    Han, ...), and the score is the share of the letters that are of that script, 0.9 or more.

    `language_2` and `language_2_score` are the second guess. A label is `und`, BCP 47's subtag for an undetermined language,
    and its score 0 where there is no answer: fewer than `min_bytes`, or (fastText) less probable than 1e-5, or (resiliparse)
    too far from every profile, and the script names no language. Numbers, code and languages that the model does not know are
    `und` or a wrong guess, often with a low score: ask for `language_score` too.

    With `paragraphs`, `language_paragraphs` holds start and end (UTF-8 bytes of the text that is read), language and score of
    each paragraph, and `language_share` the share of the document's language: the characters of paragraphs with it divided by
    those of all paragraphs, but for short ones that are `und`, of less than 200 bytes: headings and single sentences, of which
    a model cannot tell the language. Longer ones without a language are tables, code, base64. It is null where the document is
    `und`, or no paragraph counts. What happens to mixed documents is then a rule:
    `filter: [{signal: language, one_of: [en]}, {signal: language_share, at_least: 0.8, null: drop}]`.
    """

    model: str = _RESILIPARSE
    """`resiliparse` (101 languages), or the path of a supervised fastText model such as lid.176.ftz."""
    max_bytes: int = 65_536
    """How much of the beginning of a text is looked at, in UTF-8 bytes, cut before a character. Cost grows with it."""
    min_bytes: int = 20
    """Texts with fewer UTF-8 bytes that are not ASCII white space get no language: both models guess on less."""
    paragraphs: bool = False
    """Whether each paragraph is labelled too."""

    version: ClassVar[int] = 5
    paths: ClassVar[tuple[str, ...]] = ("model",)

    def writes(self) -> pa.Schema:
        """Labels and scores; with `paragraphs`, those of paragraphs and the share of the document's language."""
        return self.named(pa.schema([*LANGUAGE, *PARAGRAPHS]) if self.paragraphs else LANGUAGE)

    def never_null(self) -> tuple[str, ...]:
        """All but the share of the document's language and the paragraphs."""
        return tuple(self.named(LANGUAGE).names)

    def depends(self) -> dict[str, str]:
        """resiliparse's version, or the checksum of the model file; the Unicode version where paragraphs are found."""
        from pipelines.kernels.text.tables import unicode_version

        model = library_versions(_RESILIPARSE) if self.model == _RESILIPARSE else {"model xxh3_128": self._checksum}
        return model | unicode_version() if self.paragraphs else model

    def check(self) -> None:
        """ValueError for a model that is no file, or limits out of range."""
        if self.model != _RESILIPARSE and not Path(self.model).is_file():
            raise ValueError(
                f"model: got {self.model!r}, which is no file; expected resiliparse, or the path of a fastText model "
                "from the working directory; `python -m pipelines doctor --fetch-lid` writes models/lid.176.ftz"
            )
        super().check()
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes: got {self.min_bytes}, allowed from 1")
        if self.max_bytes < self.min_bytes:
            raise ValueError(f"max_bytes: got {self.max_bytes}, allowed from min_bytes = {self.min_bytes}")

    def setup(self) -> None:
        """Load the fastText model, where there is one. UserError where it is none, or not the one that was planned."""
        if self.model != _RESILIPARSE:
            _ = self._fasttext

    @cached_property
    def _checksum(self) -> str:
        """xxh3_128 of the model file when it was first asked for, which is when the build is planned."""
        return file_checksum(Path(self.model))

    @cached_property
    def _fasttext(self) -> "FastTextModel":
        from pipelines.stages.score.fasttext_model import load_fasttext

        return load_fasttext(Path(self.model), self._checksum, "language")

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Guesses of each document."""
        import numpy as np

        from pipelines.kernels.text.buffers import text_buffers

        offsets, data = text_buffers(docs[self.text])
        ends, found = self._guess(data, offsets[:-1], offsets[1:])
        names = pa.array(found.names, pa.string())
        columns = []
        for guess in range(2):
            places = found.places[:, guess]
            columns += [_labels(names, places), pa.array(found.scores[:, guess])]
        if self.paragraphs:
            heads = np.column_stack([offsets[:-1], ends])
            columns += self._by_paragraph(offsets, data, heads, found)
        return pa.table(columns, schema=self.writes())

    def _guess(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> tuple["np.ndarray", _Guesses]:
        """(ends of what was looked at, guesses) of the texts data[start:end]."""
        import numpy as np

        from pipelines.kernels.text.prefixes import cut_prefixes

        ends, filled = cut_prefixes(data, starts, ends, self.max_bytes, self.min_bytes)
        some = _resiliparse if self.model == _RESILIPARSE else self._predict
        names, places, scores = some(data, starts[filled], ends[filled])
        all_places, all_scores = np.full((len(starts), 2), -1, np.int32), np.zeros((len(starts), 2), np.float32)
        all_places[filled], all_scores[filled] = places, scores
        return ends, _Guesses(names, all_places, all_scores)

    def _predict(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> _Guesses:
        return _Guesses(self._fasttext.labels, *self._fasttext.predict(data, starts, ends, 2))

    def _by_paragraph(
        self, offsets: "np.ndarray", data: "np.ndarray", heads: "np.ndarray", documents: _Guesses
    ) -> list[pa.Array]:
        """`language_share` and `language_paragraphs`; `heads` are start and end of what is looked at."""
        import numpy as np

        from pipelines.kernels.text.prefixes import count_characters
        from pipelines.kernels.text.text_units import text_units

        rows, starts, ends = text_units(offsets, data, "paragraph")
        inside = starts < heads[rows, 1]
        rows, starts, ends = rows[inside], starts[inside], np.minimum(ends, heads[rows, 1])[inside]
        _, found = self._guess(data, starts, ends)
        places, characters = found.places[:, 0], count_characters(data, starts, ends)
        languages = _labels(pa.array(found.names, pa.string()), places)
        labels = np.array([documents.names[place] if place >= 0 else "" for place in documents.places[:, 0]], object)
        same = np.array(languages.to_pylist(), object) == labels[rows]
        count = len(heads)
        counts = (places >= 0) | (ends - starts >= LONG_PARAGRAPH)
        ours = np.bincount(rows[same], characters[same], count)
        counted = np.bincount(rows[counts], characters[counts], count)
        missing = (documents.places[:, 0] < 0) | (counted == 0)
        share = (ours / np.maximum(counted, 1)).astype(np.float32)
        begins = heads[rows, 0]
        fields = [pa.array(starts - begins), pa.array(ends - begins), languages, pa.array(found.scores[:, 0])]
        bounds = np.searchsorted(rows, np.arange(count + 1)).astype(np.int32)
        entries = pa.StructArray.from_arrays(fields, fields=list(PARAGRAPH))
        return [pa.array(share, mask=missing), pa.ListArray.from_arrays(pa.array(bounds), entries)]


def _labels(names: pa.Array, places: "np.ndarray") -> pa.Array:
    """The names at some places; `und` at -1."""
    return names.take(pa.array(places, mask=places < 0)).fill_null(UNDETERMINED)


def _resiliparse(data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> _Guesses:
    import numpy as np
    from resiliparse.parse.lang import detect_fast

    from pipelines.stages.measure.language_scripts import language_of_script, written_in

    names: dict[str, int] = {}
    places, scores = np.full((len(starts), 2), -1, np.int32), np.zeros((len(starts), 2), np.float32)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        text = data[start:end].tobytes().decode()
        found = detect_fast(text, cutoff=FARTHEST, n_results=2)
        if len(found) == 2 and found[0][1] == found[1][1] and detect_fast(text, cutoff=FARTHEST)[0] == found[1][0]:
            found = found[::-1]  # of equal ones, the library's only answer is the first
        if not found or not written_in(text, found[0][0]):
            # N-grams of base64 come near those of Chinese.
            by_script = language_of_script(text)
            if by_script is not None:
                places[row, 0], scores[row, 0] = names.setdefault(by_script[0], len(names)), by_script[1]
            continue
        for guess, (name, distance) in enumerate(found):
            places[row, guess] = names.setdefault(name, len(names))
            scores[row, guess] = 1 - distance / FARTHEST
    return _Guesses(tuple(names), places, scores)
