"""Shrinking: find a minimal list of decisions with which a run still fails."""

from collections.abc import Callable, Sequence

from tests.schedules.scheduler import Decision

Fails = Callable[[Sequence[Decision]], Sequence[Decision] | None]
"""Runs with these decisions; if that fails as before, the decisions that could be followed, otherwise None."""


def shrink(record: Sequence[Decision], fails: Fails, tries: int = 2000) -> list[Decision]:
    """Return the shortest record found that still fails, using at most `tries` runs.

    Decisions are left out in ever smaller pieces, later ones first (ddmin; Zeller and Hildebrandt 2002). Each
    decision is tied to an operation of an agent, so leaving one out does not move the others.
    """
    best, pieces, left = list(record), 2, tries
    while best and left > 0:
        size = max(1, -(-len(best) // pieces))
        for start in range((len(best) - 1) // size * size, -1, -size):
            left -= 1
            followed = fails(best[:start] + best[start + size :])
            if followed is not None and len(followed) < len(best):
                best, pieces = list(followed), max(2, pieces - 1)
                break
            if left <= 0:
                break
        else:
            if size == 1:
                break
            pieces = min(len(best), pieces * 2)
    return best
