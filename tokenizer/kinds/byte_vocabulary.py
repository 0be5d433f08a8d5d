"""The byte vocabulary: every byte of UTF-8 is a token, as in ByT5 (Xue et al. 2022). Nothing is learned.

The id of a byte is its value plus 128; in ByT5, it is the value plus 3.
"""

from tokenizer.vocabulary.specials import SPECIALS

FIRST_BYTE = len(SPECIALS)
"""The id of byte 0."""

VOCAB_SIZE = FIRST_BYTE + 256


def byte_vocabulary() -> bytes:
    """Return the content of the byte vocabulary's `tokenizer.json`: a byte-level BPE without merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from tokenizer.vocabulary.definition import characters_of_bytes

    vocabulary = {token: number for number, token in enumerate((*SPECIALS, *characters_of_bytes()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    return str(tokenizer.to_str(pretty=True)).encode()
