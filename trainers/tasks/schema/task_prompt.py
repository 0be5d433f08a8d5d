"""The prompt of a task: how an example is presented to a language model that was not trained on the task."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Normalisation = Literal["none", "token", "byte", "character", "unconditional"]
_FIELD = re.compile(r"\{([^{}]+)\}")

# {kind: (names that a prompt may use, the name that its continuation or context must have)}
PROMPT_FIELDS: dict[str, tuple[tuple[str, ...], str]] = {
    "choose": (("text", "passage", "candidate"), "candidate"),
    "classify": (("text", "text_b", "label"), "label"),
    "generate": (("text", "text_b", "target"), "target"),
    "span": (("question", "passage", "answer"), "answer"),
}
WRITTEN_KINDS = ("generate", "span")
"""The kinds of tasks in which a model can write its answers (`Prompt.generation`)."""


def fields_of(template: str) -> list[str]:
    """Return the names that a template contains in braces, in order."""
    return _FIELD.findall(template)


def fill_fields(template: str, values: Mapping[str, str]) -> str:
    """Return a template with each name in braces replaced by its value, or by an empty text if it has no
    value.
    """
    pieces = _FIELD.split(template)
    return "".join(values.get(piece, "") if place % 2 else piece for place, piece in enumerate(pieces))


@dataclass(frozen=True)
class Generation:
    """Settings for the answer that a model writes after the context. The answer ends at the first occurrence
    of one of the texts in `until` (which is removed), at the end token, or after `tokens` tokens. Answers
    that are cut off by this limit are counted.

    With `temperature` 0, the most probable token is always chosen. Otherwise tokens are sampled from the
    `top_k` most probable ones (0: all), restricted to the smallest set of them that holds at least a share
    `top_p` of their total probability. The random seed of an answer depends on its item's id and on `seed=`.
    """

    until: tuple[str, ...] = ("\n",)
    tokens: int = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def check(self) -> None:
        """Raise ValueError if a number is out of range or `until` contains an empty text."""
        for name, wrong, allowed in (
            ("tokens", self.tokens < 1, "1 or more"),
            ("temperature", self.temperature < 0, "0 or more"),
            ("top_k", self.top_k < 0, "0 (all tokens) or more"),
            ("top_p", not 0 < self.top_p <= 1, "above 0 and at most 1"),
        ):
            if wrong:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed {allowed}")
        if "" in self.until:
            raise ValueError("until: got an empty text, expected texts such as '\\n'")


@dataclass(frozen=True)
class Prompt:
    """The prompt of `trainers evaluate`. The model scores `continuation` after `context`, once for every
    candidate of a `choose` task or every label of a `classify` task; its answer is the candidate or label
    with the highest score. In a `generate` task, the first target is scored; it counts as right if greedy
    decoding would produce it.

    With `generation`, which is for `generate` and `span` tasks, the model writes its answer instead, and the
    task's metrics compare the answer with all accepted texts. The continuation then only defines how answers
    are appended to the context in solved examples.

    `context` and `continuation` may contain names in braces: `{text}`, `{text_b}`, `{question}`, `{passage}`,
    and `{candidate}`, `{label}`, `{target}` or `{answer}`. The candidate may be in the context instead of the
    continuation; then the model scores the same continuation after each candidate (partial evaluation: Trinh
    and Le, 2018). `words` maps labels to the texts that replace them.

    Scores are log-likelihoods. They can be normalised in two ways. One divides them by the length of the
    continuation: its number of tokens, or the number of its UTF-8 bytes or characters without leading white
    space. The other subtracts the log-likelihood of the continuation after the text `unconditional` (Brown et
    al., 2020, section 2.4). For `choose` and `classify`, the plain and all normalised scores are measured
    (the last only if `unconditional` is set); `normalise` selects the main one.

    Shots are solved examples of the split `shots_from`. They precede the context, separated by `separator`.
    """

    context: str
    continuation: str
    words: dict[str, str] | None = None
    normalise: Normalisation = "none"
    unconditional: str | None = None
    separator: str = "\n\n"
    shots_from: str = "train"
    generation: Generation | None = None

    def check(self) -> None:
        """Raise ValueError if the fields are invalid or do not fit together."""
        if not self.continuation.strip():
            raise ValueError("continuation: got an empty text, expected a text such as ' {candidate}'")
        if self.normalise == "unconditional" and self.unconditional is None:
            raise ValueError("unconditional: missing, and normalise needs it; give a text such as 'Answer:'")
        words = list((self.words or {}).values())
        if len(set(words)) < len(words):
            raise ValueError("words: two labels have the same word; give each its own")

    def check_kind(self, kind: str, labels: tuple[str, ...]) -> None:
        """Validate the names in braces, `generation` and `words` against the kind and the labels of the task."""
        if kind not in PROMPT_FIELDS:
            raise ValueError(f"prompt: {kind} has none; it belongs to {', '.join(PROMPT_FIELDS)}")
        allowed, answer = PROMPT_FIELDS[kind]
        for place, template in (("context", self.context), ("continuation", self.continuation)):
            for name in fields_of(template):
                if name not in allowed:
                    raise ValueError(f"prompt.{place}: got {{{name}}}, {kind} allows {', '.join(allowed)}")
        places = (self.context, self.continuation) if kind == "choose" else (self.continuation,)
        if not any(answer in fields_of(template) for template in places):
            raise ValueError(f"prompt.continuation: expected {{{answer}}} in it")
        if self.generation is None and kind == "span":
            raise ValueError("prompt.generation: missing, and span needs it: write `generation: {}`")
        if self.generation is not None and kind not in WRITTEN_KINDS:
            raise ValueError(f"prompt.generation: {kind} has none; it belongs to {', '.join(WRITTEN_KINDS)}")
        if self.words is not None and set(self.words) != set(labels):
            raise ValueError(f"prompt.words: expected a word for each label ({', '.join(labels) or 'it has none'})")
