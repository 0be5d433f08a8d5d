"""Turn the examples of a split into the inputs of a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import ConfigError
from trainers.data.examples.encoded_texts import EncodedTexts, TextEncoder, answer_tokens
from trainers.data.examples.task_inputs import InputKind, TaskInputs, TextSlices
from trainers.data.examples.text_format import TextFormat
from trainers.data.examples.truncation import LONGEST_QUESTION, Truncation, Windows, cut_longest_first, cut_windows
from trainers.rows.batch import IGNORED
from trainers.tasks.examples import Examples

_SHORTEST = 4  # minimum number of text tokens for which a row must have room


@dataclass(frozen=True)
class InputMaker:
    """Makes a model's inputs from the examples of a split. `length` is the maximum number of tokens in a
    segment, counting its special tokens but not its virtual tokens; in an encoder-decoder, it applies to the
    source and the target separately. `stride` is the maximum number of tokens that neighbouring windows of a
    long text share.
    """

    encoder: TextEncoder
    format: TextFormat
    length: int
    stride: int

    def make(
        self, examples: Examples, pairs: tuple[pa.LargeStringArray, pa.LargeStringArray] | None = None
    ) -> TaskInputs:
        """Return the model's inputs for the examples of a split. In text to text, `pairs` holds the sources
        and targets of the examples; for other tasks, it is None. Raises ConfigError if a segment has too
        little room for text.
        """
        if pairs is not None:
            return self._text_to_text(examples, *pairs)
        kinds: dict[str, Callable[[Examples], TaskInputs]] = {
            "classify": self._plain,
            "regress": self._plain,
            "choose": self._choose,
            "tag": self._tag,
            "span": self._span,
        }
        return kinds[examples.task.kind](examples)

    def _room(self, texts: int) -> int:
        room = self.length - self.format.marks(texts)
        if room < _SHORTEST:
            raise ConfigError(
                f"encoding.max_length: got {self.length}, which leaves {room} tokens for text; allowed "
                f"{self.length - room + _SHORTEST} or more for this task and tokenizer"
            )
        return room

    def _plain(self, examples: Examples) -> TaskInputs:
        encoded = [self.encoder.encode(texts) for texts in examples.texts]
        segments, truncation = self._cut(encoded, [np.arange(len(examples))] * len(encoded), len(examples))
        inputs = self._inputs(examples, segments, truncation, "classify" if examples.values is None else "regress")
        return replace(inputs, labels=examples.labels, values=examples.values)

    def _choose(self, examples: Examples) -> TaskInputs:
        """Make a segment for each candidate: the text, then the candidate. With a passage, the segment is the
        passage, then the text and the candidate joined by a space, as in RoBERTa's fine-tuning on RACE.
        """
        assert examples.candidates is not None
        assert examples.candidate_offsets is not None
        example = np.repeat(np.arange(len(examples)), np.diff(examples.candidate_offsets))
        candidates = examples.candidates
        if len(examples.texts) == 2:
            space = pa.scalar(" ", pa.large_string())
            candidates = pc.binary_join_element_wise(examples.texts[0].take(example), candidates, space)
        encoded = [self.encoder.encode(examples.texts[-1]), self.encoder.encode(candidates)]
        segments, truncation = self._cut(encoded, [example, np.arange(len(example))], len(examples), example)
        offsets = np.asarray(examples.candidate_offsets, np.int64)
        inputs = self._inputs(examples, segments, truncation, "choose")
        return replace(inputs, offsets=offsets, example=np.arange(len(examples)), labels=examples.labels)

    def _cut(
        self, encoded: list[EncodedTexts], which: list[np.ndarray], total: int, example: np.ndarray | None = None
    ) -> tuple[TextSlices, Truncation]:
        full = np.stack([each.sizes[chosen] for each, chosen in zip(encoded, which, strict=True)])
        room = self._room(len(encoded))
        sizes = np.minimum(full, room) if len(encoded) == 1 else np.stack(cut_longest_first(full[0], full[1], room))
        begins = np.stack([each.first[chosen] for each, chosen in zip(encoded, which, strict=True)])
        lost = (full - sizes).sum(axis=0)
        cut = lost > 0
        examples = int(cut.sum()) if example is None else len(np.unique(example[cut]))
        segments = TextSlices(tuple(each.tokens for each in encoded), begins, sizes)
        return segments, Truncation(total, examples, int(lost.sum()))

    def _tag(self, examples: Examples) -> TaskInputs:
        assert examples.word_starts is not None
        assert examples.word_offsets is not None
        encoded, tokens = self.encoder.encode_words(examples.texts[0], examples.word_starts, examples.word_offsets)
        windows = cut_windows(encoded.sizes, np.full(len(examples), self._room(1)), self.stride)
        example = np.repeat(np.arange(len(examples)), np.diff(examples.word_offsets))
        words = np.flatnonzero(_have_tokens(tokens, example, encoded.sizes))
        window = windows.of_tokens(example[words], tokens[words])
        words = words[np.argsort(window, kind="stable")]
        window = np.sort(window)
        offsets = np.searchsorted(window, np.arange(len(windows.text) + 1))
        places = tokens[words] - windows.starts[window] + len(self.format.before)
        segments = TextSlices(
            (encoded.tokens,), (encoded.first[windows.text] + windows.starts)[None], windows.sizes[None]
        )
        tags = np.full(len(words), IGNORED) if examples.tags is None else np.asarray(examples.tags, np.int64)[words]
        inputs = self._inputs(examples, segments, _windowed(windows, len(examples), 0), "tag")
        inputs = replace(inputs, word_offsets=offsets, words=words, word_tokens=places, tags=tags)
        return replace(inputs, example=windows.text)

    def _span(self, examples: Examples) -> TaskInputs:
        """Make an input for each window of a passage, with the question before it. `answers` holds the first
        and last token of the first accepted answer, or -1 in windows that do not contain the whole answer.
        """
        questions, passages = self.encoder.encode(examples.texts[0]), self.encoder.encode_located(examples.texts[1])
        room = self._room(2)
        question_sizes = np.minimum(questions.sizes, min(LONGEST_QUESTION, room // 2))
        windows = cut_windows(passages.sizes, room - question_sizes, self.stride)
        text = windows.text
        begins = np.stack([questions.first[text], passages.first[text] + windows.starts])
        segments = TextSlices(
            (questions.tokens, passages.tokens), begins, np.stack([question_sizes[text], windows.sizes])
        )
        answers, missed = None, 0
        if examples.labelled:
            assert examples.spans is not None
            first, last = answer_tokens(passages, examples.spans)
            inside = (
                (first >= 0)[text] & (first[text] >= windows.starts) & (last[text] < windows.starts + windows.sizes)
            )
            before = len(self.format.before) + question_sizes[text] + len(self.format.between) - windows.starts
            answers = np.where(inside, np.stack([first[text], last[text]]) + before, -1).T
            missed = int((first >= 0).sum()) - len(np.unique(text[inside]))
        lost = questions.sizes - question_sizes
        truncation = _windowed(windows, len(examples), missed, int((lost > 0).sum()), int(lost.sum()))
        inputs = replace(self._inputs(examples, segments, truncation, "span"), example=text, answers=answers)
        return replace(inputs, token_starts=passages.starts, token_ends=passages.ends)

    def _text_to_text(
        self, examples: Examples, sources: pa.LargeStringArray, targets: pa.LargeStringArray
    ) -> TaskInputs:
        """Make an input from each source and its target, both truncated at the end. In a decoder, source and
        target share a row. The source then leaves at least a quarter of the room for the target, which may
        still have to be generated.
        """
        form = self.format
        encoded = [self.encoder.encode(sources), self.encoder.encode(targets)]
        full = np.stack([each.sizes for each in encoded])
        room, marks = self._room(1), len(form.target_before) + len(form.target_after)
        if form.decoder_start is not None:
            sizes = np.minimum(full, np.array([[room], [self.length - marks]]))
        else:
            source_sizes = np.minimum(full[0], room - room // 4)
            sizes = np.stack([source_sizes, np.minimum(full[1], room - source_sizes)])
        lost = (full - sizes).sum(axis=0)
        segments = TextSlices(tuple(each.tokens for each in encoded), np.stack([each.first for each in encoded]), sizes)
        truncation = Truncation(len(examples), int((lost > 0).sum()), int(lost.sum()))
        return self._inputs(examples, segments, truncation, "text_to_text")

    def _inputs(self, examples: Examples, segments: TextSlices, truncation: Truncation, kind: InputKind) -> TaskInputs:
        size = sum(int(pc.sum(pc.binary_length(texts)).as_py() or 0) for texts in examples.texts)
        number = np.arange(len(segments) + 1)
        common = (examples.task.name, kind, self.format, segments, number, number[:-1], truncation)
        return TaskInputs(*common, text_bytes=size)


def _windowed(windows: Windows, total: int, answers: int, cut: int = 0, tokens: int = 0) -> Truncation:
    count = np.diff(windows.first)
    many = count > 1
    return Truncation(total, cut, tokens, int(many.sum()), int(count[many].sum()), answers)


def _have_tokens(tokens: np.ndarray, example: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return whether each word has a first token that it does not share with the next word, bool [words]."""
    if not len(tokens):
        return np.zeros(0, bool)
    last = np.append((tokens[1:] != tokens[:-1]) | (example[1:] != example[:-1]), True)
    own: np.ndarray = last & (tokens < sizes[example])
    return own
