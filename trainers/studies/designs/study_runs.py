"""Open the corpora of a study and list its runs, each with its job, mixture and corpus."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gristmill.errors import ConfigError, UserError
from trainers.config.job import Init, TrainingBudget
from trainers.config.loss_weighting import GroupDRO
from trainers.config.pretraining import MixtureStage, Pretraining
from trainers.data.packed_corpus import TrainingCorpus
from trainers.runs.parent import parent_digest
from trainers.runs.resolve import resolve_data
from trainers.studies.designs.draw_mixtures import draw_mixtures
from trainers.studies.designs.level_weights import leaf_settings, leaf_weights, require_levels
from trainers.studies.designs.reused_ratios import ReusedRatios, read_reused
from trainers.studies.designs.study_corpora import OpenCorpora, measured_domains
from trainers.studies.designs.study_entries import (
    StudyEntry,
    job_with,
    recipe_of,
    share_read,
    study_entries,
    variant_of,
)
from trainers.studies.designs.study_run import NOT_BUILT, StudyRun, unique
from trainers.studies.laws import LAWS
from trainers.studies.proposals.constraints import MixtureConstraints, build_constraints
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.schema.study_designs import LeaveOneOut, MixtureDesign, Simplex, Sobol, Swarm
from trainers.studies.schema.study_file import Metrics, Study

LEAST_RUNS = 10  # with fewer, a law cannot be judged (`fit_study`)


@dataclass(frozen=True)
class OpenStudy:
    """A study whose corpora are open. `base` is the job of its recipe. `settings` are its proposal settings,
    in terms of the domains that the study varies. `metrics` names the measured domains. If entries read
    different corpora, `corpus` is the baseline's corpus or, until that is built, the corpus of another entry.
    """

    study: Study
    corpus: TrainingCorpus
    base: Pretraining
    settings: ProposalSettings
    entries: Mapping[str, StudyEntry]
    metrics: tuple[str, ...]
    corpora: OpenCorpora
    reused: ReusedRatios | None = None

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """The leaf domains with training documents, ordered by name."""
        return tuple(sorted(self.corpus.train))

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The domains that the study varies, ordered by name. The domains whose ratios it keeps (`reuse`)
        count as one, `reused`.
        """
        return tuple(self.shares_of(dict.fromkeys(self.leaves, 0.0)))

    def shares_of(self, values: Mapping[str, float]) -> dict[str, float]:
        """Convert values keyed by leaf domain to values keyed by the domains that the study varies."""
        return self.reused.collapse(values) if self.reused else {n: values.get(n, 0.0) for n in self.leaves}

    def tokens_of(self, name: str) -> int:
        """Return the number of training tokens of a domain that the study varies."""
        return round(self.shares_of(_sizes(self.corpus))[name])

    @cached_property
    def prior(self) -> np.ndarray:
        """The shares of the prior, [domains], which sum to 1."""
        return self.settings.prior_of(self.domains)

    @cached_property
    def constraints(self) -> MixtureConstraints:
        """The constraints on mixtures, both on those that a design draws and on those that the study
        proposes.
        """
        its = self.settings
        return build_constraints(self.domains, its.floors, its.fixed, its.tokens, its.target_tokens, its.epoch_caps)

    @cached_property
    def prior_mixture(self) -> dict[str, float]:
        """The shares of the prior, keyed by leaf domain."""
        return self.mixture(self.prior)

    def mixture(self, shares: np.ndarray) -> dict[str, float]:
        """Convert `shares` [domains] to the mixture of a run, keyed by leaf domain."""
        named = dict(zip(self.domains, shares.tolist(), strict=True))
        return self.reused.expand(named) if self.reused else named

    @cached_property
    def points(self) -> tuple[StudyRun, ...]:
        """The runs of the design. In a mixture design, the first run trains on the prior."""
        design, first = self.study.design, self.study.proxies.seed
        prior = self.prior_mixture
        if isinstance(design, Swarm | Sobol | Simplex):
            drawn = self._mixtures(design)
            names = [f"{design.kind}-{number:0{len(str(len(drawn)))}}" for number in range(1, len(drawn) + 1)]
            weights = {"prior": prior} | {n: self.mixture(row) for n, row in zip(names, drawn, strict=True)}
            return tuple(self.proxy(name, its, first) for name, its in weights.items())
        seeds = range(first, first + design.seeds)
        if isinstance(design, LeaveOneOut):
            return tuple(self.proxy(name, its, s) for name, its in self._left_out().items() for s in seeds)
        return tuple(self._entry_run(name, each, s) for name, each in self.entries.items() for s in seeds)

    @property
    def anchors(self) -> tuple[StudyRun, ...]:
        """In a mixture design, the runs that train on the prior and differ only in their seeds; otherwise
        empty.
        """
        if not self.study.has_mixtures:
            return ()
        first = self.study.proxies.seed
        prior = self.prior_mixture
        return tuple(self.proxy("prior", prior, first + number) for number in range(self.study.proxies.anchors))

    @cached_property
    def proxies(self) -> tuple[StudyRun, ...]:
        """The runs of the design and the anchors, without duplicates."""
        return unique((*self.points, *self.anchors))

    @cached_property
    def doremi(self) -> tuple[StudyRun, ...]:
        """The two runs of DoReMi: the reference run, which trains on the prior, then the run with group DRO.
        Empty if the study does not use DoReMi.
        """
        its, first = self.study.doremi, self.study.proxies.seed
        if its is None:
            return ()
        reference = replace(self.proxy("doremi-reference", self.prior_mixture, first), keeps_export=True)
        uniform = self.mixture(np.full(len(self.domains), 1 / len(self.domains)))
        proxy = self.proxy("doremi", uniform, first)
        weighting = GroupDRO("", step_size=its.step_size, smoothing=its.smoothing)
        job = replace(proxy.job, online_weights=weighting)
        return reference, replace(proxy, job=job, reference=reference.key)

    def proxy(self, entry: str, weights: Mapping[str, float], seed: int) -> StudyRun:
        """Return the proxy run of `entry` on the mixture `weights`, keyed by domain."""
        return self._run(entry, weights, seed, self.study.proxies.tokens, {})

    def candidate(self, name: str, weights: Mapping[str, float], seed: int) -> StudyRun:
        """Return the confirmation run of the candidate `name` on the mixture `weights`, keyed by domain. The
        study must have a `confirmation`.
        """
        confirmation = self.study.confirmation
        assert confirmation is not None
        return self._run(name, weights, seed, confirmation.tokens, confirmation.settings)

    def share_read(self, tokens: int) -> float:
        """Return the share of each domain's sequences that a run of `tokens` tokens may read. For the rule,
        see `study_entries.share_read`.
        """
        return share_read(self.study, tokens)

    def _run(
        self, entry: str, weights: Mapping[str, float], seed: int, tokens: int, settings: Mapping[str, Any]
    ) -> StudyRun:
        """Return a run on the study's corpus. With `anneal`, `weights` is the mixture of its second phase."""
        stages = self._first_phase(tokens, self.prior_mixture)
        data = replace(self.base.data, weights=dict(weights), stages=stages, subset=self.share_read(tokens))
        job = replace(self.base, name=entry, seed=seed, data=data, budget=TrainingBudget(tokens=tokens))
        job = job_with(job, settings, f"study {self.study.name}, {entry}")
        return StudyRun(entry, weights, job, self._measured, self.corpus.fingerprint, parent=self._parent(job))

    def _entry_run(self, name: str, its: StudyEntry, seed: int) -> StudyRun:
        job = replace(its.job, seed=seed)
        if its.variant is not None and not self.corpora.has(its.variant):
            return StudyRun(name, {}, job, self._measured, f"{NOT_BUILT}{its.variant.key}")
        corpus = self.corpora.of(job)
        prior, tokens = self._prior_of(corpus), int(job.budget.tokens or 0)
        job = replace(job, data=replace(job.data, stages=job.data.stages or self._first_phase(tokens, prior)))
        if its.sets_mixture:
            weights = resolve_data(job.data, corpus, tokens).weights
            assert isinstance(weights, dict)
        else:
            weights = prior if its.weights is None else leaf_weights(its.weights, _sizes(corpus), f"design: {name}")
            job = replace(job, data=replace(job.data, weights=weights))
        return StudyRun(name, weights, job, self._measured, corpus.fingerprint, parent=self._parent(job))

    def _parent(self, job: Pretraining) -> str:
        if job.init is None:
            return ""
        if job.init not in self._parents:
            self._parents[job.init] = parent_digest(job.init)
        return self._parents[job.init]

    @cached_property
    def _parents(self) -> dict[Init, str]:
        return {}

    def _prior_of(self, corpus: TrainingCorpus) -> dict[str, float]:
        if (corpus.fingerprint, corpus.shard_set) == (self.corpus.fingerprint, self.corpus.shard_set):
            return self.prior_mixture
        domains = tuple(sorted(corpus.train))
        prior = leaf_settings(self.study, corpus).prior_of(domains)
        return dict(zip(domains, prior.tolist(), strict=True))

    def _first_phase(self, tokens: int, prior: dict[str, float]) -> tuple[MixtureStage, ...]:
        if self.study.anneal is None:
            return ()
        return (MixtureStage(max(1, round((1 - self.study.anneal) * tokens)), prior),)

    @cached_property
    def _measured(self) -> Metrics:
        everything = self.metrics == tuple(sorted(self.corpus.validation))
        if everything and not self.study.metrics.domains:
            return self.study.metrics
        return replace(self.study.metrics, domains=self.metrics)

    def _mixtures(self, design: MixtureDesign) -> np.ndarray:
        drawn = draw_mixtures(design, self.prior, self.constraints)
        needed = max(LEAST_RUNS, *(LAWS[name].minimum_runs(len(self.domains)) + 1 for name in self.study.laws))
        if len(drawn) + 1 < needed:
            laws = ", ".join(self.study.laws)
            raise ConfigError(
                f"design: has {len(drawn)} mixtures and the prior; the law {laws} of {len(self.domains)} domains needs "
                f"{needed} runs or more: use a swarm of that size or a law with fewer parameters"
            )
        return drawn

    def _left_out(self) -> dict[str, dict[str, float]]:
        left = {"prior": self.prior} | {
            f"without-{name}": np.where(np.arange(len(self.prior)) == i, 0.0, self.prior)
            for i, name in enumerate(self.domains)
            if 0 < self.prior[i] < 1
        }
        return {name: self.mixture(shares / shares.sum()) for name, shares in left.items()}

    def require_domains(self, section: str, weights: Mapping[str, float]) -> None:
        """Raise ConfigError if a name in `weights` is not a domain of the corpus at any level. The message
        begins with `section`.
        """
        require_levels(section, weights, self.corpus)

    def leaf_shares(self, section: str, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the shares of all leaf domains, which sum to 1, given `weights` of domains at any level. The
        caller must have checked the names with `require_domains`.
        """
        its, total = leaf_weights(weights, _sizes(self.corpus), section), sum(weights.values())
        return {name: its.get(name, 0.0) / total for name in self.leaves}


def open_study(study: Study) -> OpenStudy:
    """Return the study with its corpora open. Raises UserError if its settings do not fit them, or if the
    study builds its corpora and none is built yet.
    """
    entries, corpora = study_entries(study), OpenCorpora()
    base = recipe_of(study, study.recipe)
    jobs = [its.job for its in entries.values() if corpora.has(its.variant)]
    if study.corpus_file is not None:
        plain_variant = variant_of(study, {})
        if not entries and corpora.has(plain_variant):
            jobs = [replace(base, data=replace(base.data, corpora=(str(plain_variant.manifest),)))]
        if not jobs:
            raise UserError(
                f"study {study.name}: no corpus of {study.corpus_file} is built yet; build it with `study run`"
            )
        base = replace(base, data=replace(base.data, corpora=jobs[0].data.corpora))
    corpus = corpora.of(base)
    if not corpus.validation:
        raise UserError(f"{corpus.directory}: has no held-out documents to measure; build it with a validation_share")
    different = {(its.fingerprint, its.shard_set): its for its in [corpus, *map(corpora.of, jobs)]}
    metrics = measured_domains(list(different.values()), study)
    settings = leaf_settings(study, corpus, metrics)
    reused = read_reused(study.reuse, corpus.train) if study.reuse else None
    settings = reused.settings(settings) if reused else settings
    opened = OpenStudy(study, corpus, base, settings, entries, metrics, corpora, reused)
    opened.settings.metric_weights(opened.metrics)  # raises for a metric that is not measured
    assert opened.prior is not None
    if study.has_mixtures and len(opened.domains) < 2:
        raise ConfigError(f"{corpus.directory}: has one source, {opened.domains[0]}; a mixture needs two or more")
    for name, its in entries.items():
        if its.weights is not None and corpora.has(its.variant):
            require_levels(f"design: {name}", its.weights, corpora.of(its.job))
    if study.confirmation is not None:
        for name, weights in study.confirmation.own.items():
            opened.require_domains(f"confirmation.own.{name}", weights)
    return opened


def _sizes(corpus: TrainingCorpus) -> dict[str, int]:
    return {name: source.tokens for name, source in corpus.train.items()}
