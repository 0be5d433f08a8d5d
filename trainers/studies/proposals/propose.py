"""Propose the mixture with the lowest objective: the predicted metrics plus a penalty for distance from the
prior.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from trainers.studies.laws.law_set import LawSet
from trainers.studies.laws.single_thread import single_threaded
from trainers.studies.proposals.baselines import baseline_mixtures
from trainers.studies.proposals.constraints import MixtureConstraints, build_constraints
from trainers.studies.proposals.objective import MixtureObjective, minimise
from trainers.studies.proposals.proposal_settings import ProposalSettings
from trainers.studies.proposals.tie_set import TieSet

_RANDOM = 1000  # feasible mixtures that estimate how large the tie set is


@dataclass(frozen=True)
class ComparedMixture:
    """The mixture `ratios` [domains], compared with the proposal. `value` is the weighted mean of its
    predicted metrics. `difference` is how much that mean exceeds the proposal's, with the 95 % interval `low`
    to `high`. `tied` says whether the mixture is in the tie set, and `feasible` whether it satisfies the
    constraints.
    """

    name: str
    ratios: np.ndarray
    value: float
    difference: float
    low: float
    high: float
    tied: bool
    feasible: bool


@dataclass(frozen=True)
class Proposal:
    """A proposed mixture. `ratios` [domains] are the shares of the domains, and `value` is the weighted mean
    of the metrics predicted for them. `compared` contains the baselines and other mixtures that were compared
    with the proposal.

    `ranges` [domains, 2] holds the smallest and largest share of each domain within the tie set (see
    `TieSet`), and `tied_share` is the share of random feasible mixtures that lie in this set. `extrapolated`
    names the domains whose proposed share lies outside the range of the runs. `epochs` [domains] is how often
    the target run reads each domain, or None if the settings lack the token counts needed to compute it.
    """

    domains: tuple[str, ...]
    ratios: np.ndarray
    value: float
    ranges: np.ndarray
    tied_share: float
    extrapolated: tuple[str, ...]
    compared: tuple[ComparedMixture, ...]
    epochs: np.ndarray | None


@single_threaded()
def propose(
    laws: LawSet,
    runs: np.ndarray,
    settings: ProposalSettings,
    seed: int = 0,
    others: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Proposal:
    """Propose a mixture, given laws that were fitted to the mixtures `runs` [runs, domains] and to bootstrap
    draws. The proposal is compared with the baselines and the mixtures `others`, each [domains]. Raises
    ConfigError if the settings do not fit the laws, or if no mixture satisfies them.
    """
    constraints = build_constraints(
        laws.domains, settings.floors, settings.fixed, settings.tokens, settings.target_tokens, settings.epoch_caps
    )
    prior = settings.prior_of(laws.domains)
    objective = MixtureObjective(laws, settings.metric_weights(laws.metrics), settings.kl, prior)
    best = minimise(objective, constraints, seed)
    ties = TieSet(objective, best, residual_inflation(len(runs), len(laws.domains) + 1)).calibrate(constraints)
    sampled = constraints.sample(_RANDOM, seed)
    baselines = {**baseline_mixtures(settings, laws.domains), **others}
    epochs = None
    if settings.tokens and settings.target_tokens and set(laws.domains) <= set(settings.tokens):
        epochs = best * settings.target_tokens / np.array([max(1, settings.tokens[name]) for name in laws.domains])
    return Proposal(
        laws.domains,
        best,
        float(laws.predict(best[None], objective.weights)[0]),
        ties.ranges(constraints),
        float(ties.contains(sampled).mean()),
        tuple(name for name, far in zip(laws.domains, _outside(best, runs), strict=True) if far),
        tuple(_compared(name, mixture, ties, constraints) for name, mixture in baselines.items()),
        epochs,
    )


def _outside(ratios: np.ndarray, runs: np.ndarray) -> np.ndarray:
    return np.asarray((ratios < runs.min(axis=0) - 1e-6) | (ratios > runs.max(axis=0) + 1e-6))


def residual_inflation(runs: int, parameters: int) -> float:
    """Return the `inflation` of a `TieSet` for laws with `parameters` parameters, fitted to `runs` runs. It
    is at most 2.
    """
    return min(2.0, (1 - min(parameters, runs - 1) / runs) ** -0.5)


def _compared(name: str, ratios: np.ndarray, ties: TieSet, constraints: MixtureConstraints) -> ComparedMixture:
    laws, weights = ties.objective.laws, ties.objective.weights
    at = np.stack([ties.best, ratios])
    best, value = laws.predict(at, weights)
    drawn = laws.predict_resampled(at, weights)
    error = ties.inflation * float((drawn[:, 1] - drawn[:, 0]).std())
    difference = float(value - best)
    tied, feasible = bool(ties.contains(ratios[None])[0]), bool(constraints.contains(ratios[None])[0])
    interval = difference - 1.96 * error, difference + 1.96 * error
    return ComparedMixture(name, ratios, float(value), difference, *interval, tied, feasible)


def proposal_record(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as plain data for YAML. A run can use its `weights` as `data.weights`."""
    rounded = dict(zip(proposal.domains, np.round(proposal.ratios, 9).tolist(), strict=True))
    ranges = {name: np.round(pair, 6).tolist() for name, pair in zip(proposal.domains, proposal.ranges, strict=True)}
    record: dict[str, Any] = {
        "weights": rounded,
        "predicted": proposal.value,
        "tie_set": {"ranges": ranges, "share_of_feasible_mixtures": proposal.tied_share},
        "extrapolated": list(proposal.extrapolated),
        "baselines": {
            each.name: {
                "weights": dict(zip(proposal.domains, np.round(each.ratios, 9).tolist(), strict=True)),
                "predicted": each.value,
                "difference": each.difference,
                "interval": [each.low, each.high],
                "tied": each.tied,
                "feasible": each.feasible,
            }
            for each in proposal.compared
        },
    }
    if proposal.epochs is not None:
        record["epochs"] = dict(zip(proposal.domains, np.round(proposal.epochs, 6).tolist(), strict=True))
    return record


def parse_proposal(record: Mapping[str, Any]) -> Proposal:
    """Convert a record made by `proposal_record` back to a proposal. Raises KeyError if a required entry is
    missing.
    """
    shares = record.get("shares", record["weights"])
    domains = tuple(shares)

    def by_domain(values: Mapping[str, Any]) -> np.ndarray:
        return np.array([values[name] for name in domains], dtype=float)

    compared = [
        ComparedMixture(
            name,
            by_domain(each["weights"]),
            each["predicted"],
            each["difference"],
            each["interval"][0],
            each["interval"][1],
            each["tied"],
            each["feasible"],
        )
        for name, each in record["baselines"].items()
    ]
    return Proposal(
        domains,
        by_domain(shares),
        record["predicted"],
        by_domain(record["tie_set"]["ranges"]),
        record["tie_set"]["share_of_feasible_mixtures"],
        tuple(record["extrapolated"]),
        tuple(compared),
        by_domain(record["epochs"]) if "epochs" in record else None,
    )


def proposal_lines(proposal: Proposal) -> list[str]:
    """Return the proposal as lines for a terminal."""
    prior = next(each for each in proposal.compared if each.name == "prior")
    epochs = f"{'epochs':>8}" if proposal.epochs is not None else ""
    lines = [f"{'domain':32} {'proposed':>8} {'prior':>8} {'tied from':>9} {'to':>7} {epochs}"]
    for i, name in enumerate(proposal.domains):
        low, high = proposal.ranges[i]
        read = f"{proposal.epochs[i]:8.2f}" if proposal.epochs is not None else ""
        lines.append(
            f"{name[-32:]:32} {proposal.ratios[i]:8.2%} {prior.ratios[i]:8.2%} {low:9.2%} {high:7.2%} {read}".rstrip()
        )
    lines.append(f"predicted {proposal.value:.4f}; {proposal.tied_share:.1%} of random allowed mixtures tie with it")
    for each in proposal.compared:
        verdict = (
            "a tie" if each.tied else "worse" if each.difference > 0 else "better, but the prior's pull outweighs it"
        )
        outside = "" if each.feasible else ", outside the limits"
        lines.append(
            f"{each.name:12} predicted {each.value:.4f}, {each.difference:+.4f} ({each.low:+.4f} to {each.high:+.4f}): "
            f"{verdict}{outside}"
        )
    if proposal.extrapolated:
        lines.append(f"no run has such a share of {', '.join(proposal.extrapolated)}: the law extrapolates there")
    return lines
