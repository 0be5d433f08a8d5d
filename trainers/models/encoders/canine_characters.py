"""Lay out the characters of rows of tokens: one row of code points for each document.

tokens      <cls> th  e   <mask> <sep>        the mask covers 3 characters
bytes       3     2   1   9      3            UTF-8, so that a token may end within a character
characters  E000 t h  e  E003 E003 E003 E001  one per place
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tokenizer.vocabulary.specials import BOS, CLS, MASK, PAD, SEP, UNK
from trainers.objectives.shared.spellings import SpelledTokens

CODE_POINTS = {CLS: "\ue000", SEP: "\ue001", BOS: "\ue002", MASK: "\ue003", PAD: "", UNK: "\ufffd"}
"""The characters of special tokens, those of the authors' code (google-research/language, canine/special_codepoints.py). Padding
has none, and an unknown token is Unicode's replacement character.
"""
RESERVED = "\ue004"
"""The character of other special tokens, reserved by the authors."""
_REPLACEMENT = 0xFFFD
_MULTIPLE, _BEYOND = 128, 8
"""Rows are padded to a multiple of the width of local attention, and by at least two molecules: `transformers` does not read the
last molecule of a row, and upsampling reads two characters beyond a text. More padding changes nothing.
"""


def special_spellings(spelled: Sequence[bytes], specials: Mapping[str, int]) -> list[bytes]:
    """Return the UTF-8 bytes of every token: those in `spelled` or, for a special token, those of its CANINE
    code point.
    """
    whole = list(spelled)
    for name, number in sorted(specials.items(), key=lambda item: item[0] in CODE_POINTS):
        whole[number] = CODE_POINTS.get(name, RESERVED).encode()
    return whole


@dataclass(frozen=True)
class CharacterLayout:
    """The characters of a batch, laid out with one document per row, and where each token's character is.

    - `characters` (code points) and `types` (token types), int64, and `present`, bool (false for padding):
      all [documents, places].
    - `document` and `place`, int64 [rows, length]: the row and the column, in these tensors, of the
      character whose state represents each token.
    """

    characters: Any
    types: Any
    present: Any
    document: Any
    place: Any

    def of_characters(self, states: Any) -> Any:
        """Return the states of tokens, [rows, length, width], given the states of characters, [documents,
        places, width].
        """
        return states[self.document, self.place]

    def of_molecules(self, states: Any) -> Any:
        """Return the states of tokens, [rows, length, width], given the states of molecules, [documents,
        molecules, width]. The first molecule represents the document, each other molecule 4 characters.
        """
        return states[
            self.document, torch.where(self.place == 0, 0, self.place // 4 + 1).clamp(max=states.shape[1] - 1)
        ]


@dataclass(frozen=True)
class Spelling:
    """The bytes of all tokens of a vocabulary, concatenated in `content`, uint8 [bytes]. Those of token i are
    `content[offsets[i] : offsets[i + 1]]`; `offsets` is int64 [tokens + 1].
    """

    content: Any
    offsets: Any

    @classmethod
    def of(cls, spelled: Sequence[bytes]) -> "Spelling":
        """Return the spelling of a vocabulary, given the bytes of each token."""
        tokens = SpelledTokens.of(spelled)
        return cls(torch.from_numpy(tokens.content), torch.from_numpy(tokens.offsets))

    def lay_out(self, ids: Any, starts: Any, types: Any, covered: Any, read: Any) -> CharacterLayout:
        """Return the layout of the characters of the tokens `ids`, int64 [rows, length].

        - `starts`, bool [rows, length - 1]: which tokens after the first of a row begin a document.
        - `types`, int64 [rows, length] or None: the token types; the default is 0.
        - `covered`, int64 [rows, length] or None: the number of masks that replace a token's characters; 0, the
          default, keeps the characters.
        - `read`, int64 [rows, length] or None: the index, within a token, of the character whose state represents
          the token; the default is 0.

        A token in which no character begins shares the state of the character before it.
        """
        number = torch.nn.functional.pad(starts, (1, 0), value=True).flatten().cumsum(0) - 1  # of each token's document
        content, owner = self._write(ids.flatten(), None if covered is None else covered.flatten())
        begins = ((content & 0xC0) != 0x80).nonzero()[:, 0]
        holder = owner[begins]
        count = torch.bincount(holder, minlength=len(number))
        before = count.cumsum(0) - count  # characters that begin before a token
        first = before[(number[1:] != number[:-1]).nonzero()[:, 0] + 1]
        first = torch.cat([first.new_zeros(1), first])  # of every document
        lengths = torch.bincount(number[holder], minlength=len(first))
        shape = len(first), -(-(int(lengths.max()) + _BEYOND) // _MULTIPLE) * _MULTIPLE
        characters, kinds, present = (ids.new_zeros(shape) for _ in range(3))
        at = number[holder], torch.arange(len(begins), device=ids.device) - first[number[holder]]
        characters[at], present[at] = _decode(content, begins, number[owner]), 1
        if types is not None:
            kinds[at] = types.flatten()[holder]
        place = before - first[number]
        place = torch.where(count > 0, place, (place - 1).clamp(min=0))  # within the character before it
        if read is not None:
            place = place + read.flatten()
        filled = (lengths > 0).nonzero()[:, 0]  # padding has no characters
        filled = filled if len(filled) else filled.new_zeros(1)
        row = torch.zeros_like(lengths)
        row[filled] = torch.arange(len(filled), device=ids.device)
        places = row[number].view_as(ids), place.view_as(ids)
        return CharacterLayout(characters[filled], kinds[filled], present[filled] > 0, *places)

    def _write(self, ids: Any, covered: Any) -> tuple[Any, Any]:
        """Return the concatenated bytes of the tokens `ids`, int64 [tokens], and the index of each byte's
        token, both int64 [bytes]. Where `covered` is above 0, that number of masks replaces the token.
        """
        sizes = (self.offsets[1:] - self.offsets[:-1])[ids]
        if covered is not None:
            mask = torch.tensor(list(CODE_POINTS[MASK].encode()), device=ids.device)
            sizes = torch.where(covered > 0, covered * len(mask), sizes)
        owner = torch.arange(len(ids), device=ids.device).repeat_interleave(sizes)
        within = torch.arange(len(owner), device=ids.device) - (sizes.cumsum(0) - sizes)[owner]
        places = (self.offsets[ids[owner]] + within).clamp(max=len(self.content) - 1)
        content = self.content[places].long()
        if covered is not None:
            content = torch.where(covered[owner] > 0, mask[within % len(mask)], content)
        return content, owner

    def estimate(self, ids: Any) -> CharacterLayout:
        """Return a layout for `ids` on PyTorch's `meta` device, where the number of characters can only be
        estimated. Each row is taken to be one document.
        """
        rows, length = ids.shape
        width = -(-(int(length * self.mean) + _BEYOND) // _MULTIPLE) * _MULTIPLE
        characters = ids.new_zeros(rows, width)
        place = torch.arange(length, device="meta").expand(rows, length)
        document = torch.arange(rows, device="meta")[:, None].expand(rows, length)
        return CharacterLayout(characters, characters, characters.bool(), document, place)

    @property
    def mean(self) -> float:
        """The mean number of bytes per token of the vocabulary."""
        return len(self.content) / (len(self.offsets) - 1)


def _decode(content: Any, begins: Any, document: Any) -> Any:
    """Return the code points, int64 [characters], of the characters that begin at `begins` in the UTF-8 bytes
    `content`. `document`, int64 [bytes], is the number of each byte's document. An incomplete character
    becomes U+FFFD.
    """
    padded, owner = torch.nn.functional.pad(content, (0, 3)), torch.nn.functional.pad(document, (0, 3), value=-1)
    lead = content[begins]
    sizes = 1 + (lead >= 0xC0).long() + (lead >= 0xE0) + (lead >= 0xF0)
    code = torch.where(lead < 0x80, lead, lead & (0x7F >> sizes))
    whole = torch.ones_like(begins, dtype=torch.bool)
    for k in range(1, 4):
        following, there = padded[begins + k], sizes > k
        goes_on = ((following & 0xC0) == 0x80) & (owner[begins + k] == document[begins])
        whole &= ~there | goes_on
        code = torch.where(there, (code << 6) | (following & 0x3F), code)
    return torch.where(whole, code, _REPLACEMENT)
