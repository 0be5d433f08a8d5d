"""The format of prompts: how to write a user's text as the input of a model, given its objective, and how to
read the model's answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tokenizer.vocabulary.specials import SENTINELS, add_fallback_marks

Answer = Callable[[list[int], list[int], Mapping[str, int]], list[int]]
"""A function from (ids of the prompt, generated ids without `<eos>`, the tokenizer's special tokens) to the
ids of the text to show.
"""


def continue_text(text: list[int], generated: list[int], specials: Mapping[str, int]) -> list[int]:
    """Return the prompt followed by the generated text."""
    return [*text, *generated]


def replace_text(text: list[int], generated: list[int], specials: Mapping[str, int]) -> list[int]:
    """Return only the generated text, without `<bos>`."""
    bos = add_fallback_marks(specials)["<bos>"]
    return [token for token in generated if token != bos]


def fill_sentinels(text: list[int], generated: list[int], specials: Mapping[str, int]) -> list[int]:
    """Return the prompt with each sentinel replaced with the tokens that follow it in the model's answer, or
    removed if the answer lacks it. Tokens before the answer's first sentinel belong to the prompt's first
    sentinel. If the prompt has no sentinel, return only the answer, without `<bos>`.
    """
    sentinels = {specials[name] for name in SENTINELS if name in specials}
    first = next((token for token in text if token in sentinels), None)
    if first is None:
        return replace_text(text, generated, specials)
    spans: dict[int, list[int]] = {}
    current = spans.setdefault(first, [])
    for token in generated:
        if token in sentinels:
            current = spans.setdefault(token, [])
        else:
            current.append(token)
    return [piece for token in text for piece in (spans.get(token, []) if token in sentinels else [token])]


@dataclass(frozen=True)
class PromptFormat:
    """How to write a prompt for a model trained with an objective, and how to show the model's answer.

    - `names`: the special tokens that a prompt may contain by name, such as `<mask>`.
    - `gap`: what is appended to a prompt that contains none of `names`, if anything.
    - `plain_text`: whether the objective trains on inputs without gaps.
    - `gaps_alone`: whether the model writes only the text that belongs at the masks of a prompt.
    - `closed`: whether the input of a decoder ends with `<eos>`.
    - `generated`: the special tokens that an answer may contain in addition to `<eos>`.
    - `answer`: the function that turns an answer into the text shown.
    """

    names: tuple[str, ...] = ()
    gap: str | None = None
    plain_text: bool = False
    gaps_alone: bool = False
    closed: bool = False
    generated: tuple[str, ...] = ()
    answer: Answer = continue_text
