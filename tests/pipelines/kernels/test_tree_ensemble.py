"""Ensembles of trees against a walk through the trees for one row at a time, with any number of rows."""

import numpy as np
import pytest

from pipelines.kernels.search.tree_ensemble import Trees, add_trees

COLUMNS = 4


def grown(rng, depth):
    """Return the nodes of a random tree, parents first. A node is (column, threshold, left, right, whether a
    missing value goes left, expected value).
    """
    nodes = []

    def grow(left):
        at = len(nodes)
        nodes.append(None)
        if left == 0 or (left < depth and rng.random() < 0.3):
            nodes[at] = (-1, 0.0, 0, 0, False, rng.normal())
        else:
            below = grow(left - 1), grow(left - 1)
            nodes[at] = (rng.integers(COLUMNS), rng.normal(), *below, rng.random() < 0.5, rng.normal())
        return at

    grow(depth)
    return nodes


def ensemble(rng, depths):
    roots, nodes = [], []
    for depth in depths:
        start = len(nodes)
        roots.append(start)
        nodes += [(c, t, left + start, right + start, m, e) for c, t, left, right, m, e in grown(rng, depth)]
    kinds = (np.int32, np.float64, np.int64, np.int64, np.bool_, np.float64)
    return Trees(np.array(roots, np.int64), *(np.array([n[at] for n in nodes], kind) for at, kind in enumerate(kinds)))


def walked(values, trees):
    results, changes = np.zeros(len(values)), np.zeros(values.shape)
    for root in trees.roots:
        for row, numbers in enumerate(values):
            node = root
            while trees.columns[node] >= 0:
                number = numbers[trees.columns[node]]
                left = trees.missing_left[node] if np.isnan(number) else number <= trees.thresholds[node]
                child = trees.lefts[node] if left else trees.rights[node]
                changes[row, trees.columns[node]] += trees.expected[child] - trees.expected[node]
                node = child
            results[row] += trees.expected[node]
    return results, changes


@pytest.mark.parametrize("depths", [(), (0,), (3,), (1, 0, 6, 4)], ids=str)
@pytest.mark.parametrize("rows", [*range(10), *range(126, 134), 260])
def test_each_row_reaches_its_leaves(depths, rows):
    rng = np.random.default_rng(rows)
    trees = ensemble(rng, depths)
    values = rng.normal(size=(rows, COLUMNS))
    values[rng.random(values.shape) < 0.2] = np.nan
    values[rng.random(values.shape) < 0.05] = np.inf
    results, changes = np.zeros(rows), np.zeros(values.shape)
    add_trees(values, trees, results, changes)
    expected = walked(values, trees)
    assert results.tolist() == expected[0].tolist()
    assert changes.tolist() == expected[1].tolist()
