"""A character vocabulary: every Unicode code point of the texts is a token, as in character-level language
models (Sutskever et al. 2011; Al-Rfou et al. 2019). Nothing is normalised, so decoding restores any text
whose characters are all in the vocabulary.
"""

from collections.abc import Iterable

from tokenizer.kinds.learned import check_encodable
from tokenizer.vocabulary.specials import SPECIALS, UNK

UNKNOWN = ("unk", "error")
"""What happens to a character outside the vocabulary: it becomes `<unk>`, or encoding stops."""


def character_vocabulary(texts: Iterable[str], unknown: str = "unk") -> bytes:
    """Build a character vocabulary and return the content of its `tokenizer.json`. The reserved tokens have
    the ids 0 to 127; the characters of the texts follow, ordered by code point. `texts` is read once.

    A character outside the vocabulary becomes `<unk>`, or cannot be encoded if `unknown` is "error". Raises
    ValueError for any other `unknown`, for texts without any character, and for a text with a lone surrogate.
    """
    if unknown not in UNKNOWN:
        raise ValueError(f"unknown: got {unknown!r}, allowed {', '.join(UNKNOWN)}")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    from tokenizer.vocabulary.definition import ANY_CHARACTER

    characters: set[str] = set()
    for text in check_encodable(texts):
        characters.update(text)
    if not characters:
        raise ValueError("the texts are empty, so there is no character to learn; give the tokenizer some text")
    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *sorted(characters)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK if unknown == "unk" else ""))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(ANY_CHARACTER), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIALS))
    return str(tokenizer.to_str(pretty=True)).encode()
