"""What all trained kinds share: the checks before and after training, and the characters that a vocabulary is to know."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizer.vocabulary.specials import SPECIALS

COVERAGE = 0.9995
"""Share of all characters that a vocabulary knows, as in SentencePiece (Kudo and Richardson 2018; its documentation
recommends 0.9995 for languages of many characters and 1 for others). Rarer characters become `<unk>`."""


def check_request(vocab_size: int, smallest: int, why: str, coverage: float, min_frequency: int) -> None:
    """ValueError for a vocabulary below `smallest`, a share of characters outside (0, 1], a frequency below 1."""
    if vocab_size < smallest:
        raise ValueError(f"vocab_size: got {vocab_size}, allowed {smallest} or more ({why})")
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage: got {coverage}, allowed above 0 to 1")
    if min_frequency < 1:
        raise ValueError(f"min_frequency: got {min_frequency}, allowed 1 or more")


def encodable(texts: Iterable[str]) -> Iterator[str]:
    """The texts; ValueError at one with a lone surrogate."""
    for number, text in enumerate(texts):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"texts[{number}]: lone surrogate at character {error.start}; allowed is text that UTF-8 can hold: "
                "decode the source with errors='replace' or leave the text out"
            ) from None
        yield text


def known_characters(texts: Iterable[str], coverage: float) -> str:
    """The fewest characters that make up `coverage` of all but white space, in the order of their code points.

    Among equally frequent characters those of smaller code points are kept.
    """
    counts: Counter[str] = Counter()
    for text in encodable(texts):
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


def only_known(texts: Iterable[str], characters: str) -> Iterator[str]:
    """The texts with a space for every run of other characters: it ends a word, so that no token is learned across it."""
    other = re.compile(f"[^{re.escape(characters)}\\s]+") if characters else re.compile(r"\S+")
    for text in texts:
        yield other.sub(" ", text)


def finished(tokenizer: Any, vocab_size: int, why: str) -> bytes:
    """The content of `tokenizer.json`; ValueError where the texts gave fewer tokens than were asked for, or more."""
    vocabulary = tokenizer.get_vocab()
    assert all(vocabulary[token] == number for number, token in enumerate(SPECIALS))
    if len(vocabulary) < vocab_size:
        raise ValueError(
            f"vocab_size: got {vocab_size}, but the texts fill only {len(vocabulary)}: {why}; give more text or ask "
            f"for {len(vocabulary)} tokens or fewer"
        )
    if len(vocabulary) > vocab_size:
        raise ValueError(
            f"vocab_size: got {vocab_size}, but the reserved tokens and the characters alone are {len(vocabulary)}; "
            "ask for more tokens, or for a lower share of the characters (coverage)"
        )
    return str(tokenizer.to_str(pretty=True)).encode()
