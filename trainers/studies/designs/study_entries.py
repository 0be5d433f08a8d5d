"""The entries of a list or grid design. No corpus is opened here, so the mixture of a job is usually set
later.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gristmill.config import dump_yaml, load_yaml, override, parse, plain
from gristmill.errors import ConfigError
from gristmill.storage.parsing import parse_local
from trainers.config.job import TrainingBudget
from trainers.config.pretraining import Pretraining
from trainers.recipes import RECIPES
from trainers.studies.designs.study_corpora import CorpusVariant, check_changes
from trainers.studies.schema.study_designs import Grid, Listed, ListEntry
from trainers.studies.schema.study_file import Study, check_setting, flat_settings

_OF_ENTRIES = ("data.weights", "data.stages", "data.subset", "budget.tokens")  # reserved fields that an entry may set


@dataclass(frozen=True)
class StudyEntry:
    """An entry of a list or grid design. `job` is its configuration, whose seed is set later. `sets_mixture`
    says whether the settings of the entry include `data.weights`; if not, the mixture of `job` is also set
    later. `weights` is the mixture that the entry gives, by domain at any level, or None. `variant` is the
    corpus that the study builds for the entry, if any.
    """

    job: Pretraining
    weights: Mapping[str, float] | None
    sets_mixture: bool
    variant: CorpusVariant | None


def study_entries(study: Study) -> dict[str, StudyEntry]:
    """Return the entries of a list or grid design, keyed by name, with the baseline first; empty for other
    designs. Raises ConfigError for an invalid entry.
    """
    bases: dict[str, Pretraining] = {}
    variants: dict[str, CorpusVariant] = {}
    prepared = {}
    for name, its in _named(study).items():
        section = f"design: {name}"
        check_changes(section, study, its.corpus)
        fields = flat_settings(its.settings)
        for field_name in fields:
            try:
                check_setting(section, field_name, _OF_ENTRIES)
            except ValueError as error:
                raise ConfigError(str(error)) from None
        if study.anneal is not None and "data.stages" in fields:
            raise ConfigError(f"{section}.data.stages: the study has anneal, which sets them; remove one of the two")
        recipe = its.recipe or study.recipe
        if recipe not in bases:
            bases[recipe] = recipe_of(study, recipe)
        variant = None
        if study.corpus_file is not None:
            changes = json.dumps(plain(its.corpus))
            variant = variants.setdefault(changes, variant_of(study, its.corpus))
        job = _entry_job(study, name, its, bases[recipe], variant)
        prepared[name] = StudyEntry(job, its.weights, "data.weights" in fields, variant)
    return prepared


def variant_of(study: Study, changes: Mapping[str, Any]) -> CorpusVariant:
    """Return the variant of a study's corpus file that results from `changes`, {dotted field name: value}."""
    assert study.corpus_file is not None
    return CorpusVariant(study.corpus_file, tuple(f"{name}={_written(v)}" for name, v in changes.items()))


def variants_of(study: Study) -> tuple[CorpusVariant, ...]:
    """Return the distinct corpus variants that a study builds, the baseline's first. Empty if the study has
    no `corpus_file`.
    """
    if study.corpus_file is None:
        return ()
    found = [entry.variant for entry in study_entries(study).values()] or [variant_of(study, {})]
    return tuple({its.key: its for its in found if its is not None}.values())


def recipe_of(study: Study, name: str) -> Pretraining:
    """Return the job of the recipe `name` with the study's settings and corpora, and without `data.stages`.
    Raises ConfigError if the recipe is unknown or invalid.
    """
    if name in RECIPES:
        data = plain(RECIPES[name]())
    elif name.endswith((".yaml", ".yml")):
        data = load_yaml(parse_local(name, "recipe"))
    else:
        raise ConfigError(f"study {study.name}: recipe: got {name!r}, allowed {', '.join(RECIPES)}, or a YAML file")
    where = f"study {study.name}, recipe {name}"
    config = parse(Pretraining, override(data, _assignments(study.settings)), where)
    return replace(config, data=replace(config.data, corpora=study.corpora, stages=()))


def job_with(job: Pretraining, settings: Mapping[str, Any], where: str) -> Pretraining:
    """Return `job` with `settings` applied. Raises ConfigError if the result is invalid."""
    return parse(Pretraining, override(plain(job), _assignments(settings)), where) if settings else job


def share_read(study: Study, tokens: int) -> float:
    """Return the share of each domain's sequences that a run of `tokens` tokens may read: `tokens` divided by
    the target's tokens, at most 1, so that a weight means as many epochs in the run as in the target. Returns
    1 if `proxies.matched` is off or the study has no target.
    """
    return min(1.0, tokens / study.target.tokens) if study.target and study.proxies.matched else 1.0


def _named(study: Study) -> dict[str, ListEntry]:
    design = study.design
    if isinstance(design, Listed):
        return {design.baseline: design.entries[design.baseline], **design.entries}
    if not isinstance(design, Grid):
        return {}
    axes = [(name, False, values) for name, values in design.axes.items()]
    axes += [(name, True, values) for name, values in design.corpus.items()]
    entries = {}
    for row in itertools.product(*(values for _, _, values in axes)):
        cells = [(name, of_corpus, value) for (name, of_corpus, _), value in zip(axes, row, strict=True)]
        settings, corpus = ({n: v for n, its, v in cells if its is wanted} for wanted in (False, True))
        name = ",".join(f"{n}={_shown(v)}" for n, _, v in cells)
        if name in entries:
            raise ConfigError(
                f"design: two combinations have the name {name}; values such as 1 and '1' are written alike: leave one out"
            )
        entries[name] = ListEntry(settings=settings, corpus=corpus)
    return entries


def _entry_job(
    study: Study, name: str, its: ListEntry, base: Pretraining, variant: CorpusVariant | None
) -> Pretraining:
    tokens = study.proxies.tokens
    corpora = study.corpora if variant is None else (str(variant.manifest),)
    data = replace(base.data, corpora=corpora)
    job = replace(base, name=name, data=data, budget=TrainingBudget(tokens=tokens))
    job = job_with(job, its.settings, f"study {study.name}, {name}")
    if "data.subset" in flat_settings(its.settings):
        return job
    return replace(job, data=replace(job.data, subset=share_read(study, int(job.budget.tokens or 0))))


def _assignments(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_written(value)}" for name, value in flat_settings(settings).items()]


def _written(value: Any) -> str:
    """Format a value as YAML for `override`. JSON is not used, because YAML cannot read all of its escapes."""
    return dump_yaml(plain(value), flow=True).removesuffix("\n...\n").strip()


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value))
