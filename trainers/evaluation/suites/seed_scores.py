"""Group training runs that differ only in their seed, and average their scores."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

from gristmill.storage.disk import LocalPath
from trainers.inference.export_form import ORIGIN, read_export
from trainers.runs.resolve import identity
from trainers.runs.run import read_config, read_run


@dataclass(frozen=True)
class SeedScore:
    """The mean of a score over `models`, which differ only in their seed. `deviation` is the sample standard
    deviation, and `error` the standard error of the mean.
    """

    models: tuple[str, ...]
    name: str
    mean: float
    deviation: float
    error: float

    def plain(self) -> dict[str, Any]:
        """Return the score as JSON data."""
        return {**asdict(self), "models": list(self.models), "runs": len(self.models)}


def seed_groups(models: Sequence[LocalPath]) -> list[tuple[str, ...]]:
    """Return the groups of two or more models with the same corpus, tokenizer and configuration, except for
    the seed and fields that do not identify a run (`runs.resolve.identity`).
    """
    groups: dict[str, list[str]] = {}
    for model in models:
        if (model / ORIGIN).exists():
            origin, config = read_export(model)
            marks = origin["fingerprints"]
        else:
            config, marks = read_config(model), read_run(model)["fingerprints"]
        fields = {name: value for name, value in identity(config).items() if name != "seed"}
        key = json.dumps([fields, marks.get("corpus"), marks.get("tokenizer")], sort_keys=True, default=str)
        groups.setdefault(key, []).append(str(model))
    return [tuple(group) for group in groups.values() if len(group) > 1]


def seed_scores(groups: Sequence[tuple[str, ...]], values: Mapping[str, Mapping[str, float]]) -> list[SeedScore]:
    """Return the mean of each score over each group of models. `values` maps the name of each score to its
    value for every model.
    """
    found = []
    for group in groups:
        for name, of in values.items():
            each = [of[model] for model in group]
            deviation = stdev(each)
            found.append(SeedScore(group, name, mean(each), deviation, deviation / math.sqrt(len(each))))
    return found
