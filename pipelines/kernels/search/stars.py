"""Union-find over numbered nodes: what each node is connected to, by the lowest node of its component."""

import numpy as np
from numba import njit


@njit(cache=True)
def _find(lowest: np.ndarray, node: int) -> int:
    while lowest[node] != node:
        lowest[node] = lowest[lowest[node]]
        node = lowest[node]
    return node


@njit(cache=True)
def _unite(first: np.ndarray, second: np.ndarray, lowest: np.ndarray) -> None:
    for k in range(len(first)):
        a, b = _find(lowest, first[k]), _find(lowest, second[k])
        if a < b:
            lowest[b] = a
        elif b < a:
            lowest[a] = b
    for node in range(len(lowest)):
        lowest[node] = lowest[lowest[node]]  # what a node points to is lower, so it points to its root by now


def lowest_connected(first: np.ndarray, second: np.ndarray, nodes: int) -> np.ndarray:
    """For each of `nodes` nodes the lowest node of its component, int64 [nodes]; edges are int64 [edges] each."""
    lowest = np.arange(nodes, dtype=np.int64)
    _unite(first, second, lowest)
    return lowest
