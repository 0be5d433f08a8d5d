"""The page of an evaluation, rendered from the template evaluation.html."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from gristmill.page.render import render_template
from trainers.evaluation.suites.run_evaluation import Evaluation
from trainers.evaluation.suites.suite_result import PairedDifference
from trainers.evaluation.suites.task_result import NoisyScore, TaskResult
from trainers.evaluation.suites.won_items import shown_items, won_items


def render_evaluation(evaluation: Evaluation) -> str:
    """Return the page of an evaluation as self-contained HTML."""
    parted = [result for result in evaluation.results if result.subtasks is not None or result.fields is not None]
    tasks = list(dict.fromkeys(result.task for result in evaluation.results))
    return render_template(
        Path(__file__).with_name("evaluation.html"),
        title=evaluation.suite.name if evaluation.suite is not None else ", ".join(tasks),
        kind="evaluation",
        models=evaluation.models,
        names=short_names(evaluation.models),
        means=evaluation.means,
        centred=evaluation.suite is not None and evaluation.suite.centred,
        results=evaluation.results,
        separations=separations(evaluation),
        differences=evaluation.differences,
        clean=evaluation.clean,
        seeds=evaluation.seeds,
        won=[
            (each, shown_items(each, each.won), shown_items(each, each.lost))
            for each in won_items(evaluation.results)
            if each.won or each.lost
        ],
        costs=evaluation.costs,
        parted=parted,
        field_of={(result.model, result.task): _field_of(result) for result in parted},
        orders={
            (result.model, result.task, kind): _ordered(result, names)
            for result in parted
            for kind, names in (("field", result.fields), ("subtask", result.subtasks))
        },
    )


@dataclass(frozen=True)
class Separation:
    """How well a task separates models by its main score, which is named `score`. `scores` has one value per
    model. `above` is the number of models above chance, None if the score has no chance level. `pairs` is the
    number of pairs of models, and `apart` the number of pairs that do not tie.
    """

    task: str
    split: str
    score: str
    scores: list[NoisyScore]
    above: int | None
    apart: int
    pairs: int


def separations(evaluation: Evaluation) -> list[Separation]:
    """Return how well every task separates the models, starting with the tasks that separate the most pairs;
    an empty list for a single model.
    """
    by_model = [[result for result in evaluation.results if result.model == model] for model in evaluation.models]
    compared: dict[tuple[str, str], list[PairedDifference]] = {}
    for difference in evaluation.differences:  # of every two models: those of the tasks in order, then the mean
        compared.setdefault((difference.a, difference.b), []).append(difference)
    found = []
    for number, its in enumerate(zip(*by_model, strict=True)):
        scores = [result.scores[result.main] for result in its]
        above = sum(score.verdict == "above" for score in scores) if scores[0].chance is not None else None
        apart = sum(not each[number].tie for each in compared.values())
        found.append(Separation(its[0].task, its[0].split, its[0].main, scores, above, apart, len(compared)))
    return sorted(found, key=lambda each: -each.apart) if compared else []


def short_names(models: Sequence[str]) -> dict[str, str]:
    """Return a short name for each model path: its last part, or the whole path if another path ends in the
    same part.
    """
    last = [PurePath(model).name for model in models]
    return {model: model if last.count(name) > 1 else name for model, name in zip(models, last, strict=True)}


def _field_of(result: TaskResult) -> dict[str, str]:
    return dict(zip(result.subtasks or (), result.fields or (), strict=False))


def _ordered(result: TaskResult, names: list[str] | None) -> list[str]:
    field_of = _field_of(result)
    return sorted(set(names or ()), key=lambda name: (field_of.get(name, ""), name))
