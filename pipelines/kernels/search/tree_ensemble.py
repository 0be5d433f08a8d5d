"""Evaluate an ensemble of decision trees over numbers, and attribute each result to the columns that the trees ask.

The trees are those of histogram-based gradient boosting, as scikit-learn grows them: a node sends a number that is at most
its threshold to the left, and a missing number (NaN) to the side that the node names.

Attribution follows Saabas 2014, "Interpreting random forests": every node has an expected value, the mean of the leaves below
it weighted by training documents, and the change from a node to its child belongs to the column that the node asks. The
changes of a document add up to its result minus the mean of the ensemble.
"""

from typing import NamedTuple

import numpy as np

from gristmill.compilation import kernel


class Trees(NamedTuple):
    """Trees as arrays over all nodes; the nodes of a tree follow one another, parents before children."""

    roots: np.ndarray  # int64 [trees]: the first node of each tree
    columns: np.ndarray  # int32 [nodes]: the column that a node asks; -1 in a leaf
    thresholds: np.ndarray  # float64 [nodes]
    lefts: np.ndarray  # int64 [nodes]
    rights: np.ndarray  # int64 [nodes]
    missing_left: np.ndarray  # bool [nodes]: whether a missing number goes to the left
    expected: np.ndarray  # float64 [nodes]: the value of a leaf, else the mean of the leaves below


_ROWS = 128  # evaluated together, so that a tree stays in the cache and the walks of neighbouring rows overlap


@kernel(nogil=True)
def add_trees(values: np.ndarray, trees: Trees, results: np.ndarray, changes: np.ndarray) -> None:
    """Add the leaves that each row of `values`, float64 [n, columns], reaches to `results`, float64 [n], tree by tree; and
    the changes on the way to `changes`, float64 [n, columns].
    """
    for first in range(0, len(values), _ROWS):
        last = min(first + _ROWS, len(values))
        for root in trees.roots:
            for row in range(first, last):
                node, column = root, trees.columns[root]
                while column >= 0:
                    value = values[row, column]
                    # No number is at most NaN.
                    left = (value <= trees.thresholds[node]) | (np.isnan(value) & trees.missing_left[node])
                    child = trees.lefts[node] if left else trees.rights[node]
                    changes[row, column] += trees.expected[child] - trees.expected[node]
                    node, column = child, trees.columns[child]
                results[row] += trees.expected[node]
