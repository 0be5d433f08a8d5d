"""Code shared by the trainers of tokenizers: checks of options and texts, the choice of the characters to
cover, and serialization.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizer.vocabulary.specials import SPECIALS

COVERAGE = 0.9995
"""Default share of the characters of the texts, without white space, that a vocabulary covers, as in
SentencePiece (Kudo and Richardson 2018; its documentation recommends 0.9995 for languages with many characters
and 1 for others). Rarer characters are unknown.
"""


LARGEST_VOCABULARY = 1 << 24
"""The largest vocabulary that may be requested; that of XLM-V (Liang et al. 2023), one of the largest
published, has a million tokens. The library reserves memory for all tokens in advance, and ends the process
if there is too little.
"""


def check_request(vocab_size: int, smallest: int, why: str, coverage: float, min_frequency: int) -> None:
    """Raise ValueError if an option is out of range. `smallest` is the smallest allowed `vocab_size`, and
    `why` is the reason that the message gives for it.
    """
    if vocab_size < smallest:
        raise ValueError(f"vocab_size: got {vocab_size}, allowed {smallest} or more ({why})")
    if vocab_size > LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size: got {vocab_size}, allowed at most {LARGEST_VOCABULARY:,}")
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage: got {coverage}, allowed above 0 and at most 1")
    if not 1 <= min_frequency < 1 << 63:
        raise ValueError(f"min_frequency: got {min_frequency}, allowed 1 or more, below 2**63")


def check_encodable(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts unchanged. Raises ValueError at the first text with a lone surrogate."""
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{number}]: lone surrogate at character {error.start}, which UTF-8 cannot encode; decode the source "
                "with errors='replace' or leave the text out"
            ) from None
        yield text


def known_characters(texts: Iterable[str], coverage: float) -> str:
    """Return the most frequent characters of the texts, as few as make up at least the share `coverage` of
    all characters, in order of code point. White space is not counted. Raises ValueError for a text with a
    lone surrogate.
    """
    counts: Counter[str] = Counter()
    for text in check_encodable(texts):
        counts.update(text)
    for character in [character for character in counts if character.isspace()]:
        del counts[character]
    left = coverage * sum(counts.values())
    kept = []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if left <= 0:
            break
        kept.append(character)
        left -= count
    return "".join(sorted(kept))


def blank_unknown(texts: Iterable[str], characters: str) -> Iterator[str]:
    """Yield the texts with every run of characters outside `characters` replaced by a space, so that no token
    is learned across the run. White space is kept.
    """
    other = re.compile(f"[^{re.escape(characters)}\\s]+") if characters else re.compile(r"\S+")
    for text in texts:
        yield other.sub(" ", text)


def serialize(tokenizer: Any, vocab_size: int, why: str) -> bytes:
    """Return the content of a trained tokenizer's `tokenizer.json`. Raises ValueError unless the vocabulary
    has `vocab_size` tokens. If it has fewer, the message gives the reason `why`.
    """
    vocabulary = tokenizer.get_vocab()
    assert all(vocabulary[token] == number for number, token in enumerate(SPECIALS))
    if len(vocabulary) < vocab_size:
        raise ValueError(
            f"vocab_size: got {vocab_size}, but the texts fill only {len(vocabulary)}: {why}; use more text or request "
            f"{len(vocabulary)} tokens or fewer"
        )
    if len(vocabulary) > vocab_size:
        raise ValueError(
            f"vocab_size: got {vocab_size}, but the reserved tokens and the characters alone are {len(vocabulary)}; "
            "request more tokens, or a lower share of the characters (coverage)"
        )
    return str(tokenizer.to_str(pretty=True)).encode()
