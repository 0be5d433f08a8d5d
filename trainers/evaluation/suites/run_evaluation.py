"""Evaluate models on tasks: read all items, then load and score one model after the other."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import ConfigError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from trainers.engine.hardware.footprint import Footprint, add_footprints
from trainers.evaluation.scoring.forms import Pseudo
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.clean_scores import CleanScore
from trainers.evaluation.suites.evaluation_cost import EvaluationMeter
from trainers.evaluation.suites.fact_result import fact_result
from trainers.evaluation.suites.harness_items import HarnessItems, harness_result, read_harness_items
from trainers.evaluation.suites.items import Items, read_items
from trainers.evaluation.suites.seed_scores import SeedScore, seed_scores
from trainers.evaluation.suites.suite_result import PairedDifference, SuiteResult, compare_results, suite_results
from trainers.evaluation.suites.task_result import TaskResult, item_result
from trainers.evaluation.suites.text_bits import text_result
from trainers.evaluation.suites.won_items import won_items
from trainers.evaluation.suites.written_result import written_result
from trainers.tasks.examples import Examples
from trainers.tasks.harness_format.harness_task import HarnessTask
from trainers.tasks.load_task import Suite
from trainers.tasks.read_examples import read_examples
from trainers.tasks.read_facts import FactSet, read_facts
from trainers.tasks.schema.task import Task

AskedTask = Task | HarnessTask
Asked = Items | FactSet | Examples | HarnessItems
"""What a model is asked on a split of a task."""


@dataclass(frozen=True)
class EvaluationSettings:
    """How tasks are presented to a model.

    - `shots`: the number of solved examples before each item; a `HarnessTask` has its own.
    - `seed`: determines these examples and any sampled answers.
    - `limit`: only the first `limit` items of a split or subtask are used.
    - `pseudo`: which tokens are masked when an encoder scores a token (`Pseudo`).
    - `window`: the length of the windows in which whole texts are scored, in positions.
    - `calibrate`: whether labels are also scored relative to their probability after content-free texts
      (Zhao et al., 2021).
    - `balanced`: whether the shots of a `classify` task are drawn so that the counts of any two labels
      differ by at most one.
    """

    shots: int = 0
    seed: int = 0
    limit: int | None = None
    pseudo: Pseudo = "within_word"
    window: int | None = None
    calibrate: bool = False
    balanced: bool = False

    def check(self) -> None:
        """Raise ValueError for a setting that is out of range."""
        for name, least in (("shots", 0), ("limit", 1), ("window", 2)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}: got {value}, allowed {least} or more")


@dataclass(frozen=True)
class Evaluation:
    """The results of several models on the same tasks, ordered by model, then by task. `clean` holds the
    scores with and without the items found in the models' own corpora. Each entry of `seed_groups` contains
    the names of models that differ only in their seed.
    """

    results: tuple[TaskResult, ...]
    suite: Suite | None = None
    clean: tuple[CleanScore, ...] = ()
    seed_groups: tuple[tuple[str, ...], ...] = ()

    @property
    def models(self) -> list[str]:
        """The names of the models, in the order of the results."""
        return list(dict.fromkeys(result.model for result in self.results))

    @property
    def costs(self) -> dict[str, Footprint]:
        """The cost of scoring each model, by name. Models without a known cost are left out."""
        costs: dict[str, dict[int, Footprint]] = {}
        for result in self.results:
            if result.cost is not None:  # the results of one pass share its cost
                costs.setdefault(result.model, {})[id(result.cost)] = result.cost
        return {model: add_footprints([*each.values()]) for model, each in costs.items()}

    @property
    def seeds(self) -> list[SeedScore]:
        """The main scores and the means of the suite, averaged over models that differ only in their seed."""
        values: dict[str, dict[str, float]] = {}
        for mean in self.means:
            values.setdefault(f"{mean.suite}.mean", {})[mean.model] = mean.mean.value
        for result in self.results:
            name = (
                f"{result.task}.{result.main}"
                if result.split == "dev"
                else f"{result.task}/{result.split}.{result.main}"
            )
            values.setdefault(name, {})[result.model] = result.scores[result.main].value
        return seed_scores(self.seed_groups, values)

    @property
    def means(self) -> list[SuiteResult]:
        """The mean scores of every model over the suite, one for each number of shots; empty without a suite."""
        if self.suite is None:
            return []
        of = {model: [result for result in self.results if result.model == model] for model in self.models}
        return [mean for results in of.values() for mean in suite_results(self.suite, results)]

    @property
    def differences(self) -> list[PairedDifference]:
        """Every paired comparison of two models."""
        return list(compare_results(self.results, self.suite))

    def plain(self) -> dict[str, Any]:
        """Return all scores, comparisons and costs as JSON data."""
        return {
            "format": "gristmill-evaluation/1",
            "suites": [mean.plain() for mean in self.means],
            "tasks": [result.plain() for result in self.results],
            "differences": [difference.plain() for difference in self.differences],
            "seeds": [each.plain() for each in self.seeds],
            "won_and_lost": [each.plain() for each in won_items(self.results)],
            "costs": {model: cost.plain() for model, cost in self.costs.items()},
            "contamination": [each.plain() for each in self.clean],
        }

    def write_table(self, path: Location) -> None:
        """Write every score and every mean of the suite as CSV. The column `counts` is 1 for means and for
        the main score of a task on a split, and 0 for other scores.
        """
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        names = ("value", "error", "low", "high", "n", "chance", "verdict")
        table.writerow(["model", "task", "split", "version", "score", "counts", *names])
        for result in self.results:
            for name, score in result.scores.items():
                values = score.plain()
                row = [result.model, result.task, result.split, result.version, name, int(name == result.main)]
                table.writerow([*row, *(values.get(each, "") for each in names)])
        for mean in self.means:
            values = mean.mean.plain()
            table.writerow(
                [mean.model, mean.suite, "", mean.version, "mean", 1, *(values.get(each, "") for each in names)]
            )
        path.write_atomic(text.getvalue().encode("utf-8", "surrogateescape"))

    def write_rows(self, path: Location) -> None:
        """Write a Parquet file with a row per model and item. The main score of a model on a split is the sum
        of `score` divided by the sum of `weight` over its rows; for perplexity, it is the exponential of this
        ratio.
        """
        tables = []
        for result in self.results:
            names = {"model": result.model, "task": result.task, "split": result.split, "version": result.version}
            first = pa.table({name: pa.array([text] * len(result.rows), pa.string()) for name, text in names.items()})
            statistics = result.statistics
            columns = {name: result.rows[name] for name in result.rows.column_names}
            columns |= {"score": pa.array(statistics[:, 0]), "weight": pa.array(statistics[:, 1])}
            for name, column in columns.items():
                first = first.append_column(name, column)
            tables.append(first)
        table = pa.concat_tables(_with_lists(tables), promote_options="default")
        path.write_atomic(lambda sink: pq.write_table(table, sink, compression="zstd"))


def _with_lists(tables: Sequence[pa.Table]) -> list[pa.Table]:
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
    columns: Sequence[tuple[AskedTask, str]],
    data: Location | None,
    settings: EvaluationSettings,
    tell: Callable[[str], None],
    texts: Sequence[Examples] = (),
) -> tuple[TaskResult, ...]:
    """Return the results of every model on every (task, split) and then on `texts`.

    Raises the errors of `read_columns`, UserError for a model that gives no likelihoods, and ConfigError if a
    model is given twice.
    """
    if len({str(model) for model in models}) < len(models):
        raise ConfigError("models: the same model is given twice; give each once")
    read = [*read_columns(columns, data, settings, tell), *texts]
    results: list[TaskResult] = []
    for path in models:
        meter, scorer = EvaluationMeter(), Scorer.open(path, settings.pseudo)
        its = score_columns(str(path), scorer, read, settings, tell)
        cost = meter.cost(scorer)
        results += [replace(result, cost=cost) for result in its]
    return tuple(results)


def read_columns(
    columns: Sequence[tuple[AskedTask, str]],
    data: Location | None,
    settings: EvaluationSettings,
    tell: Callable[[str], None],
) -> list[Asked]:
    """Return the items of every (task, split), and pass their notes to `tell`. Raises the errors of
    `read_items`.
    """
    read = [_read(task, split, data, settings) for task, split in columns]
    for items in read:
        for note in items.notes if not isinstance(items, Examples) else ():
            tell(note)
    return read


def score_columns(
    model: str,
    scorer: Scorer,
    read: Sequence[Asked],
    settings: EvaluationSettings,
    tell: Callable[[str], None],
) -> list[TaskResult]:
    """Score the model named `model` on each entry of `read` and return the results. Remarks for the user go
    to `tell`.
    """
    tell(f"{model}: scored {scorer.form.described}")
    results = []
    for items in read:
        result = _result(model, scorer, items, settings)
        asked = items.asked if isinstance(items, HarnessItems) else items
        for note in result.notes if isinstance(asked, Examples) else ():
            tell(note)
        if result.cut:
            many = f"the contexts of {result.cut:,} items are longer than the model"
            tell(f"{model}: {result.task}: {many} and were cut on the left")
        if result.truncated:
            many = f"{result.truncated:,} of {len(result.rows):,} answers"
            tell(
                f"{model}: {result.task}: {many} did not end by themselves and were truncated (prompt.generation.tokens)"
            )
        results.append(result)
    return results


def _read(task: AskedTask, split: str, data: Location | None, settings: EvaluationSettings) -> Asked:
    if isinstance(task, HarnessTask):
        return read_harness_items(task, data, settings.seed, settings.limit)
    if task.kind == "text":
        return read_examples(task, split, data)
    if task.kind == "facts":
        if settings.shots:
            raise ConfigError(f"shots: got {settings.shots}, but facts ({task.name}) have no prompt; leave out shots")
        return read_facts(task, split, data)
    how = (settings.shots, settings.seed, settings.limit, settings.calibrate, settings.balanced)
    return read_items(task, split, data, *how)


def _result(model: str, scorer: Scorer, items: Asked, settings: EvaluationSettings) -> TaskResult:
    if isinstance(items, Examples):
        return text_result(model, scorer, items, settings.limit, settings.window)
    if isinstance(items, FactSet):
        return fact_result(model, scorer, items, settings.limit)
    if isinstance(items, HarnessItems):
        return harness_result(items, _result(model, scorer, items.asked, settings))
    if items.references is not None:
        return written_result(model, scorer, items, settings.seed)
    contexts, count = items.contexts, len(items.contexts)
    bare = [items.without] * count if items.without is not None else []
    more, texts = [*bare, *(items.neutral or ())], items.continuations
    found = scorer.score([*contexts, *more], texts * (1 + len(more) // count))
    without = found[count : count + len(bare)] if bare else None
    neutral = found[count + len(bare) :] if items.neutral else None
    return item_result(model, scorer.form.described, items, found[:count], without, neutral)
