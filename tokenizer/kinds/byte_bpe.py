"""Train a byte-level BPE (Sennrich et al. 2016 over bytes, Radford et al. 2019) with Hugging Face
`tokenizers`.

The result depends only on the multiset of texts. Reserved tokens that occur literally in the texts are
treated as plain characters.
"""

from collections.abc import Iterable
from typing import Any, Final

from tokenizer.kinds.learned import check_encodable, check_request, serialize
from tokenizer.vocabulary.specials import SPECIALS

# The published regexes. They cut text into pieces, and merges never cross a cut. gigatoken recognises both.
GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS: Final[dict[str, str]] = {"gpt2": GPT2, "llama3": LLAMA3}
"""Regexes by name. `llama3` (also used by cl100k) separates line ends from the spaces after them, and cuts
numbers into groups of at most three digits. With 16,384 tokens, it gave 0.5 % more bytes per token than
`gpt2` on textbooks, 3.5 % more on technical documents and 3.7 % more on forum posts, but 2.1 % fewer on
Wikipedia, where years are frequent (benchmarks/train_tokenizer.py).
"""

SMALLEST_VOCABULARY: Final = len(SPECIALS) + 256
"""The size of a vocabulary without merges: the reserved tokens and the 256 bytes."""


def train_byte_bpe(
    texts: Iterable[str],
    vocab_size: int,
    *,
    pattern: str = "llama3",
    min_frequency: int = 2,
    show_progress: bool = False,
) -> bytes:
    """Train a byte-level BPE and return the content of its `tokenizer.json`, which depends only on the
    multiset of texts and the options. `texts` is read once.

    Ids 0 to 127 are the reserved tokens of `tokenizer.vocabulary.specials`. The 256 bytes follow, ordered by
    the characters that represent them, and then one token per merge. A pair of tokens is merged only if it
    occurs at least `min_frequency` times.

    Raises ValueError for a `vocab_size` below 384 (`SMALLEST_VOCABULARY`), a `min_frequency` below 1, texts
    with too few repeated pairs to fill the vocabulary, an unknown `pattern`, or a text with a lone surrogate.
    """
    why = f"{len(SPECIALS)} reserved tokens and 256 bytes come before the first merge"
    check_request(vocab_size, SMALLEST_VOCABULARY, why, 1, min_frequency)
    from tokenizers import pre_tokenizers, trainers

    tokenizer = _make_tokenizer(pattern)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(check_encodable(texts), trainer)
    return serialize(tokenizer, vocab_size, f"no further pair of tokens occurs {min_frequency} times")


def _make_tokenizer(pattern: str) -> Any:
    """Return an untrained tokenizer. It has no normaliser, so decoding restores every byte."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if pattern not in PATTERNS:
        raise ValueError(f"pattern: got {pattern!r}, allowed {', '.join(map(repr, PATTERNS))}")
    tokenizer = Tokenizer(models.BPE())
    if pattern == "gpt2":  # written as in GPT-2's own file, which every library knows
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(PATTERNS[pattern]), behavior="isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
