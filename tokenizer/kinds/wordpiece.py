"""Train WordPiece as in BERT (Devlin et al. 2019; Wu et al. 2016). Words are cut into the longest known
pieces, and pieces that do not begin a word start with `##`.

Hugging Face `tokenizers` learns the pieces by BPE merges. It produces a different vocabulary in every run,
even with one thread.
"""

from collections.abc import Iterable

from tokenizer.kinds.learned import COVERAGE, blank_unknown, check_request, known_characters, serialize
from tokenizer.vocabulary.specials import SPECIALS, UNK


def train_wordpiece(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    coverage: float = COVERAGE,
    min_frequency: int = 2,
) -> bytes:
    """Train a WordPiece vocabulary and return the content of its `tokenizer.json`. `texts` is read twice, so
    it must not be an iterator.

    The reserved tokens have the ids 0 to 127; characters and pieces follow. Texts are cleaned and cut into
    words as in BERT. `lowercase` converts them to lower case and strips accents, as in BERT uncased. A word
    of more than 100 characters, or one that cannot be cut into known pieces, becomes `<unk>`.

    Raises ValueError for unsuitable options or texts, such as texts that do not fill `vocab_size`.
    """
    check_request(vocab_size, len(SPECIALS) + 1, "128 are reserved", coverage, min_frequency)
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece({}, unk_token=UNK, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(SPECIALS), show_progress=False
    )
    tokenizer.train_from_iterator(blank_unknown(texts, known_characters(texts, coverage)), trainer)
    return serialize(tokenizer, vocab_size, f"no further pair of pieces occurs {min_frequency} times")
