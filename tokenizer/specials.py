"""The reserved tokens that every vocabulary trained here begins with, at ids that never change.

Readers of token shards add these tokens; text never yields them (see `tokenizer.encode`). The list covers the
objectives of all families: padding, document marks, BERT's classification and masking, T5's 100 sentinels, the marks of
fill-in-the-middle (Bavarian et al. 2022), and spares, so that no objective needs another vocabulary.
"""

PAD, BOS, EOS, UNK, MASK, CLS, SEP = "<pad>", "<bos>", "<eos>", "<unk>", "<mask>", "<cls>", "<sep>"
SENTINELS: tuple[str, ...] = tuple(f"<extra_id_{number}>" for number in range(100))
FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX, FIM_PAD = "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>"
SPARES: tuple[str, ...] = tuple(f"<reserved_{number}>" for number in range(17))

SPECIALS: tuple[str, ...] = (
    *(PAD, BOS, EOS, UNK, MASK, CLS, SEP),  # 0 to 6
    *SENTINELS,  # 7 to 106
    *(FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX, FIM_PAD),  # 107 to 110
    *SPARES,  # 111 to 127
)
"""All reserved tokens; the position is the id."""

SPECIAL_IDS: dict[str, int] = {token: number for number, token in enumerate(SPECIALS)}
