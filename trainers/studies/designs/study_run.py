"""A run of a study, and the key that names its directory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any

from gristmill.config import plain
from gristmill.storage.store import digest
from trainers.config.pretraining import Pretraining
from trainers.runs.resolve import identity
from trainers.studies.schema.study_file import Metrics

NOT_BUILT = "not built: "
"""The beginning of the `corpus` of a run whose corpus is not built."""
_KEY = 16  # hexadecimal digits of the name of a run's directory
_IDENTITIES: dict[str, dict[str, object]] = {}
_TEXTS: dict[str, tuple[object, str]] = {}


@dataclass(frozen=True)
class StudyRun:
    """A run of a study. `entry` is the name of the mixture, candidate or design entry that the run trains.
    `weights` is the run's mixture by domain, empty until the corpus is built. `corpus` is the fingerprint of
    the corpus or, if the corpus is not built, a text that begins with NOT_BUILT. Runs with the same `key` are
    trained once.

    `keeps_export` keeps the exported weights after training. In a run with group DRO (DoReMi), `reference` is
    the key of the reference run. `parent` is the digest of the weights that `job.init` names, if any.
    """

    entry: str
    weights: Mapping[str, float]
    job: Pretraining
    metrics: Metrics
    corpus: str
    keeps_export: bool = False
    reference: str = ""
    parent: str = ""

    @property
    def name(self) -> str:
        """The name in messages and tables: the entry and the seed."""
        return f"{self.entry}/seed-{self.job.seed}"

    @property
    def is_ready(self) -> bool:
        """Whether the corpus of the run is built."""
        return not self.corpus.startswith(NOT_BUILT)

    @cached_property
    def kind(self) -> str:
        """The job as text, without its name, seed and mixture. The jobs of runs of the same kind differ only
        in these three.
        """
        its = [(f.name, getattr(self.job, f.name)) for f in fields(self.job) if f.name not in ("seed", "name", "data")]
        its += [
            (f"data.{f.name}", getattr(self.job.data, f.name)) for f in fields(self.job.data) if f.name != "weights"
        ]
        return ", ".join(f"{name}={_shown(name, value)}" for name, value in its)

    @cached_property
    def key(self) -> str:
        """A digest of the fields that identify the job (`resolve.identity`) and of `metrics`, `corpus`,
        `reference`, `parent` and `keeps_export`.
        """
        more = ["export"] * self.keeps_export + [mark for mark in (self.reference, self.parent) if mark]
        return digest([self._identity(), _plain_metrics(self.metrics), self.corpus, *more])[:_KEY]

    def _identity(self) -> dict[str, object]:
        if self.kind not in _IDENTITIES:
            _IDENTITIES.clear()  # runs of the same kind are consecutive
            _IDENTITIES[self.kind] = identity(replace(self.job, data=replace(self.job.data, weights={})))
        weights = self.job.data.weights
        shares = {f"data.weights.{n}": w for n, w in weights.items()} if isinstance(weights, dict) else {}
        named = {"data.weights": weights} if isinstance(weights, str) else shares
        return {**_IDENTITIES[self.kind], **named, "seed": self.job.seed}


def unique(runs: Sequence[StudyRun]) -> tuple[StudyRun, ...]:
    """Return `runs` without duplicates: of the runs with the same key, only the first."""
    first: dict[str, StudyRun] = {}
    for run in runs:
        first.setdefault(run.key, run)
    return tuple(first.values())


def _shown(name: str, value: object) -> str:
    known = _TEXTS.get(name)
    if known is None or known[0] is not value:
        known = _TEXTS[name] = value, repr(value)
    return known[1]


@cache
def _plain_metrics(metrics: Metrics) -> Any:
    return plain(metrics)
