"""Prompts: text typed by a user, read as the objective of a model would have put it.

A special that the objective uses in its inputs may be written out: `<mask>`, `<extra_id_0>`, `<fim_prefix>`. That is syntax
of the reader; in documents the same characters are text.
"""

import re
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import CLS, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, MASK, SENTINELS, SEP, with_stand_ins
from trainers.config.architecture import FAMILY
from trainers.config.pretraining import Pretraining
from trainers.objectives.causal import Causal
from trainers.objectives.denoising import Denoising
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.masked import Masking
from trainers.objectives.mixture import ObjectiveMixture, objectives_in
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.span_corruption import SpanCorruption
from trainers.rows.batch import Frame

_PARTS = (FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX)  # A part keeps its last space: it may be cut anywhere.


def text_frame(config: Pretraining) -> Frame:
    """The specials around a text that a model of this run reads."""
    family = FAMILY[config.model.architecture]
    if family == "encoder":
        return Frame(CLS, SEP)
    if family == "decoder":
        return Frame("<bos>", None)
    return Frame("<bos>", "<eos>") if isinstance(config.objective, Denoising) else Frame(None, "<eos>")


def has_sentinels(objective: Any) -> bool:
    """Whether sentinels stand for what the target tells."""
    return any(isinstance(part, SpanCorruption) and part.style == "replace" for part in objectives_in(objective))


def writable(objective: Any) -> set[str]:
    """The specials that a prompt for a model of this objective may name."""
    names: set[str] = set()
    for part in objectives_in(objective):
        if isinstance(part, Denoising | Masking) or (
            isinstance(part, SpanCorruption) and part.style in ("mass", "bert")
        ):
            names.add(MASK)
        if isinstance(part, FillInTheMiddle):
            names |= set(_PARTS)
    return names | (set(SENTINELS) if has_sentinels(objective) else set())


def asked(objective: Any, prompt: str) -> tuple[Any, str | None, str]:
    """(objective, the token that leads its inputs, the prompt without it) that a prompt is for.

    Of a mixture that is the part whose token the prompt begins with; else the first one that knows the gaps in the prompt,
    or without gaps the first one that continues texts.
    """
    if not isinstance(objective, ObjectiveMixture):
        return objective, None, prompt
    for part in objective.parts:
        if part.token is not None and prompt.startswith(part.token):
            return part.objective, part.token, prompt.removeprefix(part.token)
    gaps = [part for part in objective.parts if any(name in prompt for name in writable(part.objective))]
    continued = [part for part in objective.parts if isinstance(part.objective, Causal | PrefixLM)]
    chosen = (gaps or continued or objective.parts)[0]
    return chosen.objective, chosen.token, prompt


def spaces_lead(encoder: Encoder) -> bool:
    """Whether the tokens of words begin with the space before them: then a special that stands for a word does so too."""
    return encoder.kind in ("byte_bpe", "unigram")


def read_prompt(text: str, encoder: Encoder, names: Collection[str]) -> list[int]:
    """Ids of a text in which these special tokens may be written out; without marks around it."""
    known = [name for name in names if name in encoder.specials]
    pieces = re.split("(" + "|".join(re.escape(name) for name in known) + ")", text) if known else [text]
    ids: list[int] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            ids.append(encoder.specials[piece])
            continue
        if number + 1 < len(pieces) and pieces[number + 1] not in _PARTS and spaces_lead(encoder):
            piece = piece.removesuffix(" ")
        if piece:
            ids += encoder.encode(pa.array([piece], pa.large_string()))[0].tolist()
    return ids


def framed(ids: list[int], frame: Frame, encoder: Encoder) -> list[int]:
    """Ids between the marks of a frame."""
    specials = with_stand_ins(encoder.specials)
    before, after = ([specials[mark]] if mark else [] for mark in (frame.before, frame.after))
    return [*before, *ids, *after]
