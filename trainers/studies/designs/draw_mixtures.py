"""Draw the mixtures of a design within the limits that the study's proposal sets."""

from collections.abc import Iterator

import numpy as np

from gristmill.errors import ConfigError
from trainers.studies.proposals.constraints import MixtureConstraints
from trainers.studies.schema.study_designs import MixtureDesign, Sobol, Swarm

_DIGITS = 6
_ATTEMPTS = 2000  # consecutive draws that may be rejected before the search stops
_MOVED_ATTEMPTS = 100  # the same for draws that are moved to within the limits
_BLOCK = 256  # points of the Sobol sequence per call; a power of two


def draw_mixtures(design: MixtureDesign, prior: np.ndarray, constraints: MixtureConstraints) -> np.ndarray:
    """Return the mixtures of `design`, [mixtures, domains], rounded to six decimal places. They satisfy
    `constraints` to about that precision. Only a swarm uses `prior`, [domains]. The result is deterministic.

    Raises ConfigError if `constraints` leave fewer than two domains free to vary, or if too few mixtures are
    found within them.
    """
    if isinstance(design, Swarm):
        return _select(_dirichlet(design, prior, constraints), design.runs, design.distance, constraints)
    if isinstance(design, Sobol):
        return _select(_sobol(design, constraints), design.runs, design.distance, constraints)
    return _centroids(constraints)


def _dirichlet(design: Swarm, prior: np.ndarray, constraints: MixtureConstraints) -> Iterator[np.ndarray]:
    """Yield mixtures [domains]: the shares of the free domains are drawn from Dirichlet distributions around
    the prior, and fixed domains keep their share.
    """
    generator, number = np.random.default_rng(design.seed), 0
    free = constraints.upper > constraints.lower
    left = 1 - constraints.lower[~free].sum()
    centre = np.where(prior[free] > 0, prior[free] ** design.temperature, 0.0)
    centre = centre / centre.sum() if centre.sum() > 0 else np.full(free.sum(), 1 / free.sum())
    centre = np.maximum(centre, 1e-3 / len(centre))  # a domain with a prior of 0 is drawn too
    while True:
        strength = design.strengths[number % len(design.strengths)]
        mixture = constraints.lower.copy()
        mixture[free] = left * generator.dirichlet(strength * len(centre) * centre)
        yield mixture
        number += 1


def _sobol(design: Sobol, constraints: MixtureConstraints) -> Iterator[np.ndarray]:
    """Yield the points of a Sobol sequence as mixtures [domains]; fixed domains keep their share."""
    from scipy.stats.qmc import Sobol as Sequence

    free = constraints.upper > constraints.lower
    left, points = 1 - constraints.lower[~free].sum(), Sequence(int(free.sum()), seed=design.seed)
    while True:
        for point in points.random(_BLOCK):
            spacings = -np.log(np.clip(point, 1e-12, 1.0))
            mixture = constraints.lower.copy()
            mixture[free] = left * spacings / max(spacings.sum(), 1e-12)
            yield mixture


def _select(drawn: Iterator[np.ndarray], runs: int, distance: float, constraints: MixtureConstraints) -> np.ndarray:
    """Return the first `runs` mixtures of `drawn` that lie within the limits and are farther than `distance`
    (see `_is_near`) from all mixtures chosen before them, float64 [runs, domains]. Raises ConfigError if too
    few are found.

    If almost every draw is rejected, as happens with many or very small domains, later draws that lie outside
    the limits are moved to the nearest mixture within them.
    """
    _require_room(constraints)
    chosen, count = np.empty((runs, len(constraints.domains))), 0
    moved, attempts = False, 0
    for mixture in drawn:
        attempts += 1
        outside = moved and not constraints.contains(mixture[None])[0]
        rounded = _rounded(constraints.project(mixture) if outside else mixture)
        if constraints.contains(rounded[None], 1e-5)[0] and not _is_near(rounded, chosen[:count], distance):
            chosen[count] = rounded
            count += 1
        if count == runs:
            break
        if not moved and attempts > _ATTEMPTS * (count + 1):
            moved, attempts = True, 0
        if moved and attempts > _MOVED_ATTEMPTS * (count + 1):
            raise ConfigError(
                f"design: the limits of the proposal and design.distance ({distance:g}) allow {count} of {runs} "
                f"mixtures; ask for fewer runs, lower distance, or widen floors, fixed and max_epochs"
            )
    return chosen


def _is_near(mixture: np.ndarray, others: np.ndarray, distance: float) -> bool:
    """Return whether any of `others`, [mixtures, domains], is within `distance` of `mixture`, [domains]. The
    distance is half the sum of the absolute differences of shares.
    """
    column = int(mixture.argmax())  # no share differs by more than the distance, because both mixtures sum to 1
    close = others[np.abs(others[:, column] - mixture[column]) <= distance + 1e-9]
    return bool(len(close)) and float(np.abs(close - mixture).sum(axis=1).min() / 2) <= distance


def _centroids(constraints: MixtureConstraints) -> np.ndarray:
    """Return mixtures [mixtures, domains]: the corners of the simplex, the midpoints between two corners, and
    the centre, each moved to the nearest mixture within the limits. Duplicates are removed.
    """
    _require_room(constraints)
    corners = np.eye(len(constraints.domains))
    count = len(corners)
    middles = [(corners[i] + corners[j]) / 2 for i in range(count) for j in range(i + 1, count)]
    chosen: dict[bytes, np.ndarray] = {}
    for point in (*corners, *middles, np.full(count, 1 / count)):
        mixture = _rounded(constraints.project(point))
        chosen.setdefault(mixture.tobytes(), mixture)
    return np.stack(list(chosen.values()))


def _require_room(constraints: MixtureConstraints) -> None:
    free = int((constraints.upper > constraints.lower).sum())
    if free < 2:
        raise ConfigError(
            f"design: the limits leave {free} of {len(constraints.domains)} domains free; mixtures differ only if two "
            f"shares can move"
        )


def _rounded(mixture: np.ndarray) -> np.ndarray:
    """Return `mixture` rounded to six decimal places. The largest share absorbs the rounding error, so the
    sum is 1.
    """
    rounded = np.round(mixture, _DIGITS)
    largest = int(rounded.argmax())
    rounded[largest] = np.round(1 - (rounded.sum() - rounded[largest]), _DIGITS)
    return rounded
