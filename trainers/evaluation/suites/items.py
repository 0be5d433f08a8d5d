"""Items: the examples of a task as contexts and continuations to score."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.errors import ConfigError, UserError
from gristmill.storage.location import Location
from trainers.tasks.examples import Examples
from trainers.tasks.read_examples import locate_example, read_examples
from trainers.tasks.schema.task import Task
from trainers.tasks.schema.task_prompt import WRITTEN_KINDS, Prompt, fill_fields

_ASKED = ("choose", "classify", "generate", "span", "minimal_pairs")
NEUTRAL = ("N/A", "[MASK]", "")
"""Content-free texts, which replace those of an item for calibration (Zhao et al., 2021, section 5)."""


@dataclass(frozen=True)
class Items:
    """The n items of a split.

    - `contexts` and `continuations`: an entry for each candidate, those of one item after those of another.
    - `offsets`, int64 [n + 1]: the candidates of item i have the indices from `offsets[i]` up to, but not
      including, `offsets[i + 1]`.
    - `gold`, int64 [n]: the index of the correct candidate within the item.
    - `subtasks` and `fields`: the names of the subtask and the field of each item; each is None if the task
      has none.
    - `notes`: messages about items that were left out or are not calibrated.
    - `neutral`: contexts for calibration, or None without it. For each text in NEUTRAL, in order, it contains
      all of `contexts`, with that text in place of the item's own texts; the shots are unchanged.
    - `references`: the accepted texts of each item if the model writes its answer (`Prompt.generation`),
      otherwise None.
    """

    task: Task
    split: str
    ids: list[str]
    contexts: list[str]
    continuations: list[str]
    offsets: np.ndarray
    gold: np.ndarray
    subtasks: list[str] | None
    fields: list[str] | None
    notes: tuple[str, ...] = ()
    neutral: list[str] | None = None
    references: list[list[str]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def answers(self) -> list[str]:
        """The continuations without leading white space. Accuracies per byte and per character are normalised
        by their lengths.
        """
        return [text.lstrip() for text in self.continuations]

    @property
    def without(self) -> str | None:
        """The context without the question (`Prompt.unconditional`), or None if the task does not define one."""
        return self.task.prompt.unconditional if self.task.prompt is not None else None

    @property
    def chance(self) -> float:
        """The accuracy of a model that chooses a random candidate or, in a `classify` task, always the most
        common label. 0 for tasks without candidates.
        """
        if self.task.kind == "classify":
            return float(np.bincount(self.gold).max() / len(self.gold))
        return 0.0 if self.task.kind in WRITTEN_KINDS else float(np.mean(1 / np.diff(self.offsets)))


def read_items(
    task: Task, split: str, data: Location | None, shots: int = 0, seed: int = 0, limit: int | None = None,
    calibrate: bool = False, balanced: bool = False,
) -> Items:  # fmt: skip
    """Read the examples of a split and return them as items with rendered prompts. Each prompt is preceded by
    `shots` solved examples, which are drawn separately for each item, from `seed`. With `balanced`, the
    solved examples of a `classify` task are drawn so that the counts of any two labels differ by at most one.

    Only the first `limit` examples are used, or the first `limit` of each subtask if there are subtasks. With
    `calibrate`, the prompts of a `classify` task are also rendered with content-free texts; for other kinds,
    a note says that the task is not calibrated. Items with equal candidates are left out, and a note counts
    them.

    Raises UserError if a file is missing, a row is invalid, gold is hidden, there are too few examples for
    the shots, or no item is left. Raises ConfigError if the task cannot be given to a language model, or if
    it has no prompt and `shots` is not 0.
    """
    if task.kind not in _ASKED or (task.prompt is None) != (task.kind == "minimal_pairs"):
        raise ConfigError(
            f"{task.name}: a task of kind {task.kind} without `prompt` cannot be given to a language model; add a "
            f"prompt to its file (docs/evaluation.md)"
        )
    examples = read_examples(task, split, data)
    if not examples.labelled:
        raise UserError(f"{task.name}: {split}: its gold is hidden, so it cannot be scored; evaluate another split")
    if examples.labels is not None and (hidden := np.flatnonzero(examples.labels < 0)).size:
        raise UserError(
            f"{locate_example(task, split, data, int(hidden[0]))}: label: has no gold; correct or remove it"
        )
    chosen = _first(examples, limit)
    before = _shots(task, split, examples, data, shots, seed, chosen, balanced)
    rendered = [_candidates(examples, number) for number in chosen]
    distinct = [len(set(pairs)) == len(pairs) for pairs in rendered]
    kept = [place for place, good in enumerate(distinct) if good]
    notes = []
    if len(kept) < len(chosen):
        where = locate_example(task, split, data, chosen[distinct.index(False)])
        many = len(chosen) - len(kept)
        left_out = f"{many:,} of {len(chosen):,} items left out because candidates are equal"
        notes.append(f"{task.name}: {left_out}, first {where}")
    if not kept:
        raise UserError(f"{task.name}: {split}: no item is left; {notes[0] if notes else 'raise limit'}")
    numbers = [chosen[place] for place in kept]
    if calibrate and task.kind != "classify":
        notes.append(f"{task.name}: not calibrated, because its candidates differ between items")
    pairs = [(before[place] + context, text) for place in kept for context, text in rendered[place]]
    return Items(
        task=task,
        split=split,
        ids=[examples.ids[number] for number in numbers],
        contexts=[context for context, _ in pairs],
        continuations=[text for _, text in pairs],
        offsets=np.cumsum([0, *(len(rendered[place]) for place in kept)]).astype(np.int64),
        gold=np.zeros(len(kept), np.int64) if examples.labels is None else examples.labels[numbers],
        subtasks=_part(examples.subtasks, numbers),
        fields=_part(examples.fields, numbers),
        notes=tuple(notes),
        neutral=_neutral(task, [before[place] for place in kept]) if calibrate and task.kind == "classify" else None,
        references=_references(examples, numbers),
    )


def _references(examples: Examples, numbers: Sequence[int]) -> list[list[str]] | None:
    prompt, targets = examples.task.prompt, examples.targets
    if prompt is None or prompt.generation is None or targets is None:
        return None
    return [targets[number] for number in numbers]


def _neutral(task: Task, shots: Sequence[str]) -> list[str]:
    assert task.prompt is not None
    contexts = []
    for text in NEUTRAL:
        context = fill_fields(task.prompt.context, {"text": text, "text_b": text})
        contexts += [before + context for before in shots for _ in task.label_names]
    return contexts


def _part(names: list[str] | None, numbers: Sequence[int]) -> list[str] | None:
    return None if names is None else [names[number] for number in numbers]


def _first(examples: Examples, limit: int | None) -> list[int]:
    if limit is None:
        return list(range(len(examples)))
    if examples.subtasks is None:
        return list(range(min(limit, len(examples))))
    taken: dict[str, int] = {}
    chosen = []
    for number, name in enumerate(examples.subtasks):
        taken[name] = taken.get(name, 0) + 1
        if taken[name] <= limit:
            chosen.append(number)
    return chosen


def _shots(
    task: Task, split: str, examples: Examples, data: Location | None, shots: int, seed: int, chosen: Sequence[int],
    balanced: bool,
) -> list[str]:  # fmt: skip
    if not shots:
        return [""] * len(chosen)
    prompt = task.prompt
    if prompt is None:
        raise ConfigError(f"shots: got {shots}, but {task.kind} ({task.name}) has no prompt; leave out shots")
    same = prompt.shots_from == split
    pool = examples if same else read_examples(task, prompt.shots_from, data)
    if not pool.labelled or len(pool) < shots + same:
        raise UserError(
            f"{task.name}: {prompt.shots_from}: has {len(pool) if pool.labelled else 0} examples with gold, too few "
            f"for {shots} shots; lower shots, or name another split in prompt.shots_from"
        )
    draw = _draw_balanced if balanced and task.kind == "classify" else _draw
    texts = []
    for number in chosen:
        drawn = draw(pool, shots, np.random.default_rng([seed, number]), number if same else None)
        texts.append("".join(_solved(pool, each) + prompt.separator for each in drawn))
    return texts


def _draw(pool: Examples, count: int, generator: np.random.Generator, without: int | None) -> list[int]:
    drawn = generator.choice(len(pool), count + (without is not None), replace=False)
    return [each for each in drawn.tolist() if each != without][:count]


def _draw_balanced(pool: Examples, count: int, generator: np.random.Generator, without: int | None) -> list[int]:
    assert pool.labels is not None
    labels = generator.permutation(len(pool.task.label_names)).tolist()
    drawn: list[int] = []
    for place, label in enumerate(labels):
        its = np.flatnonzero(pool.labels == label)
        its = its[its != without] if without is not None else its
        wanted = count // len(labels) + (place < count % len(labels))
        if len(its) < wanted:
            name = pool.task.label_names[label]
            raise UserError(
                f"{pool.task.name}: {pool.split}: has {len(its)} examples of the label {name!r}, too few for {count} balanced "
                f"shots; lower shots, or leave out balanced"
            )
        drawn += generator.choice(its, wanted, replace=False).tolist()
    return [int(each) for each in generator.permutation(drawn)]


def _solved(pool: Examples, number: int) -> str:
    gold = 0 if pool.labels is None else int(pool.labels[number])
    return "".join(_candidates(pool, number)[gold])


def _candidates(examples: Examples, number: int) -> list[tuple[str, str]]:
    task = examples.task
    if task.kind == "minimal_pairs":
        return [("", text) for text in examples.candidates_of(number)]
    assert task.prompt is not None
    roles = {"choose": ("text", "passage"), "span": ("question", "passage")}.get(task.kind, ("text", "text_b"))
    texts = {role: column[number].as_py() for role, column in zip(roles, examples.texts, strict=False)}
    prompt, filled = task.prompt, [{**texts, **answer} for answer in _answers(examples, number, task.prompt)]
    return [(fill_fields(prompt.context, values), fill_fields(prompt.continuation, values)) for values in filled]


def _answers(examples: Examples, number: int, prompt: Prompt) -> Iterator[dict[str, str]]:
    if examples.task.kind == "classify":
        yield from ({"label": (prompt.words or {}).get(name, name)} for name in examples.task.label_names)
    elif examples.task.kind == "choose":
        yield from ({"candidate": text} for text in examples.candidates_of(number))
    else:
        assert examples.targets is not None
        yield {"answer" if examples.task.kind == "span" else "target": examples.targets[number][0]}
