"""Add reserved tokens to any tokenizer without changing how it encodes text."""

from collections.abc import Iterable

from tokenizer.vocabulary.definition import Definition
from tokenizer.vocabulary.specials import SPECIALS, required_tokens


def add_reserved(definition: Definition, wanted: Iterable[str]) -> bytes:
    """Add the `wanted` reserved tokens that a vocabulary lacks, with new ids at its end, and return the
    content of the extended `tokenizer.json`, with which `Encoder` encodes text as before.

    `wanted` contains names of objectives or tokens, as in `specials.required_tokens`. A vocabulary lacks a
    reserved token if none of its special tokens plays that role. Raises ValueError for an unknown name, and
    if a token to be added is already an ordinary token of the vocabulary.
    """
    from tokenizers import AddedToken, Tokenizer

    needed = required_tokens(wanted)
    missing = [token for token in SPECIALS if token in needed and token not in definition.roles]
    ordinary = set(definition.tokens.values()).intersection(missing)
    if ordinary:
        raise ValueError(
            f"{definition.path}: {', '.join(sorted(ordinary))}: an ordinary token of this vocabulary, so no reserved token "
            "can have this name; declare it special in the file, or use another tokenizer"
        )
    tokenizer = Tokenizer.from_str(definition.json)
    # New ids follow the greatest one; with normalized=False, case matters in every tokenizer.
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
    return str(tokenizer.to_str(pretty=True)).encode()
