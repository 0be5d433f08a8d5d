"""The designs of a study: which runs it trains."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainers.config.architecture import require

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


def check_names(section: str, names: Mapping[str, Any] | tuple[str, ...]) -> None:
    """Raise ValueError unless each name can be part of a row of a table, and occurs once."""
    for name in names:
        require(
            bool(_NAME.fullmatch(name)),
            f"{section}: got the name {name!r}, allowed are letters, digits and _ . + - after a letter or digit",
        )
    twice = next((name for name in names if list(names).count(name) > 1), None)
    require(twice is None, f"{section}: the name {twice!r} occurs twice; name each entry once")


def check_weights(section: str, weights: Mapping[str, float]) -> None:
    """Raise ValueError unless weights by domain are a mixture; only their proportions count."""
    for name, weight in weights.items():
        require(0 <= weight < float("inf"), f"{section}.{name}: got {weight}, allowed 0 or more")
    require(sum(weights.values()) > 0, f"{section}: all are 0; give at least one domain a weight above 0")


@dataclass(frozen=True)
class Swarm:
    """`runs` mixtures drawn around the prior from Dirichlet distributions. Their centre is the prior's shares to the power
    of `temperature`, normalised, so that small domains are tried too (.5 as in RegMix; Liu et al., 2024). Concentrations
    are the centre's shares times the number of domains times a strength, each of `strengths` in turn: a strength of 1
    around a uniform centre is uniform over all mixtures, smaller ones give corners, larger ones stay near the centre.

    Mixtures outside the limits of the proposal (floors, fixed shares, epochs at the target) are not drawn, nor are those
    that share more than 1 - `distance` of their tokens with an earlier one.
    """

    kind: Literal["swarm"] = "swarm"
    runs: int = 32
    strengths: tuple[float, ...] = (0.5, 1.0, 3.0)
    temperature: float = 0.5
    distance: float = 0.02
    seed: int = 0

    def check(self) -> None:
        """Validate ranges."""
        _check_runs(self.runs)
        _check_distance(self.distance)
        require(
            0 <= self.temperature <= 1, f"temperature: got {self.temperature}, allowed 0 (uniform) to 1 (the prior)"
        )
        require(bool(self.strengths), "strengths: are empty; give one or more, each above 0")
        for strength in self.strengths:
            require(0 < strength < float("inf"), f"strengths: got {strength}, allowed above 0")


@dataclass(frozen=True)
class Sobol:
    """`runs` mixtures that fill the allowed ones evenly, whatever the prior: points of a scrambled Sobol sequence (Sobol,
    1967; Owen, 1995), mapped to shares by spacings of exponential variables. Limits and `distance` are those of a swarm.
    """

    kind: Literal["sobol"] = "sobol"
    runs: int = 32
    distance: float = 0.02
    seed: int = 0

    def check(self) -> None:
        """Validate ranges."""
        _check_runs(self.runs)
        _check_distance(self.distance)


@dataclass(frozen=True)
class Simplex:
    """The corners of the allowed mixtures, the middles between any two, and the centre: the simplex-centroid design
    (Scheffé, 1963) up to pairs, moved into the limits of the proposal. It needs no random numbers.
    """

    kind: Literal["simplex"] = "simplex"


@dataclass(frozen=True)
class ListEntry:
    """A row of a list: `settings` are fields of the job by dotted name, `weights` its mixture (default: the prior)."""

    settings: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] | None = None
    recipe: str | None = None

    def check(self) -> None:
        """Validate the weights."""
        if self.weights is not None:
            check_weights("weights", self.weights)


@dataclass(frozen=True)
class Listed:
    """The named `entries`, each trained with `seeds` seeds. All are compared with `baseline`."""

    entries: dict[str, ListEntry]
    baseline: str
    kind: Literal["list"] = "list"
    seeds: int = 3

    def check(self) -> None:
        """Validate names and ranges."""
        check_names("entries", self.entries)
        require(len(self.entries) >= 2, f"entries: got {len(self.entries)}, allowed 2 or more")
        require(
            self.baseline in self.entries,
            f"baseline: got {self.baseline!r}, there are {', '.join(self.entries)}",
        )
        _check_seeds(self.seeds)


@dataclass(frozen=True)
class Grid:
    """Every combination of `axes`, lists of values by field of the job, each trained with `seeds` seeds. All are compared
    with the first combination.
    """

    axes: dict[str, list[Any]]
    kind: Literal["grid"] = "grid"
    seeds: int = 3

    def check(self) -> None:
        """Validate ranges."""
        require(bool(self.axes), "axes: are empty; give a list of values by field, such as model.layers: [2, 4]")
        for name, values in self.axes.items():
            require(
                bool(values) and len(set(map(repr, values))) == len(values),
                f"axes.{name}: got {list(values)}, expected different values",
            )
        combinations = 1
        for values in self.axes.values():
            combinations *= len(values)
        require(combinations >= 2, "axes: make one combination, which is compared with nothing; give another value")
        _check_seeds(self.seeds)


@dataclass(frozen=True)
class LeaveOneOut:
    """The prior, and for each domain the prior without it, each trained with `seeds` seeds. All are compared with the
    prior.
    """

    kind: Literal["leave_one_out"] = "leave_one_out"
    seeds: int = 3

    def check(self) -> None:
        """Validate ranges."""
        _check_seeds(self.seeds)


MixtureDesign = Swarm | Sobol | Simplex
Design = Swarm | Sobol | Simplex | Listed | Grid | LeaveOneOut


def _check_runs(runs: int) -> None:
    require(runs >= 2, f"runs: got {runs}, allowed 2 or more")


def _check_distance(distance: float) -> None:
    require(0 <= distance < 1, f"distance: got {distance}, allowed 0 to below 1")


def _check_seeds(seeds: int) -> None:
    require(seeds >= 2, f"seeds: got {seeds}, allowed 2 or more: one run says nothing about the noise")
