"""Evaluate the checkpoints of runs. The results of a checkpoint are stored before the next one is evaluated."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from gristmill.config import plain
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import lock
from gristmill.storage.location import Location
from gristmill.storage.store import read_json, write_json
from trainers.evaluation.checkpoints.score_history import column_names
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.evaluation_cost import EvaluationMeter
from trainers.evaluation.suites.harness_items import HarnessItems
from trainers.evaluation.suites.items import Items
from trainers.evaluation.suites.run_evaluation import (
    Asked,
    AskedTask,
    Evaluation,
    EvaluationSettings,
    read_columns,
    score_columns,
)
from trainers.inference.model_export import load_checkpoint
from trainers.runs import checkpoint
from trainers.runs.run import read_run
from trainers.runs.stored_evaluations import (
    FOLDER,
    FORMAT,
    StoredEvaluation,
    evaluation_name,
    read_evaluation,
    read_evaluations,
    result_path,
)
from trainers.tasks.load_task import Suite
from trainers.tasks.read_facts import FactSet

Tell = Callable[[str], None]


def evaluate_checkpoints(
    runs: Sequence[LocalPath],
    steps: Sequence[int] | None,
    suite: Suite | None,
    columns: Sequence[tuple[AskedTask, str]],
    data: Location | None,
    settings: EvaluationSettings,
    tell: Tell,
) -> list[list[StoredEvaluation]]:
    """Evaluate each run's checkpoints at `steps` (None: all) on the (task, split) pairs in `columns`, and
    store the results. A checkpoint whose stored result is still valid (see `ResultIdentity`) is not evaluated
    again. Return, for each run, the valid results at `steps`, including those of checkpoints that no longer
    exist.

    Raises UserError before a model is loaded if a data file is missing or invalid, or if a run has neither a
    checkpoint nor a result for one of `steps`.
    """
    for run in runs:
        read_run(run)
    read = read_columns(columns, data, settings, tell)
    name, identity = name_of(suite, columns, settings), ResultIdentity(_digest(read), _versions(suite, columns))
    for run in runs:
        _missing(run, name, identity, steps)  # a wrong step of the last run is an error now, not after hours
    found = []
    for run in runs:
        with lock(run / FOLDER / name, "evaluating", tell):
            (run / FOLDER / name).remove_temporaries()  # of killed commands
            for step in _missing(run, name, identity, steps):
                try:
                    _evaluate(run, step, name, identity.items, read, suite, settings, tell)
                except UserError:
                    if steps is not None or step in dict(checkpoint.published(run)):
                        raise
                    tell(f"{run}: left out step {step:,}: training has removed its checkpoint")
        stored = [each for each in read_evaluations(run, name) if steps is None or each.step in steps]
        found.append([each for each in stored if identity.difference(each) is None])
        others: dict[str, list[str]] = {}
        for each in stored:
            if (difference := identity.difference(each)) is not None:
                others.setdefault(difference, []).append(f"{each.step:,}")
        for difference, left_out in others.items():
            shown = ", ".join(left_out)
            tell(f"{run}: left out {shown}: their results are for {difference}, and their checkpoints are gone")
    return found


@dataclass(frozen=True)
class ResultIdentity:
    """What a stored result must agree with to be valid. `items` is a digest of the items and their prompts;
    `versions` maps each score to the version of its task or suite.
    """

    items: str
    versions: dict[str, str]

    def difference(self, stored: StoredEvaluation) -> str | None:
        """Return how a stored result differs from this identity; None if it agrees."""
        for name, version in self.versions.items():
            if (other := stored.versions.get(name, version)) != version:
                return f"version {other} of {name.removesuffix('.mean')}, not {version}"
        return "other items or another prompt" if stored.items != self.items else None


def _versions(suite: Suite | None, columns: Sequence[tuple[AskedTask, str]]) -> dict[str, str]:
    names = column_names([(task.name, split) for task, split in columns])
    whole = {} if suite is None else {f"{suite.name}.mean": str(suite.version)}
    return whole | {name: str(task.version) for name, (task, _) in zip(names, columns, strict=True)}


def name_of(suite: Suite | None, columns: Sequence[tuple[AskedTask, str]], settings: EvaluationSettings) -> str:
    """Return the name under which an evaluation is stored: the suite or, without one, the tasks, followed by
    the settings that differ from their defaults.
    """
    tasks = dict.fromkeys(f"{task.name}.{split}" for task, split in columns)
    changed = {
        field: value for field, value in plain(settings).items() if value != getattr(EvaluationSettings(), field)
    }
    return evaluation_name(suite.name if suite is not None else "+".join(tasks), changed)


def _digest(read: Sequence[Asked]) -> str:
    state = xxhash.xxh3_128()
    for one in read:
        asked = one.asked if isinstance(one, HarnessItems) else one
        if isinstance(one, HarnessItems):
            state.update(
                repr((one.task.metrics, one.task.filters, one.task.comparison)).encode("utf-8", "surrogatepass")
            )
        items = asked.examples if isinstance(asked, FactSet) else asked
        texts = [*items.contexts, *items.continuations] if isinstance(items, Items) else items.texts[0].to_pylist()
        for text in (items.task.name, items.split, *items.ids, *texts):
            state.update(f"{len(text)}:{text}".encode("utf-8", "surrogatepass"))
        if isinstance(items, Items):
            state.update(items.offsets.tobytes() + items.gold.tobytes())
            state.update(repr((items.task.prompt, items.references)).encode("utf-8", "surrogatepass"))
            if items.references is not None:
                state.update(repr(items.task.metrics).encode())
        if isinstance(asked, FactSet):
            state.update(repr(asked.relations).encode("utf-8", "surrogatepass"))
    return state.hexdigest()


def _missing(run: LocalPath, name: str, identity: ResultIdentity, steps: Sequence[int] | None) -> list[int]:
    places = dict(checkpoint.published(run))
    wanted = []
    for step in places if steps is None else steps:
        stored = read_evaluation(result_path(run, name, step))
        if step not in places and stored is None:
            there = ", ".join(f"{each:,}" for each in places) or "none"
            raise UserError(
                f"--checkpoints: {run} has neither a checkpoint nor a result of step {step:,}; it has {there}"
            )
        if step in places and (
            stored is None or identity.difference(stored) or _is_replaced(places[step], stored.checkpoint)
        ):
            wanted.append(step)
    return sorted(wanted, reverse=True)


def _is_replaced(path: LocalPath, checksum: str) -> bool:
    try:
        return bool(read_json(path / checkpoint.RECORD, f"remove {path}")["checksum"] != checksum)
    except FileNotFoundError:
        return False


def _evaluate(
    run: LocalPath,
    step: int,
    name: str,
    items: str,
    read: Sequence[Asked],
    suite: Suite | None,
    settings: EvaluationSettings,
    tell: Tell,
) -> None:
    meter = EvaluationMeter()
    trained, picked = load_checkpoint(run, step)
    scorer = Scorer.of(str(run), trained, settings.pseudo)
    results = score_columns(f"{run} at step {step}", scorer, read, settings, tell)
    evaluation = Evaluation(tuple(results), suite)
    record: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "step": step,
        "tokens": picked.tokens,
        "checkpoint": picked.checksum,
        "items": items,
        "settings": plain(settings),
        "scores": _scores(evaluation),
        "tasks": [result.plain() for result in results],
        "cost": meter.cost(scorer).plain(),
    }
    path = result_path(run, name, step)
    evaluation.write_rows(path.with_suffix(".parquet"))
    write_json(path, record)


def _scores(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    scores = {f"{mean.suite}.mean": {**mean.mean.plain(), "version": str(mean.version)} for mean in evaluation.means}
    names = column_names([(result.task, result.split) for result in evaluation.results])
    for name, result in zip(names, evaluation.results, strict=True):
        score = result.scores[result.main].plain()
        scores[name] = {**score, "score": result.main, "version": result.version}
    return scores
