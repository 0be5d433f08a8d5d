"""Shuffles on disk, and the connected components computed through them, do not depend on how the work is
divided.
"""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import CorruptFileError
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.shuffle import gather_rows, scatter_rows
from pipelines.contracts.manifest import StepOutput
from pipelines.stages.dedup.components import bucket_links, find_components, scatter_edges, spanning_stars


def test_every_partition_gets_its_rows_in_order(tmp_path):
    out = StepOutput(tmp_path, "step")
    tables = [pa.table({"n": list(range(i, i + 10)), "t": [[i], None] * 5}) for i in (0, 100)]
    files = [out.write(f"{i}.arrow", scatter_rows(t, np.arange(10) % 3, 5)) for i, t in enumerate(tables)]
    for partition in range(5):
        rows = [row for table in tables for row in table.to_pylist() if row["n"] % 100 % 3 == partition]
        assert gather_rows(out.directory, files, partition).to_pylist() == rows


@pytest.mark.parametrize("place", [0, 5, 40, 300, -3, -20, None])
def test_a_changed_shuffle_file_is_noticed(tmp_path, place):
    out = StepOutput(tmp_path, "step")
    file = out.write("work/0.arrow", scatter_rows(pa.table({"n": list(range(100))}), np.zeros(100, np.int64), 1))
    path = out.directory / file.path
    data = bytearray(path.read_bytes())
    if place is None:
        del data[-7:]
    else:
        data[place] ^= 64
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match="is not what was written"):
        gather_rows(out.directory, [file], 0)


def brute_force(edges, nodes):
    lowest = list(range(nodes))
    changed = True
    while changed:
        changed = False
        for a, b in edges:
            least = min(lowest[a], lowest[b])
            changed = changed or lowest[a] != least or lowest[b] != least
            lowest[a] = lowest[b] = least
    return {node: least for node, least in enumerate(lowest) if lowest.count(least) > 1}


def contracted(tmp_path, shares, partitions, bounds):
    out = StepOutput(tmp_path, "step")
    files = []
    for number, share in enumerate(shares):
        first, second = (np.array([edge[i] for edge in share], np.int64) for i in (0, 1))
        content = scatter_edges(spanning_stars(first, second), partitions)
        files += [out.write(f"work/links-{number}.arrow", content)]
    total = sum(map(len, shares))
    found = find_components(out, files, total, partitions, bounds, LocalCluster(), "test")
    named = {}
    for place, low in enumerate(bounds):
        for row in gather_rows(out.directory, found, place).to_pylist():
            assert low <= row["node"] < [*bounds, 1 << 62][place + 1]
            assert named.setdefault(row["node"], row["lowest"]) == row["lowest"]
    return named


@pytest.mark.long
@settings(max_examples=40)
@given(st.data())
def test_components_are_those_of_the_links(tmp_path_factory, data):
    nodes = data.draw(st.integers(2, 40))
    ends = st.integers(0, nodes - 1)
    edges = data.draw(st.lists(st.tuples(ends, ends), max_size=60))
    shares = [edges[i::3] for i in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pipelines.cluster.shuffle.partitions_for.__defaults__", (data.draw(st.sampled_from([1, 7, 1000])),)
        )
        found = contracted(tmp_path_factory.mktemp("c"), shares, data.draw(st.integers(1, 4)), [0, nodes // 2, nodes])
    assert found == brute_force(edges, nodes)


@pytest.mark.long
@pytest.mark.parametrize("order", ["up", "down", "scrambled"])
def test_a_long_chain_is_one_component(tmp_path, monkeypatch, order):
    """A long chain whose links are spread over all shares is the worst case for the number of rounds."""
    monkeypatch.setattr("pipelines.cluster.shuffle.partitions_for.__defaults__", (50,))
    n = 3000
    names = {"up": np.arange(n), "down": np.arange(n)[::-1], "scrambled": np.random.default_rng(0).permutation(n)}[
        order
    ]
    edges = list(zip(names[:-1].tolist(), names[1:].tolist(), strict=True))
    found = contracted(tmp_path, [edges[i::7] for i in range(7)], 5, [0])
    assert found == dict.fromkeys(range(n), 0)
    assert len(list((tmp_path / "step" / "units").glob("stars-*-00000.json"))) <= 14  # about log2 of its length


def test_a_bucket_of_equal_keys_costs_one_link_less_than_members():
    keys = np.array([7] * 100_000 + [9, 8, 8], np.uint64)
    (high, _), distinct, _ = bucket_links(keys, np.arange(len(keys)))
    assert (len(high), distinct.tolist()) == (100_000, [7, 8, 9])
    assert [array.tolist() for array in bucket_links(keys[:0], np.zeros(0, np.int64))[1:]] == [[], []]
