"""Compute the weight of each domain of a corpus from weights of names at any level, such as `web: 0.6,
web:science: 0.3`.

The leaves of a corpus are its sources or, where a source is split into groups, these groups. A name covers
the leaf of that name or all leaves below it, except those that a longer name covers: here, `web` covers all
of the source `web` outside `web:science`.
"""

from collections.abc import Iterable, Mapping

from gristmill.errors import ConfigError
from pipelines.contracts.shard_set import LEVEL


def names_above(leaf: str) -> list[str]:
    """Return the name of a domain followed by the names of the levels above it, such as `web:science`, `web`."""
    levels = leaf.split(LEVEL)
    return [LEVEL.join(levels[:count]) for count in range(len(levels), 0, -1)]


def assign_leaves(names: Iterable[str], leaves: Iterable[str], field: str) -> dict[str, list[str]]:
    """Map each of `names` to the sorted `leaves` that it covers. Leaves that no name covers are left out.
    Raises ConfigError, with a message that begins with `field`, for a name whose leaves all belong to longer
    names.
    """
    leaves_of: dict[str, list[str]] = {name: [] for name in names}
    for leaf in sorted(leaves):
        owner = next((name for name in names_above(leaf) if name in leaves_of), None)
        if owner is not None:
            leaves_of[owner].append(leaf)
    for name, assigned in leaves_of.items():
        longer = [other for other in leaves_of if other.startswith(f"{name}{LEVEL}")]
        if not assigned and longer:
            raise ConfigError(
                f"{field}.{name}: {', '.join(longer[:5])}{', ...' if len(longer) > 5 else ''} are all of its domains, so it "
                "stands for none; remove it or one of them"
            )
    return leaves_of


def share_weights(weights: Mapping[str, float], tokens: Mapping[str, int], field: str) -> dict[str, float]:
    """Return the weights of the leaves, sorted by name, without those of weight 0. The weight of a name is
    divided among its leaves in proportion to their `tokens`, which must be 1 or more.

    Raises ConfigError as `assign_leaves` does.
    """
    shared: dict[str, float] = {}
    for name, leaves in assign_leaves(weights, tokens, field).items():
        total = sum(tokens[leaf] for leaf in leaves)
        shared.update({leaf: float(weights[name]) * (tokens[leaf] / total) for leaf in leaves if weights[name] > 0})
    return dict(sorted(shared.items()))
