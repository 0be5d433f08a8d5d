"""Scores of a model with and without the items that occur in its training corpora. An item counts as found if
a single training document contains at least 70 % (`FOUND_AT`) of the words of its prompt or of its answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.errors import StorageError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_location
from pipelines.contracts.contamination.found_items import Contamination, read_contamination
from pipelines.contracts.shard_set import LEVEL
from trainers.config.pretraining import Pretraining
from trainers.evaluation.suites.item_file import item_name
from trainers.evaluation.suites.suite_result import without_shots
from trainers.evaluation.suites.task_result import NoisyScore, TaskResult
from trainers.inference.export_form import ORIGIN, read_export
from trainers.runs.run import read_config

FOUND_AT = 0.7  # of 8-grams in PaLM (Chowdhery et al., 2022, section 8); here of words in shared n-grams
_ROUNDING = 1e-6  # shares are stored in single precision


@dataclass(frozen=True)
class CleanScore:
    """The main score of a model on a task: on all items (`whole`), without the items found in the model's
    corpora (`without`), and on the found items alone (`only`). `searched` is the number of items that the
    corpora were searched for.
    """

    model: str
    task: str
    split: str
    score: str
    items: int
    searched: int
    found: int
    whole: NoisyScore
    without: NoisyScore | None
    only: NoisyScore | None

    def plain(self) -> dict[str, Any]:
        """Return the scores as JSON data."""
        names = ("model", "task", "split", "score", "items", "searched", "found")
        scores = {"all": self.whole, "without_found": self.without, "found_only": self.only}
        return {
            **{name: getattr(self, name) for name in names},
            **{name: None if each is None else each.plain() for name, each in scores.items()},
        }


def clean_scores(results: Sequence[TaskResult], held: Mapping[str, Mapping[str, float]]) -> tuple[CleanScore, ...]:
    """Return the scores of every model on each task with items that were searched for in the model's corpora.
    `held` maps the name of each model to its `corpus_shares`.
    """
    found = []
    for result in results:
        shares = held.get(result.model, {})
        names = [item_name(without_shots(result.task), result.split, each) for each in result.rows["id"].to_pylist()]
        searched = sum(name in shares for name in names)
        if searched:
            parts = result.parts(
                ["found" if shares.get(name, 0.0) >= FOUND_AT - _ROUNDING else "clean" for name in names]
            )
            count = parts["found"].n if "found" in parts else 0
            scores = (result.scores[result.main], parts.get("clean"), parts.get("found"))
            known = (result.model, result.task, result.split, result.main)
            found.append(CleanScore(*known, len(names), searched, count, *scores))
    return tuple(found)


def corpus_shares(model: LocalPath, tasks: Iterable[str], tell: Callable[[str], None]) -> dict[str, float]:
    """Return {item name: share}, where the share says how much of the item the model was trained on: the
    largest share of the words of its prompt or answer that any one training document contains. Items that
    were not searched for are left out, and a model not made by pretraining has no shares. `tell` gets a
    message for each corpus that cannot be read or was not searched for all `tasks`.
    """
    config = read_export(model)[1] if (model / ORIGIN).exists() else read_config(model)
    if not isinstance(config, Pretraining):
        return {}
    read = _sources_read(config)
    shares: dict[str, float] = {}
    for name in config.data.corpora:
        try:
            found = read_contamination(parse_location(name), lambda source: source in read)
        except (UserError, StorageError) as error:
            tell(f"{model}: cannot tell which items its corpus contains: {error}")
            continue
        its = _by_item(found)
        if missing := [task for task in tasks if not any(item.startswith(f"{task}/") for item in its)]:
            tell(
                f"{name}: was not searched for the items of {', '.join(missing)}; `python -m trainers evaluate "
                f"task={','.join(missing)} --write-items FILE.jsonl` writes them, and `decontaminate: {{sets: [{{name: "
                f"evaluation, file: FILE.jsonl, ids: id, prompts: [prompt], answers: [answer]}}]}}` in `steps` of its "
                f"corpus file finds them in the next build"
            )
        for item, share in its.items():
            shares[item] = max(shares.get(item, 0.0), share)
    return shares


def _by_item(found: Contamination | None) -> dict[str, float]:
    shares: dict[str, float] = {}
    for name, share in (found.shares if found is not None else {}).items():
        item = name.partition("#")[2]
        shares[item] = max(shares.get(item, 0.0), share)
    return shares


def _sources_read(config: Pretraining) -> set[str]:
    weights = [config.data.weights, *(stage.weights for stage in config.data.stages)]
    named = (each for each in weights if isinstance(each, Mapping))
    return {name.partition(LEVEL)[0] for each in named for name, weight in each.items() if weight > 0}
