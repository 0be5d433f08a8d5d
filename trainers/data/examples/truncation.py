"""Truncation: which part of an example's texts a model reads if they do not fit into a row. Each kind of task
has a rule:

    one text            its beginning
    pair, candidates    tokens are removed from the end of the longer text, one at a time ("longest first")
    text to text        the beginning of the source and of the target; in a decoder, the source gets at most three
                        quarters of the room for text, and the target gets the rest
    span                windows over the passage, each after the question
    tag                 windows over the text; each word is predicted where it has the most context

Questions are cut to 64 tokens (Devlin et al., 2019, in the code for SQuAD), or to half of the room for text
if that is less.
"""

from dataclasses import dataclass

import numpy as np

LONGEST_QUESTION = 64


@dataclass(frozen=True)
class Truncation:
    """How much was cut from a split of `total` examples. `examples` of them were shortened, by `tokens`
    tokens in all; `windowed` of them were cut into windows, `windows` in all. `answers` is the number of
    answers that fit in no window.
    """

    total: int
    examples: int = 0
    tokens: int = 0
    windowed: int = 0
    windows: int = 0
    answers: int = 0

    @property
    def message(self) -> str:
        """A line that says how much was cut; empty if nothing was."""
        parts = []
        if self.examples:
            share = self.examples / self.total
            parts.append(f"{self.examples:,} of {self.total:,} examples ({share:.1%}) lose {self.tokens:,} tokens")
        if self.windowed:
            parts.append(f"{self.windowed:,} of {self.total:,} examples are cut into {self.windows:,} windows")
        if self.answers:
            parts.append(f"{self.answers:,} answers fit in no window")
        return "; ".join(parts)


def cut_longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sizes of the first and the second texts, each int64 [n], after every pair is cut to at most
    `room` tokens. `first` and `second` are the sizes before the cut.

    A pair that fits is not cut. If both texts are longer than half of `room`, each gets half; if `room` is
    odd, the remaining token goes to the longer text, or to the second if they are equally long, as in
    `tokenizers`. Otherwise, only the longer text is cut.
    """
    shorter, half = np.minimum(first, second), room // 2
    fits = first + second <= room
    keeps = shorter <= half  # the shorter text is not cut
    short = np.where(fits | keeps, shorter, half)
    long = np.where(fits, np.maximum(first, second), np.where(keeps, room - shorter, room - half))
    swapped = first > second
    return np.where(swapped, long, short), np.where(swapped, short, long)


@dataclass(frozen=True)
class Windows:
    """Windows of tokens over n texts, numbered across all texts. Window w covers the `sizes[w]` tokens of
    text `text[w]` that begin at token `starts[w]`. The windows of text i are numbered from `first[i]` up to,
    but not including, `first[i + 1]`.
    """

    first: np.ndarray
    text: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    def of_tokens(self, texts: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return, for each k, the number of the window in which token `tokens[k]` of text `texts[k]` has the
        most context. A token's context is its distance to the nearer end of the window. (The SQuAD code of
        Devlin et al., 2019, also adds 0.01 times the size of the window.)
        """
        best, most = self.first[texts].copy(), np.full(len(texts), -1, np.int64)
        count = np.diff(self.first)
        for number in range(int(count[texts].max(initial=0))):
            window = self.first[texts] + np.minimum(number, count[texts] - 1)
            before = tokens - self.starts[window]
            context = np.minimum(before, self.sizes[window] - 1 - before)
            better = context > most
            best, most = np.where(better, window, best), np.where(better, context, most)
        return best


def cut_windows(sizes: np.ndarray, room: np.ndarray, stride: int) -> Windows:
    """Return windows over n texts. Text i has `sizes[i]` tokens, and each of its windows has up to `room[i]`
    tokens; `room[i]` must be at least 1. Both arrays are int64 [n]. Neighbouring windows share `stride`
    tokens, or half of `room[i]` if that is less.
    """
    step = room - np.minimum(stride, room // 2)
    count = 1 + -(-np.maximum(0, sizes - room) // step)
    first = np.concatenate([[0], np.cumsum(count)])
    text = np.repeat(np.arange(len(sizes)), count)
    starts = (np.arange(first[-1]) - first[:-1][text]) * step[text]
    return Windows(first, text, starts, np.minimum(room[text], sizes[text] - starts))
