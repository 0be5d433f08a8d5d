"""The constraints on proposed mixtures: shares sum to 1, and each domain has a minimum and a maximum share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gristmill.errors import ConfigError

TOLERANCE = 1e-9
_CHAINS = 50  # of hit-and-run, in parallel
_THINNING = 20  # steps between two samples of a chain; times the number of domains, also before the first


@dataclass(frozen=True)
class MixtureConstraints:
    """The set of mixtures whose shares sum to 1 and lie between `lower` and `upper`, inclusive. Both bounds
    are [domains], in the order of `domains`.
    """

    domains: tuple[str, ...]
    lower: np.ndarray
    upper: np.ndarray

    def contains(self, ratios: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
        """Return whether each of the mixtures `ratios` [mixtures, domains] satisfies the constraints, bool
        [mixtures].
        """
        inside = (ratios >= self.lower - tolerance) & (ratios <= self.upper + tolerance)
        return inside.all(axis=1) & (np.abs(ratios.sum(axis=1) - 1) <= tolerance)

    def project(self, ratios: np.ndarray) -> np.ndarray:
        """Return the mixture within the constraints that is nearest to `ratios` [domains] (Euclidean
        projection).
        """
        low, high = float((self.lower - ratios).min()) - 1, float((self.upper - ratios).max()) + 1
        for _ in range(200):
            middle = (low + high) / 2
            if np.clip(ratios + middle, self.lower, self.upper).sum() < 1:
                low = middle
            else:
                high = middle
        return np.clip(ratios + (low + high) / 2, self.lower, self.upper)

    def sample(self, count: int, seed: int = 0) -> np.ndarray:
        """Return `count` mixtures drawn approximately uniformly within the constraints by hit-and-run (Smith,
        1984), [count, domains].
        """
        generator = np.random.default_rng(seed)
        free = np.flatnonzero(self.upper - self.lower > TOLERANCE)
        start = self.project(np.full(len(self.domains), 1 / len(self.domains)))
        mixtures = np.repeat(start[None], count, axis=0)
        if len(free) < 2:
            return mixtures
        at, lower, upper = np.repeat(start[None, free], _CHAINS, axis=0), self.lower[free], self.upper[free]
        kept: list[np.ndarray] = []
        first = _THINNING * len(free)
        for step in range(first + _THINNING * -(-count // _CHAINS)):
            direction = generator.normal(size=at.shape)
            direction -= direction.mean(axis=1, keepdims=True)
            low, high = (lower - at) / direction, (upper - at) / direction
            least, most = np.minimum(low, high).max(axis=1), np.maximum(low, high).min(axis=1)
            moves = least + generator.random(_CHAINS) * np.maximum(most - least, 0.0)
            at = np.clip(at + moves[:, None] * direction, lower, upper)
            if step >= first and (step - first) % _THINNING == 0:
                kept.append(at)
        mixtures[:, free] = np.concatenate(kept)[:count]
        return mixtures / mixtures.sum(axis=1, keepdims=True)


def build_constraints(
    domains: Sequence[str],
    floors: Mapping[str, float],
    fixed: Mapping[str, float],
    tokens: Mapping[str, int] | None = None,
    target_tokens: int | None = None,
    max_epochs: float | Mapping[str, float] | None = None,
) -> MixtureConstraints:
    """Return the constraints that `floors` (minimum shares), `fixed` (exact shares) and `max_epochs` (caps)
    put on mixtures of `domains`. A capped domain contributes at most `max_epochs` times its `tokens` to the
    `target_tokens` of the run. If `max_epochs` is a mapping, domains that it does not name have no cap.

    Raises ConfigError for an unknown domain, for a cap without the token counts that it needs, or if no
    mixture satisfies all constraints.
    """
    caps = max_epochs if isinstance(max_epochs, Mapping) else dict.fromkeys(domains, max_epochs)
    sections = {"floors": floors, "fixed": fixed, "max_epochs": caps if max_epochs is not None else {}}
    for section, names in (*sections.items(), ("tokens", tokens or {})):
        if unknown := sorted(set(names) - set(domains)):
            raise ConfigError(f"{section}.{unknown[0]}: no such domain; the runs have {', '.join(domains)}")
    lower = np.array([fixed.get(name, floors.get(name, 0.0)) for name in domains])
    upper = np.array([fixed.get(name, 1.0) for name in domains])
    if max_epochs is not None:
        if tokens is None or target_tokens is None:
            raise ConfigError(
                "max_epochs: a cap in epochs needs `tokens` of the domains and `target_tokens` of the run"
            )
        for i, name in enumerate(domains):
            if caps.get(name) is not None:
                if name not in tokens:
                    raise ConfigError(f"tokens.{name}: missing; a cap in epochs needs the tokens of the domain")
                cap = float(caps[name]) * tokens[name] / target_tokens  # type: ignore[arg-type]
                if lower[i] > cap:
                    field = "fixed" if name in fixed else "floors"
                    raise ConfigError(
                        f"{field}.{name}: got {lower[i]:g}, {caps[name]:g} epochs allow {cap:.4g} at most"
                    )
                upper[i] = min(upper[i], cap)
    if lower.sum() > 1 + TOLERANCE:
        raise ConfigError(f"floors: with the fixed shares they sum to {lower.sum():.4g}, allowed at most 1")
    if upper.sum() < 1 - TOLERANCE:
        raise ConfigError(
            f"max_epochs: all domains together provide at most {upper.sum():.4g} of {target_tokens or 0:,} tokens; "
            f"raise the caps, lower target_tokens or add data"
        )
    return MixtureConstraints(tuple(domains), lower, upper)
