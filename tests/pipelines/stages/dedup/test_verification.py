"""`verify` against a greedy election in plain Python over whole clusters: the same documents are kept,
however the work is divided.
"""

import itertools
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pipelines.stages.dedup.verification as verification
from pipelines.contracts.document import ID
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.dedup.grouping import DedupPolicy, cut_to_electorate
from tests.pipelines.stages.dedup.test_dedup import Bench, brute_force_clusters

BANDS, ROWS = 4, 2
KIND = pa.list_(pa.uint32(), BANDS * ROWS)


def similar(a, b):
    return np.float32((a == b).mean())


def elected(members, signatures, least, enough, electorate):
    """Return {member: its winner or None}, and the number of members kept beyond the electorate. `members`
    are in order of preference.
    """
    stay, winner, again = [], {}, []
    for place, i in enumerate(members):
        like = [j for j in stay if similar(signatures[i], signatures[j]) >= least]
        alone = enough == 1 and like[:1] == members[:1]  # like the first: it goes before the others elect
        if place and not alone:
            again.append(i)
        if len(again) > electorate and i in again[electorate:]:
            continue
        winner[i] = like[0] if len(like) >= enough else None
        if winner[i] is None:
            stay.append(i)
    beyond = 0
    for i in again[electorate:]:
        like = [j for j in stay if similar(signatures[i], signatures[j]) >= least]
        winner[i] = like[0] if len(like) >= enough else None
        beyond += winner[i] is None
    return winner, beyond


@pytest.mark.long
@settings(max_examples=8)
@given(st.data())
def test_the_documents_that_stay_are_those_of_a_greedy_election(tmp_path_factory, data):
    seed, count = data.draw(st.integers(0, 2**32)), data.draw(st.integers(2, 60))
    least = data.draw(st.sampled_from([0.4, 0.5, 0.75, 0.8, 1.0]))
    enough, electorate = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 3, 10_000]))
    rng = np.random.default_rng(seed)
    # Documents of a few families, each a copy of one before with some values of others: chains.
    signatures = rng.integers(0, 50, (count, BANDS * ROWS), dtype=np.uint32)
    for i in range(1, count):
        keep = rng.random(BANDS * ROWS) < 0.75
        signatures[i, keep] = signatures[rng.integers(0, i), keep]
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, count), max_size=4))), count]
    names = ["z", "z", "b", "b", "a"]  # in this order: the order of the sources decides before the ids
    bench = Bench(tmp_path_factory.mktemp("v"))
    parts = [
        bench.part(name, index, "minhash", signatures[low:high].tolist(), KIND, [None] * (high - low))
        for index, (name, (low, high)) in enumerate(zip(names, itertools.pairwise(cuts), strict=False))
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pipelines.cluster.shuffle.partitions_for.__defaults__", (data.draw(st.sampled_from([5, 4_000_000])),)
        )
        patch.setattr(verification, "_PARTITION_BYTES", data.draw(st.sampled_from([64, 1 << 28])))
        patch.setattr(verification, "ELECTORATE", electorate)
        stage = DedupMinhash(BANDS, ROWS, threshold=least, verify="signature", keep_up_to=enough)
        rows, facts = bench.run(stage, parts)
    sources = [
        name for name, (low, high) in zip(names, itertools.pairwise(cuts), strict=False) for _ in range(low, high)
    ]
    preference = sorted(range(count), key=lambda i: (names.index(sources[i]), rows[i]["id"]))
    groups = defaultdict(list)
    labels = brute_force_clusters(signatures, np.ones(count, bool), BANDS, ROWS)
    for i in preference:
        groups[labels[i]].append(i)
    unseen = 0
    for members in groups.values():
        winner, beyond = elected(members, signatures, np.float32(least), enough, electorate)
        unseen += beyond
        for i in members:
            assert (rows[i]["drop"] is None) == (winner[i] is None)
            goes_for = rows[i]["minhash_winner"]
            assert goes_for == (None if winner[i] is None else rows[winner[i]]["id"])
            if winner[i] is not None:
                assert rows[i]["minhash_similarity"] == similar(signatures[i], signatures[winner[i]])
            favoured = sum(goes == i for goes in winner.values())
            assert rows[i]["minhash_copies"] == (1 + favoured if winner[i] is None else None)
        if enough == 1 and not beyond:
            stay = [i for i in members if winner[i] is None]
            assert not any(
                similar(signatures[i], signatures[j]) >= np.float32(least) for i, j in itertools.combinations(stay, 2)
            )
    assert facts["not_all_compared"] == unseen
    assert facts["dropped"] == sum(row["drop"] is not None for row in rows)


def test_the_electorate_does_not_depend_on_how_the_documents_are_divided(monkeypatch):
    """Evidence of different sizes, as shingles are, and tables that are cut before all documents are read."""
    monkeypatch.setattr(verification, "ELECTORATE_BYTES", 400)
    rng, policy = np.random.default_rng(5), DedupPolicy("rule", pa.schema([]), sets=True)
    for _ in range(100):
        rows = [
            {
                "cluster": bytes([int(rng.integers(3))]) * 16,
                "standing": int(rng.integers(2)),
                "rank": 0,
                "id": bytes([int(number)]) * 16,
                "evidence": [0] * int(rng.integers(60)),
            }
            for number in rng.permutation(12)
        ]
        types = {"cluster": ID, "standing": pa.int8(), "rank": pa.int32(), "id": ID, "evidence": pa.list_(pa.uint32())}
        table = pa.Table.from_pylist(rows, schema=pa.schema(types.items()))
        divided = [table.slice(low, high - low) for low, high in itertools.pairwise((0, 3, 4, 9, 12))]
        few = cut_to_electorate(divided, lambda held: verification._cut(held, policy, 1), 1)
        whole = verification._cut(table, policy, 0)
        assert verification._cut(few, policy, 0)["id"].to_pylist() == whole["id"].to_pylist()
        for cluster in set(whole["cluster"].to_pylist()):
            own = whole.filter(pc.equal(whole["cluster"], pa.scalar(cluster, ID)))
            assert own.num_rows == 1 or sum(map(len, own["evidence"].to_pylist())) * 4 <= 400
