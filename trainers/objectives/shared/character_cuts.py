"""Cut tokenized documents between characters.

Each part of a document gets the ids that its text would have as a prompt. For this, only the words at a cut
are encoded again. Here, a word is one of the pieces into which the pre-tokenizer of GPT-2 or a successor
divides text. For example:

    tokens   ... | in|ternational |, which ...        a cut inside a word, after "interna"
    parts    ... | intern|a   and   tional|, which ...

Pre-tokenizers begin a new word at every token that begins with a single space. The text to encode again
therefore starts at the last such token before the cut and ends at the next one after it, and reaches at most
WINDOW tokens in each direction. If there is no space within this distance (in Chinese, say), the ids at the
ends of the window may differ from those of a prompt; the text is the same.
"""

from functools import cached_property
from itertools import chain, pairwise, zip_longest
from typing import Any, TypeAlias

import numpy as np

from gristmill.compilation import kernel
from tokenizer.vocabulary.definition import Definition, load_within_text
from trainers.objectives.shared.ragged import Ragged
from trainers.objectives.shared.whole_words import text_of

WINDOW = 16  # tokens on each side of a cut
GROWTH = 8  # tokens that the two cuts of a document may add to it
_SPACES = (" ", "▁")
_Edit: TypeAlias = tuple[int, int, list[int]]  # first token, end, and the tokens that replace this range
_MEMO = 1 << 17  # distinct texts in the cache; English words at a cut are fewer


class TokenTexts:
    """The texts of a vocabulary's tokens, as far as they are known. They serve to cut documents between
    characters and to re-encode the words at a cut.

    A token without a known text counts as one character, so it is never cut. The texts of special tokens and
    of the unknown token are not known. In WordPiece, in WordLevel, and in BPE with a continuing-subword
    prefix or an end-of-word suffix, no text is known, because the tokens do not say exactly where spaces
    were.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._texts = _texts(definition)
        size = definition.vocab_size
        self._characters = np.ones(size, dtype=np.int64)
        self._known, self._starts_character, self._starts_word = (np.ones(size, dtype=bool) for _ in range(3))
        for token, text in enumerate(self._texts):
            self._known[token] = text is not None
            if text is not None:
                self._characters[token] = sum(map(_starts_character, text))
                self._starts_character[token] = bool(text) and _starts_character(text[0])
                self._starts_word[token] = (
                    definition.kind in ("bytes", "characters") and self._starts_character[token]
                ) or _starts_word(text)
        self._memo: dict[bytes, list[int] | None] = {}

    def cut(
        self, content: Ragged, chosen: np.ndarray, drawn: np.ndarray, rows: np.ndarray, free: np.ndarray
    ) -> tuple[Ragged, np.ndarray]:
        """Cut each document that `chosen` (bool [documents]) selects at two random positions, which are
        uniform among the positions before, between and after its characters. `drawn` contains uniform numbers
        from [0, 1), float64 [documents, 2]. `rows` [documents] is the row of each document.

        Returns the documents, with the text around a cut encoded again where necessary, and the number of
        tokens before each cut, int64 [documents, 2], which has no meaning for documents that are not chosen.
        A document grows by at most GROWTH tokens, and all documents of row r together by at most `free[r]`.
        If the cuts of a document need more tokens than that, or if a part cannot be encoded exactly, the cuts
        move back to positions between tokens.
        """
        first, end = content.offsets[:-1, None], content.offsets[1:, None]
        before = np.concatenate([[0], np.cumsum(self._characters[content.tokens])])
        counts = before[end] - before[first]
        places = np.sort((drawn * (counts + 1)).astype(np.int64), axis=1)
        wanted = before[first] + places
        holders = np.where(places == counts, end, np.searchsorted(before, wanted, side="right") - 1)
        inside = wanted - before[holders]
        tokens = np.append(content.tokens, 0)[holders]
        within = ((places > 0) | ~self._starts_character[tokens]) & (places < counts)
        again = within & ((inside > 0) | ~self._starts_word[tokens]) & chosen[:, None]
        windows = np.empty((*again.shape, 2), dtype=np.int64)
        _windows(
            content.tokens,
            content.offsets,
            holders,
            inside,
            again,
            self._starts_word,
            self._starts_character,
            self._known,
            windows,
        )
        edits: list[_Edit] = []
        growth = np.zeros(len(again), dtype=np.int64)
        some, left = np.flatnonzero(again.any(axis=1)), free.copy()
        lists = [array[some].tolist() for array in (holders, inside, again, windows)]
        for document, *row in zip(some.tolist(), *lists, strict=True):
            made = self._reencode(content.tokens, *row)
            if made is None or made[1] > left[rows[document]]:
                first_token, end_token = content.offsets[document : document + 2].tolist()
                holders[document] = self._move_to_tokens(content.tokens, first_token, end_token, holders[document])
                continue
            holders[document], growth[document], changed = made
            left[rows[document]] -= made[1]
            edits += changed
        return _apply_edits(content, edits, growth), holders - first

    def _reencode(
        self, tokens: np.ndarray, cuts: list[int], inside: list[int], again: list[bool], windows: list[list[int]]
    ) -> tuple[list[int], int, list[_Edit]] | None:
        """Re-encode the text around the two cuts of a document so that no token spans a cut. Returns (index
        of the first token after each cut, number of tokens added, edits), or None if the text cannot be
        re-encoded or grows by more than GROWTH tokens.

        The arguments after `tokens` have an entry for each cut:

        - `cuts`: the index of the token at the cut.
        - `inside`: the number of that token's characters before the cut.
        - `again`: whether the cut needs new tokens.
        - `windows`: the first token to replace, and the end of the range.
        """
        groups: list[tuple[int, int, list[int]]]
        if again[0] and again[1] and windows[1][0] < windows[0][1]:
            groups = [(windows[0][0], max(windows[0][1], windows[1][1]), [0, 1])]
        else:
            groups = [(windows[n][0], windows[n][1], [n]) for n in range(2) if again[n]]
        edits, places, growth = [], list(cuts), 0
        for start, stop, numbers in groups:
            if not start <= cuts[numbers[0]] <= cuts[numbers[-1]] < stop:
                return None
            ids = tokens[start:stop].tolist()
            points = [
                len(self._join_bytes(ids[: cuts[n] - start])) + self._offset(ids[cuts[n] - start], inside[n])
                for n in numbers
            ]
            text = self._join_bytes(ids)
            pieces = [self._cached_ids(text[i:j]) for i, j in pairwise([0, *points, len(text)])]
            new: list[int] = []
            for number, piece in zip_longest(numbers, pieces):
                if piece is None:
                    return None
                new += piece
                if number is not None:
                    places[number] = start + growth + len(new)
            edits.append((start, stop, new))
            growth += len(new) - (stop - start)
            if numbers == [0]:
                places[1] += growth
        return (places, growth, edits) if growth <= GROWTH else None

    def _move_to_tokens(self, tokens: np.ndarray, first: int, end: int, cuts: np.ndarray) -> np.ndarray:
        places = cuts.copy()
        for number, cut in enumerate(cuts.tolist()):
            while first < cut < end and not self._starts_character[tokens[cut]]:
                cut -= 1
            places[number] = cut
        return places

    def _join_bytes(self, ids: list[int]) -> bytes:
        return b"".join([self._texts[token] or b"" for token in ids])

    def _offset(self, token: int, character: int) -> int:
        text = self._texts[token] or b""
        return [place for place, byte in enumerate(text) if _starts_character(byte)][character]

    def _cached_ids(self, text: bytes) -> list[int] | None:
        """Return the ids of a piece of text, or None if its bytes are not valid UTF-8 or its tokens do not
        decode to it.
        """
        if text not in self._memo:
            if len(self._memo) >= _MEMO:
                self._memo.clear()
            self._memo[text] = self._encode(text)
        return self._memo[text]

    def _encode(self, text: bytes) -> list[int] | None:
        try:
            ids: list[int] = self._tokenizer.encode(text.decode(), add_special_tokens=False).ids
        except UnicodeDecodeError:
            return None
        known = all(self._texts[token] is not None for token in ids)
        return ids if known and self._join_bytes(ids) == text else None

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer for pieces of text that are already normalised. It adds no space before a piece."""
        return load_within_text(self._definition)


def _texts(definition: Definition) -> list[bytes | None]:
    """Return the bytes of text that each id represents, or None for an id whose bytes are not known."""
    texts: list[bytes | None] = [None] * definition.vocab_size
    marked = definition.data["model"].get("continuing_subword_prefix") or definition.end_of_word
    if definition.kind in ("wordpiece", "word_level") or (definition.kind == "bpe" and marked):
        return texts
    unknown = {*definition.specials.values(), definition.unknown_id}
    for token in definition.tokens:
        if token not in unknown:
            texts[token] = text_of(definition, token)
    return texts


def _starts_character(byte: int) -> bool:
    return byte & 0xC0 != 0x80


def _starts_word(text: bytes) -> bool:
    first = text.decode(errors="replace")[:2]
    return len(first) == 2 and first[0] in _SPACES and not first[1].isspace() and first[1] not in _SPACES


def _apply_edits(content: Ragged, edits: list[_Edit], growth: np.ndarray) -> Ragged:
    """Apply `edits`, which must be sorted by position. `growth[i]` is the number of tokens that they add to
    document i.
    """
    if not edits:
        return content
    ranges = np.array([edit[:2] for edit in edits], dtype=np.int64)
    sizes = np.array([len(edit[2]) for edit in edits], dtype=np.int64)
    new = np.array(list(chain.from_iterable(edit[2] for edit in edits)), dtype=np.int64)
    tokens = np.empty(len(content.tokens) + growth.sum(), dtype=np.int64)
    _replace(content.tokens, ranges, new, sizes, tokens)
    return Ragged(tokens, content.offsets + np.concatenate([[0], np.cumsum(growth)]))


@kernel(nogil=True)
def _replace(tokens: np.ndarray, ranges: np.ndarray, new: np.ndarray, sizes: np.ndarray, edited: np.ndarray) -> None:
    """Copy `tokens` to `edited`, replacing range i with the next `sizes[i]` tokens of `new`."""
    place = written = used = 0
    for edit in range(len(sizes)):
        kept, size = ranges[edit, 0] - place, sizes[edit]
        edited[written : written + kept] = tokens[place : ranges[edit, 0]]
        written += kept
        edited[written : written + size] = new[used : used + size]
        written, used, place = written + size, used + size, ranges[edit, 1]
    edited[written:] = tokens[place:]


@kernel(nogil=True)
def _windows(
    tokens: np.ndarray,
    offsets: np.ndarray,
    cuts: np.ndarray,
    inside: np.ndarray,
    chosen: np.ndarray,
    begins: np.ndarray,
    leads: np.ndarray,
    known: np.ndarray,
    windows: np.ndarray,
) -> None:
    """Write to `windows`, for each chosen cut, the range of tokens to encode again: whole words or, where a
    word extends further than WINDOW tokens from the cut, whole characters.

    `begins`, `leads` and `known`, bool [vocabulary], say which tokens begin a word, begin a character, and
    have a known text.
    """
    for document in range(len(cuts)):
        first, end = offsets[document], offsets[document + 1]
        for number in range(2):
            if not chosen[document, number]:
                continue
            cut = cuts[document, number]
            if number == 1 and not chosen[document, 0]:
                first = cuts[document, 0]
            start, stop = cut, cut + 1
            # If a word's space is cut off, it belongs to the white space before the cut.
            space = inside[document, number] == 1
            while start > max(first, cut - WINDOW) and known[tokens[start - 1]]:
                if begins[tokens[start]] and not (space and start == cut):
                    break
                start -= 1
            while start <= cut and not leads[tokens[start]]:
                start += 1
            while stop < min(end, cut + WINDOW) and not begins[tokens[stop]]:
                stop += 1
            while cut < stop < end and not leads[tokens[stop]]:
                stop -= 1
            windows[document, number] = start, stop
