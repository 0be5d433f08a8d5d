"""The designs of a study: which runs it trains."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainers.config.architecture import require

MOST_RUNS = 10_000
"""The largest number of mixtures of a design, of seeds of an entry, and of anchors."""

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


def check_names(section: str, names: Mapping[str, Any] | tuple[str, ...]) -> None:
    """Raise ValueError unless the names are well formed and distinct."""
    for name in names:
        require(
            bool(_NAME.fullmatch(name)),
            f"{section}: got the name {name!r}, allowed are a letter or digit, then letters, digits and _ . + -",
        )
    twice = next((name for name in names if list(names).count(name) > 1), None)
    require(twice is None, f"{section}: the name {twice!r} occurs twice; name each entry once")


def check_weights(section: str, weights: Mapping[str, float]) -> None:
    """Raise ValueError unless the weights by domain are finite, 0 or more, and not all 0."""
    for name, weight in weights.items():
        require(0 <= weight < float("inf"), f"{section}.{name}: got {weight}, allowed 0 or more")
    require(sum(weights.values()) > 0, f"{section}: all are 0; give at least one domain a weight above 0")


@dataclass(frozen=True)
class Swarm:
    """A swarm of `runs` mixtures, drawn from Dirichlet distributions around a common centre. The centre is
    the prior with its shares raised to the power of `temperature` and normalised. A temperature below 1 gives
    small domains more than their prior share; the default, 0.5, is that of RegMix (Liu et al., 2024).

    The concentration parameter of a domain is its share in the centre, times the number of domains whose
    share is not fixed, times a strength. Successive draws cycle through `strengths`. With a uniform centre, a
    strength of 1 draws uniformly from all mixtures. Smaller strengths favour mixtures of few domains; larger
    ones stay near the centre.

    Mixtures are rejected if they lie outside the limits of the proposal (floors, fixed shares, epochs at the
    target) or at most `distance` away from an earlier mixture. The distance is half the sum of the absolute
    differences of shares. If almost all mixtures are rejected, those outside the limits are moved to the
    nearest mixture within them instead.
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
        require(self.seed >= 0, f"seed: got {self.seed}, allowed 0 or more")
        require(
            0 <= self.temperature <= 1, f"temperature: got {self.temperature}, allowed 0 (uniform) to 1 (the prior)"
        )
        require(bool(self.strengths), "strengths: are empty; give one or more, each above 0")
        for strength in self.strengths:
            require(0 < strength < float("inf"), f"strengths: got {strength}, allowed above 0")


@dataclass(frozen=True)
class Sobol:
    """A design of `runs` mixtures that cover all allowed mixtures evenly, regardless of the prior. Each is
    made from a point of a scrambled Sobol sequence (Sobol, 1967; Owen, 1995): every coordinate u is replaced
    by -log u, and the results are divided by their sum. The limits of the proposal and `distance` apply as in
    a swarm.
    """

    kind: Literal["sobol"] = "sobol"
    runs: int = 32
    distance: float = 0.02
    seed: int = 0

    def check(self) -> None:
        """Validate ranges."""
        _check_runs(self.runs)
        _check_distance(self.distance)
        require(self.seed >= 0, f"seed: got {self.seed}, allowed 0 or more")


@dataclass(frozen=True)
class Simplex:
    """A deterministic mixture design: the corners of the simplex of all mixtures, the midpoint of each pair
    of corners, and the centre. This is the simplex-centroid design (Scheffé, 1963) without the centroids of
    three or more corners, except the centre. Each point is moved to the nearest mixture within the limits of
    the proposal, and duplicates are removed.
    """

    kind: Literal["simplex"] = "simplex"


@dataclass(frozen=True)
class ListEntry:
    """An entry of a list design. `settings` sets fields of the job by dotted name, `weights` maps domains, at
    any level, to their weights in the mixture (default: the prior), and `recipe` replaces the study's recipe.
    `corpus` changes fields of `corpus_file` by dotted name; the study builds a corpus with these changes, and
    the entry reads it.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, float] | None = None
    recipe: str | None = None
    corpus: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Validate the weights."""
        if self.weights is not None:
            check_weights("weights", self.weights)


@dataclass(frozen=True)
class Listed:
    """A design of named `entries`, each trained with `seeds` seeds. `baseline` names the entry with which all
    others are compared.
    """

    entries: dict[str, ListEntry]
    baseline: str
    kind: Literal["list"] = "list"
    seeds: int = 3

    def check(self) -> None:
        """Validate the names of the entries, the baseline and the number of seeds."""
        check_names("entries", self.entries)
        require(len(self.entries) >= 2, f"entries: got {len(self.entries)}, allowed 2 or more")
        require(
            self.baseline in self.entries,
            f"baseline: got {self.baseline!r}, there are {', '.join(self.entries)}",
        )
        _check_seeds(self.seeds)


@dataclass(frozen=True)
class Grid:
    """Every combination of the values in `axes` and `corpus`, each trained with `seeds` seeds. `axes` maps
    each field of the job that varies to a list of values, and `corpus` does the same for fields of
    `corpus_file`. All combinations are compared with the first.
    """

    axes: dict[str, list[Any]] = field(default_factory=dict)
    corpus: dict[str, list[Any]] = field(default_factory=dict)
    kind: Literal["grid"] = "grid"
    seeds: int = 3

    def check(self) -> None:
        """Validate the axes and the number of seeds."""
        require(
            bool(self.axes or self.corpus),
            "axes: are empty; give a list of values for a field, such as model.layers: [2, 4]",
        )
        for section, axes in (("axes", self.axes), ("corpus", self.corpus)):
            for name, values in axes.items():
                require(
                    bool(values) and not any(itertools.starmap(_alike, itertools.combinations(values, 2))),
                    f"{section}.{name}: got {list(values)}, expected different values",
                )
        combinations = 1
        for values in (*self.axes.values(), *self.corpus.values()):
            combinations *= len(values)
        require(combinations >= 2, "axes: got 1 combination, allowed 2 or more; give another value")
        _check_seeds(self.seeds)


@dataclass(frozen=True)
class LeaveOneOut:
    """The prior, and for each domain the prior without that domain, each trained with `seeds` seeds. All are
    compared with the prior. Domains whose prior share is 0 or 1 are not removed.
    """

    kind: Literal["leave_one_out"] = "leave_one_out"
    seeds: int = 3

    def check(self) -> None:
        """Validate the number of seeds."""
        _check_seeds(self.seeds)


MixtureDesign = Swarm | Sobol | Simplex
Design = Swarm | Sobol | Simplex | Listed | Grid | LeaveOneOut


def _alike(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)  # 2 and 2.0, but not 1 and true


def _check_runs(runs: int) -> None:
    require(2 <= runs <= MOST_RUNS, f"runs: got {runs}, allowed 2 to {MOST_RUNS:,}")


def _check_distance(distance: float) -> None:
    require(0 <= distance < 1, f"distance: got {distance}, allowed 0 to below 1")


def _check_seeds(seeds: int) -> None:
    require(
        2 <= seeds <= MOST_RUNS,
        f"seeds: got {seeds}, allowed 2 to {MOST_RUNS:,}; one run does not show the noise",
    )
