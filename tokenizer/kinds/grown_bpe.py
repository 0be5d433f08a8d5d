"""Grow a byte-level BPE: keep its tokens, their ids and its merges, and learn further merges on other texts.
This is vocabulary expansion; Yao et al. 2021 ("Adapt-and-Distill", section 3.1) do the same with WordPiece in
AdaLM.

The texts are encoded with the base tokenizer, and each token is written as one character. `tokenizers` then
learns BPE as usual, on words over this large alphabet.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tokenizer.kinds.learned import check_encodable
from tokenizer.vocabulary.add_reserved import add_reserved
from tokenizer.vocabulary.definition import Definition, load_within_text
from tokenizer.vocabulary.specials import SPECIALS

_FIRST = 0x10000  # the character of token 0; there is no white space from here on
_TEXTS = 256  # encoded together


def grow_byte_bpe(texts: Iterable[str], base: Definition, vocab_size: int, *, min_frequency: int = 2) -> bytes:
    """Return the content of a `tokenizer.json` that extends the tokenizer `base` to `vocab_size` tokens.

    The tokens of `base` keep their ids. They are followed by the reserved tokens
    (`tokenizer.vocabulary.specials`) that `base` lacks, and then by one token per new merge. Two tokens are
    merged only if they occur side by side at least `min_frequency` times in the texts. `texts` may be read
    several times, so it must not be an iterator.

    Raises ValueError if `base` is not a byte-level BPE that keeps every byte, if an ordinary token of `base`
    has the name of a reserved token that must be added, if `base` and the added reserved tokens already fill
    `vocab_size`, for texts with too few repeated pairs, and for a text with a lone surrogate.
    """
    if base.kind not in ("byte_bpe", "bytes") or not base.keeps_bytes:
        raise ValueError(
            f"{base.path}: is {base.kind}, or changes text; only a byte-level BPE that keeps every byte can grow"
        )
    whole = Definition(base.path, json.loads(add_reserved(base, SPECIALS)))
    wanted = vocab_size - whole.vocab_size
    if wanted < 1:
        raise ValueError(
            f"vocab_size: got {vocab_size}, allowed more than the {whole.vocab_size} tokens of {base.path} with all reserved "
            f"tokens"
        )
    special, asked = set(whole.specials.values()), wanted
    tokens = {number: token for number, token in whole.tokens.items() if number not in special}
    while True:
        learned = _learn(texts, whole, sorted(tokens), asked, min_frequency)
        merges = _joined(learned, tokens, whole.tokens.values())
        if len(merges) >= wanted:
            return _extended(whole, merges[:wanted])
        if len(learned) < asked:
            raise ValueError(
                f"vocab_size: got {vocab_size}, but the texts fill only {whole.vocab_size + len(merges)}: no further pair of "
                f"tokens occurs {min_frequency} times; use more text or request {whole.vocab_size + len(merges)} tokens or fewer"
            )
        asked += wanted - len(merges)


def _learn(
    texts: Iterable[str], base: Definition, numbers: Iterable[int], count: int, min_frequency: int
) -> list[tuple[str, str]]:
    """Learn up to `count` merges on the texts, in which each token of `base` is first written as one
    character. Return the merges as pairs of strings of these characters. `numbers` are the ids of the
    ordinary tokens of `base`.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    alphabet = [chr(_FIRST + number) for number in numbers]
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + count, min_frequency=min_frequency, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_as_characters(texts, base), trainer)
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def _as_characters(texts: Iterable[str], base: Definition) -> Iterator[str]:
    """Yield each text with every token of the base tokenizer written as one character, and a space before
    each pre-token.
    """
    encoder = load_within_text(base)

    def written(batch: list[str]) -> Iterator[str]:
        for encoding in encoder.encode_batch(batch, add_special_tokens=False):
            pieces, before = [], None
            for number, word in zip(encoding.ids, encoding.word_ids, strict=True):
                if word != before:
                    pieces.append(" ")
                    before = word
                pieces.append(chr(_FIRST + number))
            yield "".join(pieces)

    batch: list[str] = []
    for text in check_encodable(texts):
        batch.append(text)
        if len(batch) == _TEXTS:
            yield from written(batch)
            batch = []
    yield from written(batch)


def _joined(
    learned: Iterable[tuple[str, str]], tokens: dict[int, str], existing: Iterable[str]
) -> list[tuple[str, str]]:
    """Return the merges of `_learn` as pairs of tokens. A merge is left out if it yields a token of
    `existing` or the token of an earlier merge, or if it builds on a merge that was left out. `tokens` maps
    the ids of the ordinary tokens to the tokens; `existing` also includes the special tokens.
    """
    known = set(existing)
    texts = {chr(_FIRST + number): token for number, token in tokens.items()}
    merges: list[tuple[str, str]] = []
    for left, right in learned:
        if left in texts and right in texts and (text := texts[left] + texts[right]) not in known:
            merges.append((texts[left], texts[right]))
            known.add(text)
            texts[left + right] = text
    return merges


def _extended(base: Definition, merges: list[tuple[str, str]]) -> bytes:
    from tokenizers import Tokenizer

    model: dict[str, Any] = base.data["model"]
    # `tokenizers` numbers added tokens anew unless the vocabulary has them too.
    added = {token["content"]: token["id"] for token in base.data["added_tokens"]}
    vocabulary = added | {left + right: base.vocab_size + number for number, (left, right) in enumerate(merges)}
    grown = {
        **model,
        "vocab": {**model["vocab"], **vocabulary},
        "merges": [*model["merges"], *([left, right] for left, right in merges)],
    }
    content = json.dumps({**base.data, "model": grown}, ensure_ascii=False)
    return str(Tokenizer.from_str(content).to_str(pretty=True)).encode()
