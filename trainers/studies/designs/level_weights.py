"""Expand the weights and caps of a study to leaf domains. The study may name domains at any level
(docs/domains.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gristmill.config import near_match
from gristmill.errors import ConfigError
from pipelines.contracts.shard_set import LEVEL
from trainers.data.domain_weights import assign_leaves, names_above
from trainers.data.packed_corpus import TrainingCorpus
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.schema.study_file import Study


def leaf_weights(weights: Mapping[str, float], tokens: Mapping[str, int], section: str) -> dict[str, float]:
    """Return the weight of each leaf that `weights` covers. The weight of a name is divided among its leaves
    in proportion to their `tokens`. A name without leaves keeps its weight; the caller must reject the name.
    Raises ConfigError as `assign_leaves` does.
    """
    shared: dict[str, float] = {}
    for name, leaves in assign_leaves(weights, tokens, section).items():
        total = sum(tokens[leaf] for leaf in leaves)
        shared |= {leaf: float(weights[name]) * (tokens[leaf] / total) for leaf in leaves} or {name: weights[name]}
    return shared


def leaf_caps(caps: Mapping[str, float], tokens: Mapping[str, int], section: str) -> dict[str, float]:
    """Return the cap of each leaf that `caps` covers: the cap given for the leaf itself or, if there is none,
    for the nearest level above. A name without leaves keeps its cap.
    """
    owned = assign_leaves(caps, tokens, section)
    return {leaf: caps[name] for name, leaves in owned.items() for leaf in leaves or [name]}


def leaf_settings(study: Study, corpus: TrainingCorpus, metrics: Sequence[str] = ()) -> ProposalSettings:
    """Return the proposal settings of a study with all domain names expanded to leaf domains. `tokens` and
    `target_tokens` default to the tokens of the corpus and of the study's target. `metrics` names the
    measured leaf domains; if the study sets no weights, the sources of these domains all have the same
    weight.

    In a study of two phases, the settings are those of the second phase.
    """
    proposal = study.proposal
    sizes = {name: source.tokens for name, source in corpus.train.items()}
    measured = {name: source.tokens for name, source in corpus.validation.items()}
    caps = proposal.max_epochs
    weights = proposal.weights
    sources = sorted({name.partition(LEVEL)[0] for name in metrics})
    if not weights and len(sources) < len(metrics):  # a source counts once, however many domains it has
        measured = {name: measured[name] for name in metrics}
        weights = dict.fromkeys(sources, 1.0)
    settings = replace(
        proposal,
        tokens=proposal.tokens or sizes,
        target_tokens=proposal.target_tokens or (study.target.tokens if study.target else None),
        prior=leaf_weights(proposal.prior, sizes, "prior") if proposal.prior else None,
        floors=leaf_weights(proposal.floors, sizes, "floors"),
        fixed=leaf_weights(proposal.fixed, sizes, "fixed"),
        max_epochs=leaf_caps(caps, sizes, "max_epochs") if isinstance(caps, dict) else caps,
        weights=leaf_weights(weights, measured, "weights") if weights else None,
    )
    return _second_phase(settings, study.anneal, sorted(sizes)) if study.anneal else settings


def _second_phase(settings: ProposalSettings, anneal: float, domains: Sequence[str]) -> ProposalSettings:
    target, caps = settings.target_tokens, settings.epoch_caps
    if target is None or settings.tokens is None:
        return settings
    if caps is not None:
        shares = zip(domains, settings.prior_of(domains).tolist(), strict=True)
        sizes = settings.tokens
        before = {name: (1 - anneal) * target * share / max(1, sizes[name]) for name, share in shares if name in sizes}
        allowed = caps if isinstance(caps, dict) else dict.fromkeys(domains, caps)
        caps = {name: max(0.0, cap - before.get(name, 0.0)) for name, cap in allowed.items()}
    return replace(settings, target_tokens=max(1, round(anneal * target)), max_epochs=caps)


def require_levels(section: str, names: Mapping[str, float], corpus: TrainingCorpus) -> None:
    """Raise ConfigError if one of `names` is not a domain of the corpus at any level. The message begins with
    `section`.
    """
    levels = sorted({level for leaf in corpus.train for level in names_above(leaf)})
    for name in names:
        if name not in levels:
            raise ConfigError(f"{section}.{name}: no such domain{near_match(name, levels)}")
