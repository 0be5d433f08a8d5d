"""Train a unigram language model (Kudo 2018) as in T5, which uses SentencePiece. Spaces are written as `▁`,
and T5's sentinels are reserved tokens.

Results are not reproducible: Hugging Face `tokenizers` produces a different file in every run, even with one
thread.
"""

from collections.abc import Iterable
from typing import Any

from tokenizer.kinds.learned import COVERAGE, blank_unknown, check_request, known_characters, serialize
from tokenizer.vocabulary.specials import SPECIALS, UNK


def train_unigram(
    texts: Iterable[str], vocab_size: int, *, lowercase: bool = False, coverage: float = COVERAGE
) -> bytes:
    """Train a unigram vocabulary and return the content of its `tokenizer.json`. `texts` is read twice, so it
    must not be an iterator.

    The reserved tokens have the ids 0 to 127; the pieces follow. Texts are normalised as for T5 (`nmt_nfkc`):
    control characters are removed, line ends and tabs become spaces, NFKC is applied, runs of spaces become
    one space, spaces at both ends are removed, and a space is added at the start. `lowercase` also converts
    texts to lower case. A run of characters outside the vocabulary becomes `<unk>`. Pieces have at most 16
    characters.

    Raises ValueError if the texts do not fill `vocab_size`, if their characters alone exceed it, for a text
    with a lone surrogate, for a `vocab_size` below 129, and for a `coverage` outside (0, 1].
    """
    check_request(vocab_size, len(SPECIALS) + 1, "128 are reserved", coverage, 1)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = unigram_normalizer(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIALS), unk_token=UNK, max_piece_length=16, show_progress=False
    )
    known = known_characters(texts, coverage)
    if not known:
        raise ValueError(f"vocab_size: got {vocab_size}, but the texts are empty")
    try:
        tokenizer.train_from_iterator(blank_unknown(texts, known), trainer)
    except Exception as error:  # the library raises plain Exception; the texts were checked before
        raise ValueError(
            f"vocab_size: got {vocab_size}, 128 of them reserved, for texts of {len(known)} characters: {error}; request "
            "more tokens, or a lower share of the characters (coverage)"
        ) from error
    return serialize(tokenizer, vocab_size, "they have no further pieces")


def unigram_normalizer(lowercase: bool) -> Any:
    """Return T5's normalisation as a `tokenizers` normaliser. With `lowercase`, it also converts text to
    lower case.
    """
    from tokenizers import Regex, normalizers

    fold = [normalizers.Lowercase()] if lowercase else []
    one_space = normalizers.Replace(Regex(" {2,}"), " ")
    return normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), *fold, one_space, normalizers.Strip()])
