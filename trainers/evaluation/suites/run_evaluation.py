"""Evaluate models on tasks: read every item, then load one model after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from trainers.evaluation.scoring.forms import Pseudo
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.fact_result import fact_result
from trainers.evaluation.suites.items import Items, read_items
from trainers.evaluation.suites.suite_result import PairedDifference, SuiteResult, compare_results, suite_results
from trainers.evaluation.suites.task_result import TaskResult, item_result
from trainers.evaluation.suites.text_bits import text_result
from trainers.tasks.examples import Examples
from trainers.tasks.load_task import Suite
from trainers.tasks.read_examples import read_examples
from trainers.tasks.read_facts import FactSet, read_facts
from trainers.tasks.schema.task import Task

_Read = Items | FactSet | Examples


@dataclass(frozen=True)
class EvaluationSettings:
    """How tasks are put to a model: `shots` solved examples before each item, drawn with `seed`; only the
    first `limit` items of a split or subtask; how encoders are masked (`Pseudo`); the `window` of texts, in
    positions. With `calibrate`, labels are also scored relative to their probability after texts without content (Zhao et
    al., 2021).
    """

    shots: int = 0
    seed: int = 0
    limit: int | None = None
    pseudo: Pseudo = "within_word"
    window: int | None = None
    calibrate: bool = False

    def check(self) -> None:
        """Validate ranges."""
        for name, least in (("shots", 0), ("limit", 1), ("window", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: got {value}, allowed {least} or more")


@dataclass(frozen=True)
class Evaluation:
    """The results of several models on the same tasks, in the order of models, then of tasks."""

    results: tuple[TaskResult, ...]
    suite: Suite | None = None

    @property
    def models(self) -> list[str]:
        """The models, in the order of the command."""
        return list(dict.fromkeys(result.model for result in self.results))

    @property
    def means(self) -> list[SuiteResult]:
        """The mean of every model over the suite; none without a suite."""
        if self.suite is None:
            return []
        of = {model: [result for result in self.results if result.model == model] for model in self.models}
        return [mean for results in of.values() for mean in suite_results(self.suite, results)]

    @property
    def differences(self) -> list[PairedDifference]:
        """Every paired comparison of two models."""
        return list(compare_results(self.results, self.suite))

    def plain(self) -> dict[str, Any]:
        """Return all scores as JSON data."""
        return {
            "format": "gristmill-evaluation/1",
            "suites": [mean.plain() for mean in self.means],
            "tasks": [result.plain() for result in self.results],
            "differences": [difference.plain() for difference in self.differences],
        }

    def write_rows(self, path: Location) -> None:
        """Write a row per model and item as Parquet: ids, gold, and the lists of every candidate's numbers. Beside other
        tasks, a text has lists of one number.
        """
        tables = []
        for result in self.results:
            names = {"model": result.model, "task": result.task, "split": result.split}
            first = pa.table({name: pa.array([text] * len(result.rows), pa.string()) for name, text in names.items()})
            for name in result.rows.column_names:
                first = first.append_column(name, result.rows[name])
            tables.append(first)
        table = pa.concat_tables(_with_lists(tables), promote_options="default")
        path.write_atomic(lambda sink: pq.write_table(table, sink, compression="zstd"))


def _with_lists(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Return tables in which a column that is a list in one of them is a list in all."""
    lists = {field.name for table in tables for field in table.schema if pa.types.is_list(field.type)}
    made = []
    for table in tables:
        for number, field in enumerate(table.schema):
            if field.name in lists and not pa.types.is_list(field.type):
                bounds = pa.array(range(len(table) + 1), pa.int32())
                column = pa.ListArray.from_arrays(bounds, table[field.name].combine_chunks())
                table = table.set_column(number, field.name, column)
        made.append(table)
    return made


def evaluate_models(
    models: Sequence[LocalPath],
    columns: Sequence[tuple[Task, str]],
    data: Location | None,
    settings: EvaluationSettings,
    tell: Callable[[str], None],
    texts: Sequence[Examples] = (),
) -> tuple[TaskResult, ...]:
    """Return the results of every model on every (task, split), then on `texts`. `tell` is called with lines on what was
    left out or cut.

    Raises UserError for missing and invalid files before a model is loaded, and for models that give no likelihoods.
    """
    if len({str(model) for model in models}) < len(models):
        raise ConfigError("models: one is given twice; give each once")
    read = [*(_read(task, split, data, settings) for task, split in columns), *texts]
    for items in read:
        for note in items.notes if not isinstance(items, Examples) else ():
            tell(note)
    results = []
    for path in models:
        scorer = Scorer.open(path, settings.pseudo)
        tell(f"{path}: scored {scorer.form.described}")
        for items in read:
            result = _result(str(path), scorer, items, settings)
            if result.cut:
                tell(
                    f"{path}: {result.task}: {result.cut:,} contexts are longer than the model and were cut on the left"
                )
            results.append(result)
    return tuple(results)


def _read(task: Task, split: str, data: Location | None, settings: EvaluationSettings) -> _Read:
    if task.kind == "text":
        return read_examples(task, split, data)
    if task.kind == "facts":
        if settings.shots:
            raise ConfigError(f"shots: got {settings.shots}, facts ({task.name}) have no prompt; leave it out")
        return read_facts(task, split, data)
    return read_items(task, split, data, settings.shots, settings.seed, settings.limit, settings.calibrate)


def _result(model: str, scorer: Scorer, items: _Read, settings: EvaluationSettings) -> TaskResult:
    if isinstance(items, Examples):
        return text_result(model, scorer, items, settings.limit, settings.window)
    if isinstance(items, FactSet):
        return fact_result(model, scorer, items, settings.limit)
    contexts, count = items.contexts, len(items.contexts)
    bare = [items.without] * count if items.without is not None else []
    more, texts = [*bare, *(items.neutral or ())], items.continuations
    found = scorer.score([*contexts, *more], texts * (1 + len(more) // count))
    without = found[count : count + len(bare)] if bare else None
    neutral = found[count + len(bare) :] if items.neutral else None
    return item_result(model, scorer.form.described, items, found[:count], without, neutral)
