"""The runs of a study: the job of each, and the key that names its directory, a digest of job, metrics and
corpus.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gristmill.config import load_yaml, override, parse, plain
from gristmill.errors import ConfigError, UserError
from gristmill.storage.parsing import parse_local
from gristmill.storage.store import digest
from trainers.config.job import TrainingBudget
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import TrainingCorpus, corpus_of
from trainers.recipes import RECIPES
from trainers.runs.resolve import identity
from trainers.studies.designs.draw_mixtures import draw_mixtures
from trainers.studies.laws import LAWS
from trainers.studies.proposals.constraints import MixtureConstraints, build_constraints
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.schema.study_designs import (
    Grid,
    LeaveOneOut,
    Listed,
    ListEntry,
    MixtureDesign,
    Simplex,
    Sobol,
    Swarm,
)
from trainers.studies.schema.study_file import Metrics, Study, check_setting, flat_settings

LEAST_RUNS = 10  # with fewer, a law cannot be judged (`fit_study`)
_OF_ENTRIES = ("data.weights", "data.subset", "budget.tokens")  # reserved fields that an entry may set
_KEY = 16  # hexadecimal digits of the name of a run's directory


@dataclass(frozen=True)
class StudyRun:
    """A run of a study. `entry` names what is trained (a mixture, a candidate, an entry of a list), and
    `weights` is its mixture by domain. `key` names its directory: runs with the same job, metrics and corpus
    share it and are trained once.
    """

    entry: str
    weights: Mapping[str, float]
    job: Pretraining
    metrics: Metrics
    corpus: str

    @property
    def name(self) -> str:
        """The name in messages and tables: the entry and the seed."""
        return f"{self.entry}/seed-{self.job.seed}"

    @cached_property
    def key(self) -> str:
        """A digest of everything that the result depends on. The unresolved job is enough, because the
        resolved job is a function of it and the corpus.
        """
        return digest([identity(self.job), plain(self.metrics), self.corpus])[:_KEY]


@dataclass(frozen=True)
class OpenStudy:
    """A study with its corpus. `base` is the job of its recipe. `settings` are those of the proposal,
    completed by the tokens of the corpus and of the target.
    """

    study: Study
    corpus: TrainingCorpus
    base: Pretraining
    settings: ProposalSettings

    @property
    def domains(self) -> tuple[str, ...]:
        """The domains with training documents, ordered by name."""
        return tuple(sorted(self.corpus.train))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics: the domains with held-out text, or those that the study names."""
        return self.study.metrics.domains or tuple(sorted(self.corpus.validation))

    @cached_property
    def prior(self) -> np.ndarray:
        """The prior, [domains]; its shares sum to 1."""
        return self.settings.prior_of(self.domains)

    @cached_property
    def constraints(self) -> MixtureConstraints:
        """The limits of the proposal, which the design respects too."""
        its = self.settings
        return build_constraints(self.domains, its.floors, its.fixed, its.tokens, its.target_tokens, its.epoch_caps)

    def mixture(self, shares: np.ndarray) -> dict[str, float]:
        """Return `shares`, [domains], as a mapping by domain."""
        return dict(zip(self.domains, shares.tolist(), strict=True))

    @cached_property
    def points(self) -> tuple[StudyRun, ...]:
        """The runs of the design. In a mixture design, the first is the prior."""
        design, first = self.study.design, self.study.proxies.seed
        prior = self.mixture(self.prior)
        if isinstance(design, Swarm | Sobol | Simplex):
            drawn = self._mixtures(design)
            names = [f"{design.kind}-{number:0{len(str(len(drawn)))}}" for number in range(1, len(drawn) + 1)]
            weights = {"prior": prior} | {n: self.mixture(row) for n, row in zip(names, drawn, strict=True)}
            return tuple(self.proxy(name, its, first) for name, its in weights.items())
        entries = self._entries(design)
        seeds = range(first, first + design.seeds)
        return tuple(self.proxy(name, each.weights or prior, s, each) for name, each in entries.items() for s in seeds)

    @property
    def anchors(self) -> tuple[StudyRun, ...]:
        """The runs of the prior with several seeds. There are none if the design trains every entry with
        several seeds.
        """
        if not self.study.has_mixtures:
            return ()
        first = self.study.proxies.seed
        prior = self.mixture(self.prior)
        return tuple(self.proxy("prior", prior, first + number) for number in range(self.study.proxies.anchors))

    @property
    def proxies(self) -> tuple[StudyRun, ...]:
        """The runs of the design and the anchors, without duplicates."""
        return unique((*self.points, *self.anchors))

    def proxy(self, entry: str, weights: Mapping[str, float], seed: int, its: ListEntry | None = None) -> StudyRun:
        """Return a proxy run."""
        return self._run(entry, weights, seed, self.study.proxies.tokens, {}, its or ListEntry())

    def candidate(self, name: str, weights: Mapping[str, float], seed: int) -> StudyRun:
        """Return a run of the confirmation."""
        confirmation = self.study.confirmation
        assert confirmation is not None
        return self._run(name, weights, seed, confirmation.tokens, confirmation.settings, ListEntry())

    def share_read(self, tokens: int) -> float:
        """Return the share of each domain that a run of `tokens` tokens may read, so that its epochs match
        the target's; 1 if proxies are not matched.
        """
        target = self.study.target
        return min(1.0, tokens / target.tokens) if target and self.study.proxies.matched else 1.0

    def _run(
        self, entry: str, weights: Mapping[str, float], seed: int, tokens: int, more: Mapping[str, Any], its: ListEntry
    ) -> StudyRun:
        base = self.base if its.recipe is None else _recipe(self.study, its.recipe)
        data = replace(base.data, weights=dict(weights), subset=self.share_read(tokens))
        job = replace(base, name=entry, seed=seed, data=data, budget=TrainingBudget(tokens=tokens))
        if settings := {**more, **its.settings}:
            job = _with(job, settings, f"study {self.study.name}, {entry}")
        return StudyRun(entry, weights, job, self.study.metrics, self.corpus.fingerprint)

    def _mixtures(self, design: MixtureDesign) -> np.ndarray:
        drawn = draw_mixtures(design, self.prior, self.constraints)
        needed = max(LEAST_RUNS, *(LAWS[name].minimum_runs(len(self.domains)) + 1 for name in self.study.laws))
        if len(drawn) + 1 < needed:
            laws = ", ".join(self.study.laws)
            raise ConfigError(
                f"design: has {len(drawn)} mixtures and the prior; the law {laws} of {len(self.domains)} domains needs "
                f"{needed} runs or more: take a swarm with as many runs, or a law of fewer parameters"
            )
        return drawn

    def _entries(self, design: Listed | Grid | LeaveOneOut) -> dict[str, ListEntry]:
        if isinstance(design, LeaveOneOut):
            left = {"prior": self.prior} | {
                f"without-{name}": np.where(np.arange(len(self.prior)) == i, 0.0, self.prior)
                for i, name in enumerate(self.domains)
                if 0 < self.prior[i] < 1
            }
            return {name: ListEntry(weights=self.mixture(shares / shares.sum())) for name, shares in left.items()}
        if isinstance(design, Grid):
            rows = [dict(zip(design.axes, row, strict=True)) for row in itertools.product(*design.axes.values())]
            entries = {",".join(f"{k}={_shown(v)}" for k, v in row.items()): ListEntry(settings=row) for row in rows}
        else:
            entries = dict(design.entries)
        for name, entry in entries.items():
            for field_name in flat_settings(entry.settings):
                try:
                    check_setting(f"design: {name}", field_name, _OF_ENTRIES)
                except ValueError as error:
                    raise ConfigError(str(error)) from None
            self.require_domains(f"design: {name}", entry.weights or {})
        return entries

    def require_domains(self, section: str, weights: Mapping[str, float]) -> None:
        """Raise ConfigError for a domain that the corpus does not have."""
        for name in weights:
            if name not in self.domains:
                raise ConfigError(f"{section}.{name}: no such domain; the corpus has {', '.join(self.domains)}")


def open_study(study: Study) -> OpenStudy:
    """Open the corpus of a study and check that the two fit. Raises UserError if they do not."""
    base = _recipe(study, study.recipe)
    corpus = corpus_of(base)
    if not corpus.validation:
        raise UserError(f"{study.corpora[0]}: has no held-out documents to measure; build it with a validation_share")
    for name in study.metrics.domains:
        if name not in corpus.validation:
            there = ", ".join(sorted(corpus.validation))
            raise ConfigError(f"metrics.domains: got {name!r}, held-out text have {there}")
    tokens = study.proposal.tokens or {name: source.tokens for name, source in corpus.train.items()}
    target = study.proposal.target_tokens or (study.target.tokens if study.target else None)
    opened = OpenStudy(study, corpus, base, replace(study.proposal, tokens=tokens, target_tokens=target))
    opened.settings.metric_weights(opened.metrics)  # raises for a metric that is not measured
    assert opened.prior is not None
    if study.has_mixtures and len(opened.domains) < 2:
        raise ConfigError(f"{study.corpora[0]}: has one source, {opened.domains[0]}; a mixture needs two or more")
    if study.confirmation is not None:
        for name, weights in study.confirmation.own.items():
            opened.require_domains(f"confirmation.own.{name}", weights)
    return opened


def unique(runs: Sequence[StudyRun]) -> tuple[StudyRun, ...]:
    """Return the runs without duplicates: of those with the same key, the first."""
    first: dict[str, StudyRun] = {}
    for run in runs:
        first.setdefault(run.key, run)
    return tuple(first.values())


def _recipe(study: Study, name: str) -> Pretraining:
    """Return a recipe with the corpora and settings of the study."""
    if name in RECIPES:
        data = plain(RECIPES[name]())
    elif name.endswith((".yaml", ".yml")):
        data = load_yaml(parse_local(name, "recipe"))
    else:
        raise ConfigError(f"study {study.name}: recipe: got {name!r}, allowed {', '.join(RECIPES)}, or a YAML file")
    where = f"study {study.name}, recipe {name}"
    config = parse(Pretraining, override(data, _assignments(study.settings)), where)
    return replace(config, data=replace(config.data, corpora=study.corpora, stages=()))


def _with(job: Pretraining, settings: Mapping[str, Any], where: str) -> Pretraining:
    return parse(Pretraining, override(plain(job), _assignments(settings)), where)


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={json.dumps(plain(value))}" for name, value in flat_settings(settings).items()]


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value))
