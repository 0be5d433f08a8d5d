"""Baselines that a proposal is compared with: prior, uniform, temperature sampling and UniMax."""

from collections.abc import Sequence

import numpy as np

from pipelines.contracts.mixtures import temperature, unimax
from trainers.studies.proposals.proposal_settings import ProposalSettings


def baseline_mixtures(settings: ProposalSettings, domains: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the baseline mixtures by name, each [domains]. `temperature` and `unimax` are included only if
    the settings have the tokens that they need. UniMax reads a domain at most `settings.max_epochs` times, or
    4 times if that is not one number for all domains.
    """
    mixtures = {"prior": settings.prior_of(domains), "uniform": np.full(len(domains), 1 / len(domains))}
    if settings.tokens and set(domains) <= set(settings.tokens):
        tokens = {name: settings.tokens[name] for name in domains}
        mixtures["temperature"] = _vector(temperature(tokens), domains)
        if settings.target_tokens:
            most = settings.max_epochs if isinstance(settings.max_epochs, int | float) else 4.0
            mixtures["unimax"] = _vector(unimax(tokens, settings.target_tokens, most), domains)
    return mixtures


def _vector(weights: dict[str, float], domains: Sequence[str]) -> np.ndarray:
    return np.array([weights[name] for name in domains])
