"""The reserved tokens, which have fixed ids at the start of every vocabulary trained here from scratch, and
their names in other tokenizers.

Encoding text never yields a reserved token except `<unk>` (see `tokenizer.encode`). The reserved tokens cover
the objectives of all model families, including fill-in-the-middle (Bavarian et al. 2022).
"""

import difflib
from collections.abc import Iterable, Mapping

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
"""All reserved tokens. The index of a token is its id."""

SPECIAL_IDS: dict[str, int] = {token: number for number, token in enumerate(SPECIALS)}

ALIASES: dict[str, tuple[str, ...]] = {
    PAD: ("[PAD]", "<|pad|>", "<|padding|>", "<|endofpadding|>", "<|finetune_right_pad_id|>"),
    BOS: ("<s>", "<|begin_of_text|>", "<|startoftext|>", "<|bos|>", "[BOS]", "<|endoftext|>"),
    EOS: ("</s>", "<|end_of_text|>", "<|eos|>", "[EOS]", "<|endoftext|>"),
    UNK: ("[UNK]", "<|unk|>"),
    MASK: ("[MASK]", "<|mask|>"),
    CLS: ("[CLS]", "<s>"),
    SEP: ("[SEP]", "</s>"),
    FIM_PREFIX: ("<|fim_prefix|>", "<fim-prefix>", "<PRE>"),
    FIM_MIDDLE: ("<|fim_middle|>", "<fim-middle>", "<MID>"),
    FIM_SUFFIX: ("<|fim_suffix|>", "<fim-suffix>", "<SUF>"),
    FIM_PAD: ("<|fim_pad|>", "<fim-pad>"),
}
"""Names of each reserved token in published tokenizers, the likeliest first. They are those of BERT, RoBERTa and
BART (`<s>` is both the start of a text and the classification token), T5, GPT-2 (`<|endoftext|>` separates
documents, so it is both their start and their end), Llama, StarCoder and Code Llama, among others.
"""


def map_roles(declared: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of special tokens, keyed by role and ordered by id. `declared` maps special tokens to
    ids.

    One token may have two roles (GPT-2's `<|endoftext|>` is `<bos>` and `<eos>`). A token without a role is
    listed under its own name.
    """
    roles = {}
    for role in SPECIALS:
        name = next((name for name in (role, *ALIASES.get(role, ())) if name in declared), None)
        if name is not None:
            roles[role] = declared[name]
    taken = set(roles.values())
    roles.update({name: number for name, number in declared.items() if number not in taken})
    return dict(sorted(roles.items(), key=lambda item: (item[1], SPECIAL_IDS.get(item[0], 0))))


REQUIRED_BY: dict[str, tuple[str, ...]] = {
    "causal": (BOS, EOS),
    "bidirectional_lm": (PAD, CLS, SEP),
    "denoising": (PAD, BOS, EOS, MASK),
    "fill_in_the_middle": (BOS, EOS, FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX),
    "gap_sentences": (PAD, EOS, MASK),
    "masked": (PAD, MASK, CLS, SEP),
    "masked_characters": (PAD, MASK, CLS, SEP),
    "masked_subwords": (PAD, MASK, CLS, SEP),
    "mixture": (PAD, BOS, EOS, *SENTINELS, *SPARES[:3]),
    "multitask": (PAD, BOS, EOS, *SENTINELS),
    "next_sentence": (PAD, MASK, CLS, SEP),
    "permutation": (PAD, CLS, SEP),
    "prefix_lm": (PAD, BOS, EOS),
    "quick_thought": (PAD, CLS, SEP),
    "replaced_tokens": (PAD, MASK, CLS, SEP),
    "salient_spans": (PAD, EOS, *SENTINELS),
    "sentence_order": (PAD, MASK, CLS, SEP),
    "simcse": (PAD, CLS, SEP),
    "skip_thought": (PAD, CLS, SEP),
    "span_boundary": (PAD, MASK, CLS, SEP),
    "span_corruption": (PAD, BOS, EOS, *SENTINELS),
    "translation_lm": (PAD, MASK, CLS, SEP),
    "all": SPECIALS,
}
"""The reserved tokens that each objective of `trainers.objectives` uses, whatever the model. `mixture` is the
mixture of UL2; `all` stands for every reserved token.
"""


def required_tokens(names: Iterable[str]) -> frozenset[str]:
    """Return the reserved tokens that `names` require. A name is an objective in REQUIRED_BY, which requires
    the tokens listed there, or a reserved token itself. Raises ValueError for any other name.
    """
    tokens: set[str] = set()
    for name in names:
        if name not in REQUIRED_BY and name not in SPECIAL_IDS:
            near = difflib.get_close_matches(name, [*REQUIRED_BY, *SPECIALS], n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"got {name!r}; {hint}allowed {', '.join(REQUIRED_BY)}, or a reserved token such as {MASK}"
            )
        tokens.update(REQUIRED_BY.get(name, (name,)))
    return frozenset(tokens)


def add_fallback_marks(roles: Mapping[str, int]) -> dict[str, int]:
    """Return a copy of `roles` (from `map_roles`) in which a missing `<bos>` or `<eos>` has the id of another
    token: for `<bos>`, the first of `<eos>`, `<cls>` and `<unk>` that exists; for `<eos>`, the first of
    `<bos>`, `<sep>` and `<unk>`. If none exists, the mark stays missing.

    `<unk>` is the last resort: the published tokenizer of GPT declares no other special token.
    """
    candidates = {BOS: (BOS, EOS, CLS, UNK), EOS: (EOS, BOS, SEP, UNK)}
    marks = {mark: next((roles[name] for name in names if name in roles), None) for mark, names in candidates.items()}
    return {**roles, **{mark: number for mark, number in marks.items() if number is not None}}
