"""Language identification: the label, score and second guess of each document and, on request, its script and
the labels of its paragraphs.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pyarrow as pa

from gristmill.storage.store import file_checksum
from pipelines.contracts.reads_text import MeasuresText
from pipelines.contracts.stage import PartStage, library_versions
from pipelines.stages.score.fasttext_model import check_fasttext

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
MODEL = pa.schema([("language_model", pa.int8())])
SCRIPT = pa.schema([("language_script", pa.string())])
PARAGRAPHS = pa.schema([("language_share", pa.float32()), ("language_paragraphs", pa.list_(PARAGRAPH))])
FARTHEST = 1200  # resiliparse's own limit: "values above 1200 are usually false results"
_RESILIPARSE = "resiliparse"
LONG_PARAGRAPH = 200
"""Number of UTF-8 bytes from which a paragraph without a language counts in `language_share`."""
UNDETERMINED = "und"
"""The label of a text without a language: BCP 47 (RFC 5646, section 2.2.1), ISO 639-2."""


class _Guesses(NamedTuple):
    """Two guesses per text, best first: `indices` into `names` (-1 for none) and `scores`. `model` is the
    index in `Language.models` of the model that made them.
    """

    names: tuple[str, ...]
    indices: "np.ndarray"  # int32 [n, 2]
    scores: "np.ndarray"  # float32 [n, 2]
    model: "np.ndarray"  # int8 [n]


@dataclass(frozen=True)
class Language(MeasuresText, PartStage):
    """Label each document with its `language`, an ISO 639 code, and a `language_score` from 0 to 1, higher
    for more certain labels.

    Codes are those of the model: two letters where the language has such a code, otherwise three, and `no`
    for Bokmål. Labels with a script, such as `eng_Latn` of GlotLID and OpenLID, are converted to these codes
    (`en`, `zh` for `cmn_Hani`, `ar` for `arb_Arab`), so the second guess may be the same language in another
    script.

    With several `models`, each text is passed from one model to the next, in order, until a model's score is
    `fallback_below` or more. If no score reaches it, the answer of the last model that has one is used.
    `language_model` is the position of the model that gave the labels, 0 for the first; the scores are on
    that model's scale.

    Models often mistake titles in capitals for other languages. A text is therefore read in lower case if
    more than nine tenths of its letters are capitals.

    The score of fastText is its probability. resiliparse measures how far the text's n-grams are out of place
    in the language's profile; the score is 1 - distance / 1200, because resiliparse itself gives no answer at
    distances of 1200 or more. The scales differ, so a threshold for one model is not valid for another: most
    English pages score 0.4 to 0.85 with resiliparse. resiliparse has no answer for most texts of a sentence
    or less. In that case, the script gives the language if it identifies one, as Hangul, Thai, Greek, or kana
    with Han do, and the score is the share of the letters in that script, 0.9 or more.

    `language_2` and `language_2_score` hold the second guess and its score. If there is no answer, the label
    is `und`, BCP 47's subtag for an undetermined language, and the score is 0. There is no answer for:

    - texts of fewer than `min_bytes`;
    - with fastText, texts without words or n-grams that the model knows, and texts for which a hierarchical softmax
      gives every label a probability below 1e-5;
    - with resiliparse, texts that are too far from every profile, or not in a script of the nearest language, unless
      their script identifies a language.

    Numbers, code and languages that the model does not know are labelled `und` or a wrong language, often
    with a low score, so also filter by `language_score`.

    With `paragraphs`, `language_paragraphs` holds the start and end (UTF-8 bytes of the text read), language
    and score of each paragraph. `language_share` is the number of characters in paragraphs of the document's
    language, divided by the number in all paragraphs. Paragraphs of fewer than 200 bytes that are `und` do
    not count: they are headings and single sentences, too short for a model. Longer paragraphs without a
    language do count: they are tables, code or base64. The share is null if the document is `und` or no
    paragraph counts. This filter then keeps only documents that are mostly English: `filter: [{signal:
    language, one_of: [en]}, {signal: language_share, at_least: 0.8, null: drop}]`.

    With `script`, `language_script` is the ISO 15924 code of the script with the most letters in the text
    (`Latn`, `Cyrl`, `Hani`; `Jpan` for Han with kana), `Zzzz` for a script that is not in
    pipelines/stages/measure/language_scripts.py, and `Zyyy` for a text without letters.
    """

    models: tuple[str, ...] = (_RESILIPARSE,)
    """`resiliparse` (101 languages), and paths of supervised fastText models such as lid.176.ftz."""
    fallback_below: float | None = None
    """With several models, the score below which the next model is tried. docs/language_accuracy.md measures
    its effect.
    """
    max_bytes: int = 65_536
    """Maximum number of UTF-8 bytes read from the beginning of a text, cut at a character boundary. The cost grows
    with it.
    """
    min_bytes: int = 20
    """A text with fewer UTF-8 bytes, not counting ASCII white space, gets no language, because both kinds of
    models only guess on such texts.
    """
    paragraphs: bool = False
    """Also label each paragraph."""
    script: bool = False
    """Also write the script of each document."""

    version: ClassVar[int] = 8
    paths: ClassVar[tuple[str, ...]] = ("models",)

    def writes(self) -> pa.Schema:
        model = MODEL if len(self.models) > 1 else ()
        script, paragraphs = (SCRIPT if self.script else ()), (PARAGRAPHS if self.paragraphs else ())
        return self.named(pa.schema([*LANGUAGE, *model, *script, *paragraphs]))

    def never_null(self) -> tuple[str, ...]:
        return tuple(name for name in self.writes().names if name not in self.named(PARAGRAPHS).names)

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        versions = {}
        for number, model in enumerate(self.models):
            of = library_versions(_RESILIPARSE) if model == _RESILIPARSE else {"xxh3_128": self._checksums[number]}
            versions.update({f"models[{number}] {name}": version for name, version in of.items()})
        return versions | unicode_version()

    def check(self) -> None:
        if not self.models or len(set(self.models)) < len(self.models):
            raise ValueError(f"models: got {list(self.models)}, expected one or more different models")
        for number, model in enumerate(self.models):
            if model != _RESILIPARSE and not Path(model).is_file():
                raise ValueError(
                    f"models[{number}]: got {model!r}, which is not a file; expected resiliparse, or the path of a fastText "
                    "model from the working directory; `python -m pipelines doctor --fetch-lid` writes models/lid.176.ftz"
                )
            if model != _RESILIPARSE:
                check_fasttext(Path(model), f"models[{number}]")
        if (self.fallback_below is None) != (len(self.models) == 1):
            rule = "a score from 0 to 1 with several models, and nothing with one"
            raise ValueError(
                f"fallback_below: got {self.fallback_below} with {len(self.models)} models, expected {rule}"
            )
        if self.fallback_below is not None and not 0 < self.fallback_below <= 1:
            raise ValueError(f"fallback_below: got {self.fallback_below}, allowed more than 0 up to 1")
        super().check()
        if self.min_bytes < 1:
            raise ValueError(f"min_bytes: got {self.min_bytes}, allowed 1 or more")
        if self.max_bytes < self.min_bytes:
            raise ValueError(f"max_bytes: got {self.max_bytes}, allowed min_bytes = {self.min_bytes} or more")

    def setup(self) -> None:
        """Load the fastText models. Raises UserError if a model is invalid or has changed since the build was
        planned.
        """
        _ = self._fasttext

    @cached_property
    def _checksums(self) -> dict[int, str]:
        return {n: file_checksum(Path(model)) for n, model in enumerate(self.models) if model != _RESILIPARSE}

    @cached_property
    def _fasttext(self) -> dict[int, "FastTextModel"]:
        from pipelines.stages.measure.language_scripts import language_code
        from pipelines.stages.score.fasttext_model import load_fasttext

        models = {
            n: load_fasttext(Path(self.models[n]), checksum, "language") for n, checksum in self._checksums.items()
        }
        return {n: replace(model, labels=tuple(map(language_code, model.labels))) for n, model in models.items()}

    def annotate(self, docs: pa.Table) -> pa.Table:
        import numpy as np

        from pipelines.kernels.text.buffers import text_buffers

        offsets, data = text_buffers(docs[self.text])
        ends, guesses = self._guess(data, offsets[:-1], offsets[1:])
        names = pa.array(guesses.names, pa.string())
        columns = []
        for guess in range(2):
            indices = guesses.indices[:, guess]
            columns += [_labels(names, indices), pa.array(guesses.scores[:, guess])]
        if len(self.models) > 1:
            columns.append(pa.array(guesses.model))
        if self.script:
            from pipelines.stages.measure.language_scripts import main_script

            texts = (data[start:end].tobytes().decode() for start, end in zip(offsets[:-1], ends, strict=True))
            columns.append(pa.array(map(main_script, texts), pa.string()))
        if self.paragraphs:
            heads = np.column_stack([offsets[:-1], ends])
            columns += self._by_paragraph(offsets, data, heads, guesses)
        return pa.table(columns, schema=self.writes())

    def _guess(self, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray") -> tuple["np.ndarray", _Guesses]:
        """Return (ends of the prefixes that the models read, guesses) for the texts data[starts[i]:ends[i]].
        The ends are indices into `data`.
        """
        import numpy as np

        from pipelines.kernels.text.prefixes import cut_prefixes, lower_capitals

        cuts, filled = cut_prefixes(data, starts, ends, self.max_bytes, self.min_bytes)
        data, starts, ends = lower_capitals(data, starts, cuts)
        count = len(starts)
        indices, scores = np.full((count, 2), -1, np.int32), np.zeros((count, 2), np.float32)
        names: dict[str, int] = {}
        model = np.zeros(count, np.int8)
        left = np.arange(count, dtype=np.int64)[filled]  # texts that no model has decided on
        for number in range(len(self.models)):
            own, found, probable = self._ask(number, data, starts[left], ends[left])
            known = np.array([names.setdefault(name, len(names)) for name in own] + [-1], np.int32)
            answered = (found[:, 0] >= 0) | (number == 0)
            rows = left[answered]
            indices[rows], scores[rows], model[rows] = known[found[answered]], probable[answered], number
            if self.fallback_below is not None:
                left = left[~answered | (probable[:, 0] < np.float32(self.fallback_below))]
        return cuts, _Guesses(tuple(names), indices, scores, model)

    def _ask(
        self, number: int, data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray"
    ) -> tuple[tuple[str, ...], "np.ndarray", "np.ndarray"]:
        """Return one model's two best guesses for each text as (names, indices into names, scores). Both
        arrays are [texts, 2], best first. A missing guess has the index -1.
        """
        if self.models[number] == _RESILIPARSE:
            return _resiliparse(data, starts, ends)
        model = self._fasttext[number]
        return (model.labels, *model.predict(data, starts, ends, 2))

    def _by_paragraph(
        self, offsets: "np.ndarray", data: "np.ndarray", heads: "np.ndarray", documents: _Guesses
    ) -> list[pa.Array]:
        """Return the columns `language_share` and `language_paragraphs`. Only paragraphs that begin in a
        document's prefix count. `heads` holds the start and end of each prefix in `data`.
        """
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
    return names.take(pa.array(indices, mask=indices < 0)).fill_null(UNDETERMINED)


def _resiliparse(
    data: "np.ndarray", starts: "np.ndarray", ends: "np.ndarray"
) -> tuple[tuple[str, ...], "np.ndarray", "np.ndarray"]:
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
    return tuple(names), indices, scores
