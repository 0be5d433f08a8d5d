"""Read a `tokenizer.json`, and derive the copies of it that encode untrusted text.

By default, Hugging Face `tokenizers` and gigatoken encode a literal `<mask>` or `<|endoftext|>` in a text as
the special token. The setting `encode_special_tokens=True` of `tokenizers` prevents this, but is not saved in
the file. The copies have no special added tokens, so both libraries encode such a string as plain characters.
"""

import json
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import attach_filename
from gristmill.storage.paths import local_path
from tokenizer.vocabulary.specials import map_roles

KINDS = {"WordPiece": "wordpiece", "Unigram": "unigram", "WordLevel": "word_level"}
BYTE_VALUES = 256
ANY_CHARACTER = r"[\s\S]"
"""The regex with which character vocabularies cut a text. A dot would not match line feeds."""
_KEEP_TEXT = ("ByteLevel", "Digits", "FixedLength", "Punctuation", "Split")
"""Pre-tokenizers that keep every character of a text unless their behaviour is `Removed`."""
_NO_SPACE = {"add_prefix_space": False, "prepend_scheme": "never"}  # in ByteLevel and in Metaspace


@dataclass(frozen=True)
class Definition:
    """A parsed `tokenizer.json` in the current version of the format; older files are converted."""

    path: str
    data: dict[str, Any]

    @cached_property
    def kind(self) -> str:
        """The kind of vocabulary: `byte_bpe`, `bytes` (ids are bytes plus `first_byte`), `bpe`, `wordpiece`,
        `unigram`, `characters` (every character of a text is a token) or `word_level`.
        """
        model = self.data["model"]["type"]
        if model == "WordLevel" and self._cuts_characters:
            return "characters"
        if model != "BPE":
            return KINDS[model]
        if not self._byte_level:
            return "bpe"
        return "byte_bpe" if self.first_byte is None else "bytes"

    @cached_property
    def first_byte(self) -> int | None:
        """The id of byte 0 if every byte b of a text is encoded as the id `first_byte` + b, else None."""
        model = self.data["model"]
        first = model["vocab"].get(characters_of_bytes()[0]) if model["type"] == "BPE" else None
        if first is None or model["merges"] or model["ignore_merges"] or not self._byte_level:
            return None
        if self._changes_text() or self._plain_added:
            return None
        in_order = all(model["vocab"].get(c) == first + value for value, c in enumerate(characters_of_bytes()))
        return int(first) if in_order else None

    @cached_property
    def roles(self) -> dict[str, int]:
        """The ids of the special tokens, keyed by role: BERT's `[CLS]` has the role `<cls>`, for example (see
        `map_roles`). A token without a role is listed under its own name.
        """
        return map_roles(self.specials)

    @cached_property
    def specials(self) -> dict[str, int]:
        """The ids of the special tokens that the file declares, keyed by token and ordered by id."""
        declared = {token["content"]: token["id"] for token in self.data["added_tokens"] if token["special"]}
        return dict(sorted(declared.items(), key=lambda item: item[1]))

    @cached_property
    def unknown_id(self) -> int | None:
        """The id of the unknown token, or None. It is the only special token that encoding a text may
        produce.
        """
        model = self.data["model"]
        if model["type"] == "Unigram":
            return model["unk_id"]
        return model["vocab"].get(model.get("unk_token"))

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Tokens by id, as written in the file. Byte-level vocabularies write each byte as one printable
        character.
        """
        vocabulary = self.data["model"]["vocab"]
        named = enumerate(entry[0] for entry in vocabulary) if isinstance(vocabulary, list) else _by_id(vocabulary)
        return {**dict(named), **{token["id"]: token["content"] for token in self.data["added_tokens"]}}

    @cached_property
    def vocab_size(self) -> int:
        """The number of rows that an embedding table needs: one more than the largest id."""
        return max(self.tokens) + 1

    @property
    def json(self) -> str:
        """The whole definition as JSON."""
        return json.dumps(self.data, ensure_ascii=False)

    @cached_property
    def end_of_word(self) -> str | None:
        """The mark that ends the last token of each word, or None."""
        suffix: str | None = self.data["model"].get("end_of_word_suffix")
        decoder = self.data["decoder"] or {}
        return suffix or (decoder["suffix"] if decoder.get("type") == "BPEDecoder" else None) or None

    @cached_property
    def plain_json(self) -> str:
        """The definition for encoding text, as JSON: a copy of the file without special added tokens,
        truncation, padding, dropout and post-processing. In vocabularies other than BPE, the special tokens
        are renamed.
        """
        dropped = {"truncation": None, "padding": None, "post_processor": None}
        changed = {"added_tokens": self._plain_added, "model": self._plain_model()}
        return json.dumps({**self.data, **dropped, **changed}, ensure_ascii=False)

    @cached_property
    def within_text_json(self) -> str:
        """The definition for encoding parts of a text that is already normalised, as JSON: `plain_json`
        without a normaliser and without the space that some pre-tokenizers add before a text.
        """
        cutter = self.data["pre_tokenizer"]
        parts = [
            part | {name: value for name, value in _NO_SPACE.items() if name in part} for part in self._pre_tokenizers
        ]
        if cutter is not None:
            cutter = {**cutter, "pretokenizers": parts} if cutter["type"] == "Sequence" else parts[0]
        return json.dumps(
            json.loads(self.plain_json) | {"normalizer": None, "pre_tokenizer": cutter}, ensure_ascii=False
        )

    def _plain_model(self) -> dict[str, Any]:
        """Return the model without dropout. Unless it is a BPE, its special tokens are renamed to names that
        contain spaces and so cannot occur as words.
        """
        model = {**self.data["model"]}
        special = set(self.specials.values())
        if model["type"] == "BPE":
            model["dropout"] = None
        elif model["type"] == "Unigram":
            pieces = enumerate(model["vocab"])
            model["vocab"] = [[f" {number} ", *entry[1:]] if number in special else entry for number, entry in pieces]
        else:
            named = {token: f" {number} " if number in special else token for token, number in model["vocab"].items()}
            model["vocab"] = {named[token]: number for token, number in model["vocab"].items()}
            model["unk_token"] = named.get(model["unk_token"], model["unk_token"])
        return model

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of text that a token represents. For added tokens, for tokens with a character that
        represents no byte, and in vocabularies that are not byte-level, these are the UTF-8 bytes of the token
        as written.
        """
        token, table = self.tokens[token_id], _byte_of_character()
        if not self._byte_level or token_id in self._added or not table.keys() >= set(token):
            return token.encode()
        return bytes(map(table.__getitem__, token))

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """Return the number of bytes of text that each token covers, indexed by id, as int64 of shape
        (vocab_size,). It is 0 for special tokens and unused ids.

        Raises ValueError for a tokenizer that does not keep every byte of the text (`keeps_bytes`).
        """
        if reason := self._byte_length_obstacle():
            raise ValueError(
                f"{self.path}: byte positions of tokens are known only for byte-level BPE that keeps every byte of the "
                f"text; this one {reason}. Train a byte-level BPE"
            )
        special = set(self.specials.values())
        lengths: npt.NDArray[np.int64] = np.zeros(self.vocab_size, np.int64)
        for token_id in self.tokens:
            if token_id not in special:
                lengths[token_id] = len(self.token_bytes(token_id))
        return lengths

    @property
    def keeps_bytes(self) -> bool:
        """Whether joining the bytes of a text's tokens always gives the bytes of the text, so that
        `byte_lengths` is defined.
        """
        return self._byte_length_obstacle() is None

    def _changes_text(self) -> str | None:
        if self.data["normalizer"] is not None:
            return f"normalises text first ({self.data['normalizer']['type']})"
        if any(part["type"] == "ByteLevel" and part["add_prefix_space"] for part in self._pre_tokenizers):
            return "adds a space before the text (add_prefix_space)"
        for part in self._pre_tokenizers:
            if part["type"] not in _KEEP_TEXT or part.get("behavior") == "Removed":
                return f"cuts text in a way that may change it ({part['type']})"
        if sum(part["type"] == "ByteLevel" for part in self._pre_tokenizers) > 1:
            return "replaces bytes by characters twice (ByteLevel)"
        for mark in ("continuing_subword_prefix", "end_of_word_suffix"):
            if self.data["model"][mark]:
                return f"marks parts of words ({mark})"
        return None

    def _byte_length_obstacle(self) -> str | None:
        if not self._byte_level or self.data["model"]["type"] != "BPE":
            return f"is {self.kind}"
        if changes := self._changes_text():
            return changes
        if any(token["lstrip"] or token["rstrip"] for token in self._plain_added):
            return "has added tokens that swallow the spaces around them"
        if set(_byte_of_character()) - set(self.data["model"]["vocab"]):
            return "has no token for some bytes"
        return None

    @cached_property
    def _plain_added(self) -> list[dict[str, Any]]:
        return [token for token in self.data["added_tokens"] if not token["special"]]

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
    def _cuts_characters(self) -> bool:
        cut = {"type": "Split", "pattern": {"Regex": ANY_CHARACTER}, "behavior": "Isolated", "invert": False}
        return self.data["pre_tokenizer"] == cut and self.data["normalizer"] is None and not self._plain_added

    @cached_property
    def characters(self) -> dict[str, int]:
        """The id of each character in a vocabulary of the kind `characters`."""
        special = set(self.specials.values())
        vocabulary: dict[str, int] = self.data["model"]["vocab"]
        return {token: number for token, number in vocabulary.items() if len(token) == 1 and number not in special}

    @cached_property
    def _byte_level(self) -> bool:
        return any(part["type"] == "ByteLevel" for part in self._pre_tokenizers)


def read_definition(path: str) -> Definition:
    """Read a `tokenizer.json`, given its path or the directory that contains it. Raises ValueError for a
    missing or broken file.
    """
    from tokenizers import Tokenizer

    file = local_path(path)
    if file.is_dir():
        file = file / "tokenizer.json"
    if not file.is_file():
        raise ValueError(f"{file}: no such tokenizer; expected a tokenizer.json or a directory that holds one")
    with attach_filename(file):
        content = file.read_bytes()
    try:
        # `tokenizers` converts files of older versions; it raises plain Exception.
        data = json.loads(Tokenizer.from_str(content.decode()).to_str())
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error}); expected a Hugging Face tokenizer.json") from error
    except Exception as error:
        raise ValueError(f"{file}: not a Hugging Face tokenizer.json: {error}; train or copy it again") from error
    definition = Definition(str(file), data)
    if not definition.tokens:
        raise ValueError(f"{file}: the vocabulary is empty; train or copy it again")
    return definition


def load_within_text(definition: Definition) -> Any:
    """Load a `tokenizers` tokenizer that encodes parts of a text; see `Definition.within_text_json`."""
    from tokenizers import Tokenizer

    return Tokenizer.from_str(definition.within_text_json)


def _by_id(vocabulary: dict[str, int]) -> list[tuple[int, str]]:
    return [(token_id, token) for token, token_id in vocabulary.items()]


@cache
def characters_of_bytes() -> tuple[str, ...]:
    """Return the 256 characters that represent the bytes 0 to 255, in this order, in byte-level vocabularies."""
    table = _byte_of_character()
    return tuple(sorted(table, key=table.__getitem__))


@cache
def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's mapping from characters to the bytes that they represent."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(BYTE_VALUES) if value not in printable]
    table = {chr(value): value for value in printable}
    table.update({chr(BYTE_VALUES + number): value for number, value in enumerate(others)})
    return table
