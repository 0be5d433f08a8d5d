"""Train BPE on the characters of words with an end-of-word mark (Sennrich et al. 2016), as in GPT (Radford et
al. 2018).

The mark is added to every word before training and encoding, so `er` inside a word and `er` at its end are
different tokens. `end_of_word_suffix` of Hugging Face's BPE does not reproduce the paper; a plain BPE on
marked words does.
"""

from collections.abc import Iterable
from typing import Any, Final

from tokenizer.kinds.learned import COVERAGE, blank_unknown, check_request, known_characters, serialize
from tokenizer.vocabulary.specials import SPECIALS, UNK

END_OF_WORD: Final = "␃"
"""A single character, so that merges treat it as one symbol (the paper's figure has `·`, its code `</w>`). In
a text it is replaced by a space, so no text can forge the end of a word.
"""

# Punctuation marks and symbols are words of their own; a word ends before white space and at the end of the
# text.
_APART: Final = r"(?<=[\p{P}\p{S}])(?=\S)|(?<=\S)(?=[\p{P}\p{S}])"
_ENDS: Final = r"(?<=\S)(?=\s|\z)"


def train_word_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool = False,
    coverage: float = COVERAGE,
    min_frequency: int = 2,
) -> bytes:
    """Train a BPE with an end-of-word mark and return the content of its `tokenizer.json`, which depends only
    on the multiset of texts and the options. `texts` is read twice, so it must not be an iterator.

    The reserved tokens have the ids 0 to 127. They are followed by the characters in order of code point, and
    then by one token per merge. The characters are the mark and those that `coverage` keeps, after
    normalisation. Characters outside the vocabulary become `<unk>`. White space is not kept: decoding writes
    one space between words.

    Raises ValueError for unsuitable options or texts, such as texts that do not fill `vocab_size`.
    """
    check_request(vocab_size, len(SPECIALS) + 1, "128 are reserved", coverage, min_frequency)
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=UNK))
    tokenizer.normalizer = word_normalizer(lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(SPECIALS), show_progress=False
    )
    tokenizer.train_from_iterator(blank_unknown(texts, known_characters(texts, coverage)), trainer)
    return serialize(tokenizer, vocab_size, f"no further pair of tokens occurs {min_frequency} times")


def word_normalizer(lowercase: bool) -> Any:
    """Return the `tokenizers` normaliser that applies NFC, converts text to lower case if `lowercase` is set,
    replaces END_OF_WORD with a space, puts spaces around punctuation and symbols, and adds END_OF_WORD to the
    end of every word.
    """
    from tokenizers import Regex, normalizers

    steps = [normalizers.NFC(), *([normalizers.Lowercase()] if lowercase else [])]
    steps += [normalizers.Replace(END_OF_WORD, " "), normalizers.Replace(Regex(_APART), " ")]
    return normalizers.Sequence([*steps, normalizers.Replace(Regex(_ENDS), END_OF_WORD)])
