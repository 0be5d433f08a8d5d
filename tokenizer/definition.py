"""Reading a `tokenizer.json`, and the copy of it that encodes the text of strangers.

Hugging Face `tokenizers` and gigatoken turn a literal `<mask>` or `<|endoftext|>` in a text into the special token, and
`encode_special_tokens=True` is not saved in the file. A copy without special added tokens does what we need in both: it
encodes such a string as the characters it is.
"""

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

KINDS = {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "word_level"}
BYTE_VALUES = 256


@dataclass(frozen=True)
class Definition:
    """A parsed `tokenizer.json` in the current form of the format (older files are brought up to it)."""

    path: str
    data: dict[str, Any]

    @cached_property
    def kind(self) -> str:
        """`byte_bpe`, `bpe`, `wordpiece`, `unigram` or `word_level`."""
        model = self.data["model"]["type"]
        if model != "BPE":
            return KINDS[model]
        return "byte_bpe" if self._byte_level else "bpe"

    @cached_property
    def specials(self) -> dict[str, int]:
        """Special tokens that the file declares, in the order of their ids."""
        declared = {token["content"]: token["id"] for token in self.data["added_tokens"] if token["special"]}
        return dict(sorted(declared.items(), key=lambda item: item[1]))

    @cached_property
    def unknown_id(self) -> int | None:
        """Id of the token that stands for text outside the vocabulary: the one special that text may yield."""
        model = self.data["model"]
        if model["type"] == "Unigram":
            return model["unk_id"]
        return model["vocab"].get(model.get("unk_token"))

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Id to token as the file writes it (byte-level vocabularies write each byte as one printable character)."""
        vocabulary = self.data["model"]["vocab"]
        named = enumerate(entry[0] for entry in vocabulary) if isinstance(vocabulary, list) else _by_id(vocabulary)
        return {**dict(named), **{token["id"]: token["content"] for token in self.data["added_tokens"]}}

    @cached_property
    def vocab_size(self) -> int:
        """Rows that an embedding table needs: one more than the greatest id."""
        return max(self.tokens) + 1

    @cached_property
    def plain_json(self) -> str:
        """The copy that encodes text: no special tokens, and nothing that cuts, pads, randomises or wraps the ids."""
        model = {**self.data["model"]}
        if model["type"] == "BPE":
            model["dropout"] = None
        kept = [token for token in self.data["added_tokens"] if not token["special"]]
        dropped = {"truncation": None, "padding": None, "post_processor": None}
        return json.dumps({**self.data, **dropped, "added_tokens": kept, "model": model}, ensure_ascii=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes that a token stands for; for kinds that are not byte-level, those of its written form."""
        token = self.tokens[token_id]
        if self.kind != "byte_bpe" or token_id in self._added:
            return token.encode()
        return bytes(_byte_of_character()[character] for character in token)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """Bytes of text that each id covers, int64 of shape (vocab_size,); 0 for special tokens and unused ids.

        Raises ValueError for tokenizers whose token lengths do not add up to the length of the text.
        """
        if reason := self._why_bytes_do_not_add_up():
            raise ValueError(
                f"{self.path}: byte positions of tokens are known only for byte-level BPE that keeps every byte of the "
                f"text; this one {reason}. Train a byte-level BPE, or do without the columns that need positions "
                "(sentences)"
            )
        special = set(self.specials.values())
        lengths: npt.NDArray[np.int64] = np.zeros(self.vocab_size, np.int64)
        for token_id in self.tokens:
            if token_id not in special:
                lengths[token_id] = len(self.token_bytes(token_id))
        return lengths

    def _why_bytes_do_not_add_up(self) -> str | None:
        if self.kind != "byte_bpe":
            return f"is {self.kind}"
        if self.data["normalizer"] is not None:
            return f"normalises text first ({self.data['normalizer']['type']})"
        if any(part["type"] == "ByteLevel" and part["add_prefix_space"] for part in self._pre_tokenizers):
            return "adds a space before the text (add_prefix_space)"
        if any(token["lstrip"] or token["rstrip"] for token in self.data["added_tokens"] if not token["special"]):
            return "has added tokens that swallow the spaces around them"
        if set(_byte_of_character()) - set(self.data["model"]["vocab"]):
            return "has no token for some bytes"
        return None

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(token["id"] for token in self.data["added_tokens"])

    @cached_property
    def _pre_tokenizers(self) -> list[dict[str, Any]]:
        first = self.data["pre_tokenizer"]
        if first is None:
            return []
        return first["pretokenizers"] if first["type"] == "Sequence" else [first]

    @property
    def _byte_level(self) -> bool:
        return any(part["type"] == "ByteLevel" for part in self._pre_tokenizers)


def read_definition(path: str) -> Definition:
    """Read a `tokenizer.json` (or the one in the directory `path`); ValueError where it cannot be read."""
    from tokenizers import Tokenizer

    file = Path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{file}: no such tokenizer; expected a tokenizer.json or a directory that holds one")
    try:
        # `tokenizers` raises plain Exception; through it, files of older versions come out in the current form.
        data = json.loads(Tokenizer.from_str(file.read_text(encoding="utf-8")).to_str())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error}); expected a Hugging Face tokenizer.json") from error
    except Exception as error:
        raise ValueError(f"{file}: not a Hugging Face tokenizer.json: {error}; train or copy it again") from error
    definition = Definition(str(file), data)
    if not definition.tokens:
        raise ValueError(f"{file}: the vocabulary is empty; train or copy it again")
    return definition


def _by_id(vocabulary: dict[str, int]) -> list[tuple[int, str]]:
    return [(token_id, token) for token, token_id in vocabulary.items()]


@cache
def _byte_of_character() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 characters stand for their own byte, the others for 256, 257, ... in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(BYTE_VALUES) if value not in printable]
    table = {chr(value): value for value in printable}
    table.update({chr(BYTE_VALUES + number): value for number, value in enumerate(others)})
    return table
