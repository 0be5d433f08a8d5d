"""The settings of a proposal: its objective and its constraints."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gristmill.errors import ConfigError
from pipelines.contracts.mixtures import proportional


@dataclass(frozen=True)
class ProposalSettings:
    """The objective and the limits of a proposal. The proposal minimises the mean of the metrics, weighted by
    `weights`, plus `kl` times the Kullback-Leibler divergence, in nats, of the mixture from the prior. By
    default, all metrics have the same weight; in a study that measures several domains of a source, all
    sources have the same weight.

    - `prior` maps each domain to its share; only the proportions matter. By default, the prior is
      proportional to `tokens`.
    - `tokens` maps each domain to its number of tokens.
    - `target_tokens` is the token budget of the run that will use the mixture.
    - `floors` maps domains to minimum shares, and `fixed` maps domains to exact shares.
    - `max_epochs` is the maximum number of times that a domain is read, if `tokens` and `target_tokens` are
      known. It is one number for all domains, or a number for each domain that has a limit. The default is 4,
      because four epochs are almost as good as fresh data (Muennighoff et al., 2023).
    - `draws` is the number of bootstrap draws.

    In a study, `weights`, `prior`, `floors`, `fixed` and `max_epochs` may name domains at any level.
    """

    weights: dict[str, float] | None = None
    kl: float = 0.01
    prior: dict[str, float] | None = None
    tokens: dict[str, int] | None = None
    target_tokens: int | None = None
    max_epochs: float | dict[str, float] | None = 4.0
    floors: dict[str, float] = field(default_factory=dict)
    fixed: dict[str, float] = field(default_factory=dict)
    draws: int = 200

    def check(self) -> None:
        """Raise ValueError if a setting is out of range."""
        for section in ("weights", "prior", "floors", "fixed", "tokens"):
            values = getattr(self, section) or {}
            for name, value in values.items():
                if not 0 <= value < float("inf"):
                    raise ValueError(f"{section}.{name}: got {value}, allowed 0 or more")
            if section in ("weights", "prior", "tokens") and getattr(self, section) and not sum(values.values()) > 0:
                raise ValueError(f"{section}: all are 0; set at least one above 0")
        if not 0 <= self.kl < float("inf"):
            raise ValueError(f"kl: got {self.kl}, allowed 0 or more")
        if self.target_tokens is not None and self.target_tokens < 1:
            raise ValueError(f"target_tokens: got {self.target_tokens}, allowed 1 or more")
        if self.draws < 20:
            raise ValueError(f"draws: got {self.draws}, allowed 20 or more")
        caps = self.max_epochs if isinstance(self.max_epochs, dict) else {"": self.max_epochs}
        for name, cap in caps.items():
            if cap is not None and not cap > 0:
                raise ValueError(f"max_epochs{'.' if name else ''}{name}: got {cap}, allowed above 0")

    @property
    def epoch_caps(self) -> float | dict[str, float] | None:
        """`max_epochs` if both `tokens` and `target_tokens` are set, else None."""
        return self.max_epochs if self.tokens and self.target_tokens else None

    def prior_of(self, domains: Sequence[str]) -> np.ndarray:
        """Return the prior, [domains]; its shares sum to 1. Raises ConfigError unless the settings determine
        a prior of exactly these domains.
        """
        shares = self.prior or (proportional(self.tokens) if self.tokens else None)
        if shares is None:
            raise ConfigError("prior: missing; set `prior`, or set `tokens`, to which the prior is proportional")
        field_name = "prior" if self.prior else "tokens"
        for name in domains:
            if name not in shares:
                raise ConfigError(f"{field_name}.{name}: missing; set it for each domain of the runs")
        for name in shares:
            if name not in domains:
                raise ConfigError(f"{field_name}.{name}: no such domain; the runs have {', '.join(domains)}")
        prior = np.array([float(shares[name]) for name in domains])
        if prior.sum() <= 0:
            raise ConfigError(f"{field_name}: all are 0; set at least one above 0")
        return prior / prior.sum()

    def measured(self, metrics: Sequence[str]) -> "ProposalSettings":
        """Return the settings with only the weights of `metrics`, the metrics that have values. If no weights
        are set, return the settings unchanged.
        """
        weights = self.weights
        return self if weights is None else replace(self, weights={n: w for n, w in weights.items() if n in metrics})

    def metric_weights(self, metrics: Sequence[str]) -> np.ndarray:
        """Return the weights of `metrics`, [metrics], scaled to sum to 1; without `weights`, all are equal.
        Raises ConfigError if `weights` names a metric that is not in `metrics`, or if no metric has a weight
        above 0.
        """
        for name in self.weights or ():
            if name not in metrics:
                raise ConfigError(f"weights.{name}: no such metric; there are {', '.join(metrics)}")
        weights = np.array([1.0 if self.weights is None else self.weights.get(name, 0.0) for name in metrics])
        if not weights.sum() > 0:
            raise ConfigError(
                f"weights: no metric with a weight above 0 has a value; those with values: {', '.join(metrics) or 'none'}; "
                "give one of them a weight"
            )
        return weights / weights.sum()
