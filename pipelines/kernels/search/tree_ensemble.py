"""Evaluate an ensemble of decision trees on rows of numbers, and attribute each result to the columns that
the trees test.

The trees are those of histogram-based gradient boosting, as scikit-learn grows them. At each node, a value
that is at most the threshold goes to the left, a larger one to the right, and a missing one (NaN) to the side
that the node specifies.

Attribution follows Saabas 2014, "Interpreting random forests". The expected value of a node is the mean value
of the leaves below it, weighted by their numbers of training documents. The change of the expected value from
a node to its child is attributed to the column that the node tests. For each row, the changes add up to the
sum of the values of the leaves that it reaches, minus the sum of the roots' expected values.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel


class Trees(NamedTuple):
    """Decision trees as arrays over the nodes of all trees: tree by tree, parents before children."""

    roots: np.ndarray  # int64 [trees]: the first node of each tree
    columns: np.ndarray  # int32 [nodes]: the column that a node asks; -1 in a leaf
    thresholds: np.ndarray  # float64 [nodes]
    lefts: np.ndarray  # int64 [nodes]
    rights: np.ndarray  # int64 [nodes]
    missing_left: np.ndarray  # bool [nodes]: whether a missing number goes to the left
    expected: np.ndarray  # float64 [nodes]: the value of a leaf, else the mean of the leaves below


_ROWS = 128  # rows per block: a tree, which all rows of a block ask before the next one, stays in the cache


@kernel(nogil=True)
def add_trees(values: np.ndarray, trees: Trees, results: np.ndarray, changes: np.ndarray) -> None:
    """Evaluate all trees on each row of `values`, float64 [n, columns]. Add the values of the leaves that the
    row reaches to the row's entry in `results`, float64 [n]. For each step from a node to its child, add the
    change in the expected value to the row's entry in `changes`, float64 [n, columns], in the column that the
    node tests.

    Four rows walk down a tree at a time, so that the processor can work on the others while one waits for its
    previous step.
    """
    inner, columns, children = _arrange(trees)
    missing, thresholds, expected = trees.missing_left, trees.thresholds, trees.expected
    for first in range(0, len(values), _ROWS):
        last = min(first + _ROWS, len(values))
        for tree in range(len(trees.roots)):
            root = np.uint32(trees.roots[tree])
            for row in range(first, last - 3, 4):
                a = b = c = d = root
                while inner[a] | inner[b] | inner[c] | inner[d]:
                    a = _step(a, columns, children, missing, thresholds, expected, values[row], changes[row])
                    b = _step(b, columns, children, missing, thresholds, expected, values[row + 1], changes[row + 1])
                    c = _step(c, columns, children, missing, thresholds, expected, values[row + 2], changes[row + 2])
                    d = _step(d, columns, children, missing, thresholds, expected, values[row + 3], changes[row + 3])
                for offset, leaf in enumerate((a, b, c, d)):
                    results[row + offset] += expected[leaf]
            for row in range(last - (last - first) % 4, last):
                a = root
                while inner[a]:
                    a = _step(a, columns, children, missing, thresholds, expected, values[row], changes[row])
                results[row] += expected[a]


@kernel()
def _arrange(trees: Trees) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three arrays: whether each node is an inner node, bool [nodes]; the column that it tests, 0 in a
    leaf, uint32 [nodes]; and its right and left children, uint32 [nodes, 2]. Both children of a leaf are the
    leaf itself.
    """
    count = len(trees.columns)
    inner, columns, children = np.zeros(count, np.bool_), np.zeros(count, np.uint32), np.zeros((count, 2), np.uint32)
    for node in range(count):
        inner[node] = trees.columns[node] >= 0
        children[node] = node
        if inner[node]:
            columns[node] = trees.columns[node]
            children[node, 0], children[node, 1] = trees.rights[node], trees.lefts[node]
    return inner, columns, children


@kernel(inline="always")
def _step(
    node: np.uint32,
    columns: np.ndarray,
    children: np.ndarray,
    missing: np.ndarray,
    thresholds: np.ndarray,
    expected: np.ndarray,
    values: np.ndarray,
    changes: np.ndarray,
) -> np.uint32:
    """Return the child of `node` to which a row's `values` lead. Add the change in the expected value, from
    the node to the child, to the entry of `changes` for the column that the node tests.
    """
    column = columns[node]
    value = values[column]
    # No number is at most NaN.
    left = (value <= thresholds[node]) | (np.isnan(value) & missing[node])
    child = children[node, np.uint8(left)]
    changes[column] += expected[child] - expected[node]
    return child
