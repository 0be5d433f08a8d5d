"""Union-find over numbered nodes; a component is represented by its lowest node."""

import numpy as np

from gristmill.compilation import kernel


@kernel()
def _find(lowest: np.ndarray, node: int) -> int:
    while lowest[node] != node:
        lowest[node] = lowest[lowest[node]]
        node = lowest[node]
    return node


@kernel()
def _unite(first: np.ndarray, second: np.ndarray, lowest: np.ndarray) -> None:
    for k in range(len(first)):
        a, b = _find(lowest, first[k]), _find(lowest, second[k])
        if a < b:
            lowest[b] = a
        elif b < a:
            lowest[a] = b
    for node in range(len(lowest)):
        lowest[node] = lowest[lowest[node]]  # parents are lower, so each already points to its root


def lowest_connected(first: np.ndarray, second: np.ndarray, nodes: int) -> np.ndarray:
    """Return the lowest node of each node's component, int64 [nodes]; `first` and `second` are the edges,
    int64 [edges].
    """
    lowest = np.arange(nodes, dtype=np.int64)
    _unite(first, second, lowest)
    return lowest
