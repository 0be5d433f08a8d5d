"""Connected components in bounded memory, distributed over workers: star contraction over hash partitions on
disk.

Each task first reduces its own links to a spanning forest (`spanning_stars`). The forests are then contracted
in rounds of two shuffles. In the first, edges are partitioned by their higher end, and each partition turns
its edges into stars, each around the lowest node of its component in the partition. In the second, edges are
partitioned by node, and the higher neighbours of each node are linked to the lowest of the node and its
neighbours. These are the small-star and large-star operations of Kiveris et al. 2014, "Connected Components
in MapReduce and Beyond", SoCC, except that the small-star works on whole components of a partition. After
enough rounds, every component is a star around its lowest node, so the result depends on the links alone. If
all edges fit into one task, a single task finds the components without any rounds.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gristmill.storage.location import FileRecord
from pipelines.cluster.shuffle import FileList, partitions_for, scatter_rows, write_list
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.stage import Cluster, gather

Edges = tuple[np.ndarray, np.ndarray]
"""The higher ends and the lower ends of edges, int64 [edges] each."""
_BOUNDS = pa.schema([("first", pa.int64())])


def spanning_stars(first: np.ndarray, second: np.ndarray) -> Edges:
    """Return the connected components of the graph with edges (first[i], second[i]) as stars: one edge from
    each linked node to the lowest node of its component, and none from the lowest node itself.
    """
    nodes, indices = np.unique(np.concatenate([first, second]), return_inverse=True)
    lowest = nodes[_lowest_connected(indices[: len(first)], indices[len(first) :], len(nodes))]
    leaves = lowest != nodes
    return nodes[leaves], lowest[leaves]


def _lowest_connected(first: np.ndarray, second: np.ndarray, nodes: int) -> np.ndarray:
    """Return the lowest node of each node's component, int64 [nodes]. `first` and `second` are the ends of
    the links.
    """
    lowest = np.arange(nodes)
    while len(first):
        np.minimum.at(lowest, np.maximum(first, second), np.minimum(first, second))
        while not np.array_equal(above := lowest[lowest], lowest):
            lowest = above
        first, second = lowest[first], lowest[second]
        apart = first != second
        first, second = first[apart], second[apart]
    return lowest


def bucket_links(keys: np.ndarray, nodes: np.ndarray) -> tuple[Edges, np.ndarray, np.ndarray]:
    """Return links that chain together all nodes with the same key; the distinct keys, ascending; and one
    node for each of these keys.
    """
    order = np.argsort(keys)
    keys, nodes = keys[order], nodes[order]
    same = keys[1:] == keys[:-1]
    starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(keys)), bool), ~same]))
    return (nodes[1:][same], nodes[:-1][same]), keys[starts], nodes[starts]


def scatter_edges(edges: Edges, partitions: int) -> Callable[..., None] | bytes:
    """Return the content of a file of edges, partitioned by their higher ends."""
    high, low = edges
    return scatter_rows(pa.table({"high": high, "low": low}), _partition(high, partitions), partitions)


def _partition(nodes: np.ndarray, partitions: int) -> np.ndarray:
    return (nodes % partitions).astype(np.int64)


@dataclass(frozen=True)
class _Round:
    out: StepOutput
    files: FileList
    partitions: range
    of: int
    unit: str
    bounds: FileRecord | None = None

    def edges(self) -> pa.Table:
        return pa.concat_tables([self.files.gather_rows(p) for p in self.partitions])


def small_star(task: _Round) -> FileRecord:
    """Turn the edges of a partition into stars, commit each edge twice, once in the partition of each of its
    ends, and return the file.
    """
    receipt = task.out.receipt(task.unit)
    if receipt is None:
        table = task.edges()
        high, low = spanning_stars(table["high"].to_numpy(), table["low"].to_numpy())
        node, other = np.concatenate([high, low]), np.concatenate([low, high])
        both = pa.table({"node": node, "other": other})
        content = scatter_rows(both, _partition(node, task.of), task.of)
        receipt = task.out.commit(task.unit, {f"work/{task.unit}.arrow": content}, {})
    return receipt.files[0]


def large_star(task: _Round) -> tuple[FileRecord, int]:
    """Link the higher neighbours of each node in a partition to the lowest of the node and its neighbours,
    and commit these links. Returns the file, and the number of nodes that have both a lower neighbour and at
    least one other neighbour. If this number is 0 in every partition, every component is a star.
    """
    receipt = task.out.receipt(task.unit)
    if receipt is None:
        table = task.edges()
        node, other = table["node"].to_numpy(), table["other"].to_numpy()
        order = np.lexsort((other, node))
        node, other = node[order], other[order]
        fresh = np.ones(len(node), bool)
        fresh[1:] = (node[1:] != node[:-1]) | (other[1:] != other[:-1])
        node, other = node[fresh], other[fresh]
        starts = np.flatnonzero(np.concatenate([np.ones(min(1, len(node)), bool), node[1:] != node[:-1]]))
        sizes = np.diff(np.append(starts, len(node)))
        lowest_neighbour = other[starts]
        # In a star, a node has either a single lower neighbour or only higher neighbours.
        unsettled = int(((lowest_neighbour < node[starts]) & (sizes > 1)).sum())
        lowest = np.repeat(np.minimum(lowest_neighbour, node[starts]), sizes)
        higher = other > node
        content = scatter_edges((other[higher], lowest[higher]), task.of)
        receipt = task.out.commit(task.unit, {f"work/{task.unit}.arrow": content}, {"unsettled": unsettled})
    return receipt.files[0], receipt.counts["unsettled"]


def name_components(task: _Round) -> FileRecord:
    """Commit each linked node in the task's partitions with the lowest node of its component, grouped by the
    ranges of nodes that begin at `bounds`. Unless the edges already form stars, the task must cover all
    partitions.
    """
    receipt = task.out.receipt(task.unit)
    if receipt is None:
        table = task.edges()
        node, lowest = spanning_stars(table["high"].to_numpy(), table["low"].to_numpy())
        centres = np.unique(lowest)
        node, lowest = np.concatenate([node, centres]), np.concatenate([lowest, centres])
        assert task.bounds is not None
        bounds = read_table(task.out.directory, task.bounds, _BOUNDS.names, schema_facts(_BOUNDS))["first"].to_numpy()
        owner = np.searchsorted(bounds, node, side="right") - 1
        named = pa.table({"node": node, "lowest": lowest})
        content = scatter_rows(named, owner, len(bounds))
        receipt = task.out.commit(task.unit, {f"work/{task.unit}.arrow": content}, {})
    return receipt.files[0]


def find_components(
    out: StepOutput,
    files: Sequence[FileRecord],
    edges: int,
    partitions: int,
    bounds: Sequence[int],
    cluster: Cluster,
    rule: str,
) -> list[FileRecord]:
    """Find the connected components of the edges in `files`, which `scatter_edges` divided into `partitions`.
    `edges` is the total number of edges.

    The returned files are grouped by ranges of nodes: range i begins at bounds[i] (ascending, the first is 0)
    and lists every linked node in the range (`node`) with the lowest node of its component (`lowest`). The
    lowest node itself may be listed more than once.
    """

    def over(step: str, before: str, files: Sequence[FileRecord]) -> list[_Round]:
        listed = write_list(out, before, files)
        return [_Round(out, listed, range(p, p + 1), partitions, f"{step}.{p:05d}") for p in range(partitions)]

    def label(task: _Round) -> str:
        return f"{rule}: {task.unit}"

    number, before = 0, "links"
    while partitions_for(edges) > 1:
        star, hand = f"stars-{number}", f"handed-{number}"
        stars = gather(cluster, small_star, over(star, before, files), label)
        handed = gather(cluster, large_star, over(hand, star, stars), label)
        before = hand
        files = [record for record, _ in handed]
        if not sum(unsettled for _, unsettled in handed):
            break
        number += 1
    step = 1 if partitions_for(edges) > 1 else partitions
    shares = [range(p, p + step) for p in range(0, partitions, step)]
    listed = write_list(out, before, files)
    receipt = out.receipt("bounds")
    if receipt is None:
        table = pa.table([pa.array(bounds, pa.int64())], schema=_BOUNDS)
        receipt = out.commit("bounds", {"work/bounds.arrow": write_table(table)}, {})
    (limits,) = receipt.files
    tasks = [_Round(out, listed, share, partitions, f"components.{i:05d}", limits) for i, share in enumerate(shares)]
    return gather(cluster, name_components, tasks, label)
