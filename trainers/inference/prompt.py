"""Encode a user's prompt in the input format of the model's objective. A prompt may contain special tokens of
the objective by name, such as `<mask>`.
"""

import re
from collections.abc import Collection

import pyarrow as pa

from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, add_fallback_marks
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import Frame

_PARTS = (FIM_PREFIX, FIM_MIDDLE, FIM_SUFFIX)  # a space before one of these belongs to the part before it


def choose_member(objective: TrainingObjective, prompt: str) -> tuple[TrainingObjective, str | None, str]:
    """Choose the objective that determines how a model reads a prompt. Returns the objective, the special
    token that precedes its inputs (or None), and the prompt without this token.

    In a mixture, the objective is the first of these members that exists:

    1. the member whose special token begins the prompt;
    2. the first member whose prompt format has a special token that occurs in the prompt;
    3. the first member that trains on plain text;
    4. the first member.
    """
    members = objective.members()
    for member, lead in members:
        if lead is not None and prompt.startswith(lead):
            return member, lead, prompt.removeprefix(lead)
    named = [each for each in members if any(name in prompt for name in each[0].prompt_format.names)]
    plain = [each for each in members if each[0].prompt_format.plain_text]
    return *(named or plain or members)[0], prompt


def spaces_lead(encoder: Encoder) -> bool:
    """Return whether the tokenizer makes the space before a word part of the word's token, as byte-level BPE,
    Unigram and SentencePiece's BPE do.
    """
    if encoder.kind == "bpe" and encoder.definition.end_of_word is None:
        return any(token.startswith("▁") for token in encoder.definition.tokens.values())
    return encoder.kind in ("byte_bpe", "unigram")


def read_prompt(text: str, encoder: Encoder, names: Collection[str]) -> list[int]:
    """Return the token ids of a text in which special tokens may be written by name, such as `<mask>`. Only
    `names` are read as special tokens. If `spaces_lead` is true of the encoder, a space before a special
    token is removed, except before the marks of fill-in-the-middle.
    """
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
    """Return `ids` with the special tokens of `frame` before and after them."""
    specials = add_fallback_marks(encoder.specials)
    before, after = ([specials[mark]] if mark else [] for mark in (frame.before, frame.after))
    return [*before, *ids, *after]
