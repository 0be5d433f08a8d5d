"""Tokenizers from elsewhere, taken as they are, and the reserved tokens that one may lack."""

from collections.abc import Iterable

from tokenizer.vocabulary.definition import Definition
from tokenizer.vocabulary.specials import SPECIALS, needed_by


def add_reserved(definition: Definition, wanted: Iterable[str]) -> bytes:
    """The content of a `tokenizer.json` like this one, with every reserved token of `wanted` (objectives or tokens, as
    in `specials.needed_by`) whose role none of its own plays, under ids after its vocabulary. Text is encoded
    as before.

    Raises ValueError for an unknown name, and where a reserved name is an ordinary token of the vocabulary.
    """
    from tokenizers import AddedToken, Tokenizer

    needed = needed_by(wanted)
    missing = [token for token in SPECIALS if token in needed and token not in definition.roles]
    ordinary = set(definition.tokens.values()).intersection(missing)
    if ordinary:
        raise ValueError(
            f"{definition.path}: {', '.join(sorted(ordinary))}: an ordinary token of this vocabulary, so no reserved token "
            "can have this name; declare it special in the file, or use another tokenizer"
        )
    tokenizer = Tokenizer.from_str(definition.json)
    # Ids follow the greatest one; without `normalized`, upper and lower case are told apart in every tokenizer.
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in missing])
    return str(tokenizer.to_str(pretty=True)).encode()
