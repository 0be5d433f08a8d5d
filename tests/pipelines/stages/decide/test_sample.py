"""Samples: plain shares depend only on seed and id. All other samples equal those of an oracle, for any
number of parts and ranges and any order of tasks.
"""

import json
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.stages.decide import sample_limits
from pipelines.stages.decide.pareto_sampling import ParetoSampling
from pipelines.stages.decide.sample import UniformSample
from pipelines.stages.decide.uniform_numbers import uniform_numbers
from tests.pipelines.scored_corpora import build_corpus, plan_corpus, rows_of

COUNT = 20_000
IDS = pa.chunked_array([pa.array([row.to_bytes(16) for row in range(COUNT)], pa.binary(16))])
FIELDS = "record_fields: {columns: {host: {field: host, type: string}, size: {field: size, type: int}}}"
FILTER = "filter: [{signal: size, at_most: 90}]"


def chosen(share, seed=0, ids=IDS):
    return uniform_numbers(ids, seed, b"sample") < share


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two sources. One host has most of the documents, many hosts have only a few, and some documents have no
    host or no size.
    """
    root, random = tmp_path_factory.mktemp("sampled"), np.random.default_rng(3)
    for name, count in (("ref", 90), ("web", 210)):
        rows = []
        for number in range(count):
            host = random.choice(["large", "large", "large", "middle", f"small{random.integers(40)}"])
            record = {"text": f"document {number} of {name}", "host": host, "size": int(random.integers(0, 100))}
            for field in ("host", "size"):
                if random.random() < 0.1:
                    del record[field]
            rows.append(record)
        (root / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return root


def sampled(folder, name, knobs, part_bytes=4000, cluster=None):
    plan = plan_corpus(folder, name, [FIELDS, FILTER, f"sample: {json.dumps(knobs)}"], part_bytes=part_bytes)
    return rows_of(build_corpus(plan, cluster), ("id", "drop", "host", "size", "source"))


def expected(rows, share=None, documents=None, total=None, per=(), seed=0):
    groups = {}
    for name, row in rows.items():
        if row["drop"] != "size":
            groups.setdefault(tuple(row[column] for column in per), []).append((name, row))
    kept = set()
    for members in groups.values():
        members.sort(key=lambda each: (xxhash.xxh3_64_intdigest(each[1]["id"] + b"sample", seed), each[1]["id"]))
        most = documents if share is None else math.ceil(Fraction(str(share)) * len(members))
        if total:
            sums = np.cumsum([row[column] or 0 for column in total for _, row in members])
            most = (
                int((sums <= next(iter(total.values()))).argmin())
                if sums[-1] > next(iter(total.values()))
                else len(sums)
            )
        kept |= {name for name, _ in members[:most]}
    return kept


CASES = {
    "documents": {"documents": 37},
    "seed": {"documents": 37, "seed": 5},
    "cap": {"documents": 4, "per": ["host"]},
    "strata": {"share": 0.1, "per": ["source", "host"]},
    "total": {"total": {"size": 1500}},
    "total of groups": {"total": {"size": 130}, "per": ["source"]},
    "everything": {"documents": 1000},
}


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_samples_are_those_of_the_oracle(folder, monkeypatch, case):
    """The sample equals the oracle's, and does not change with other parts, many ranges and another order of
    tasks.
    """
    rows = sampled(folder, f"{case[:4]}a{len(case)}", CASES[case])
    kept = {name for name, row in rows.items() if row["drop"] is None}
    assert kept == expected(rows, **CASES[case])
    assert Counter(row["drop"] for row in rows.values())["sample"] == len(rows) - len(kept) - sum(
        row["drop"] == "size" for row in rows.values()
    )
    monkeypatch.setattr(sample_limits, "ROWS_PER_RANGE", 23)
    assert sampled(folder, f"{case[:4]}b{len(case)}", CASES[case], 7000, Backwards()) == rows


@pytest.mark.long
def test_caps_hold(folder):
    """Hosts with fewer documents than the cap keep all of them; documents without a host form one group."""
    rows = sampled(folder, "caps", CASES["cap"])
    alive = Counter(row["host"] for row in rows.values() if row["drop"] != "size")
    kept = Counter(row["host"] for row in rows.values() if row["drop"] is None)
    assert kept == {host: min(count, 4) for host, count in alive.items()}
    assert kept[None] == kept["large"] == 4
    assert len(kept) > 10


@pytest.mark.long
def test_a_smaller_sample_is_part_of_a_larger_one(folder):
    small, large = (
        {name for name, row in sampled(folder, f"nested{n}", {"documents": n}).items() if row["drop"] is None}
        for n in (20, 50)
    )
    assert small < large
    assert (len(small), len(large)) == (20, 50)


class Backwards(LocalCluster):
    def map(self, function, items, label):
        for position, result in super().map(function, items[::-1], label):
            yield len(items) - 1 - position, result


@pytest.mark.long
def test_a_killed_sample_goes_on(folder, monkeypatch):
    monkeypatch.setattr(sample_limits, "ROWS_PER_RANGE", 100)
    whole = sampled(folder, "whole", CASES["cap"])

    class Killed(LocalCluster):
        left = 0

        def map(self, function, items, label):
            def killed(item):
                if function.__module__.startswith("pipelines.stages.decide.sample"):
                    self.left -= 1
                    if self.left < 0:
                        raise KeyboardInterrupt
                return function(item)

            yield from super().map(killed, items, label)

    kills = 0
    for most in range(3, 300, 9):  # tasks after which the build is killed
        cluster = Killed()
        cluster.left = most
        try:
            assert sampled(folder, "killed", CASES["cap"], 5000, cluster) == whole
            break
        except KeyboardInterrupt:
            kills += 1
    assert 3 <= kills < 30


@pytest.mark.long
def test_a_plain_share_chooses_every_document_by_itself(folder):
    rows = sampled(folder, "plain", {"share": 0.3})
    ids = pa.chunked_array([pa.array([row["id"] for row in rows.values()], pa.binary(16))])
    for row, keep in zip(rows.values(), chosen(0.3, ids=ids), strict=True):
        assert row["drop"] == ("size" if row["drop"] == "size" else None if keep else "sample")


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9])
def test_the_share_is_kept(share):
    assert chosen(share).mean() == pytest.approx(share, abs=4 * (share * (1 - share) / COUNT) ** 0.5)


def test_a_sample_is_independent_of_pareto_sampling():
    """With the same seed, Pareto sampling keeps the same share inside the sample as overall."""
    docs = pa.table({"id": IDS, "quality": np.full(COUNT, 0.5, np.float32)})
    pareto = ParetoSampling("quality", alpha=1.0).annotate(docs)["drop"].is_null().to_numpy()
    assert pareto[chosen(0.3)].mean() == pytest.approx(pareto.mean(), abs=0.03)


def test_golden():
    """The choices for seed 0 are fixed, so that a change of the hash is noticed."""
    assert np.flatnonzero(chosen(0.05, ids=IDS[:145])).tolist() == [1, 25, 57, 76, 108, 121, 124, 134, 140, 141, 142]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"share": 0}, "share: got 0"),
        ({"share": 1.1}, "share: got 1.1"),
        ({"share": 0.5, "seed": -1}, "seed: got -1"),
        ({}, "share: got no limit, expected one of `share`, `documents` and `total`"),
        ({"share": 0.5, "documents": 3}, "share: got share and documents, expected one"),
        ({"documents": 0}, "documents: got 0"),
        ({"total": {"size": 0}}, "total.size: got 0"),
        ({"total": {"size": 1, "host": 2}}, "total: got size, host, expected one column"),
    ],
)
def test_bad_knobs_are_named(knobs, message):
    with pytest.raises(UserError, match=message):
        parse(UniformSample, knobs, "x")


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"total": {"host": 9}}, "sample: total.host: the column holds string, expected whole numbers"),
        ({"documents": 9, "per": ["langs"]}, "reads the column 'langs', which no earlier step writes"),
    ],
)
def test_bad_columns_are_refused_by_the_plan(folder, knobs, message):
    with pytest.raises(UserError, match=message):
        plan_corpus(folder, "columns", [FIELDS, f"sample: {json.dumps(knobs)}"])


def test_hashes_are_no_groups(folder):
    steps = ["text_hash: {}", "sample: {documents: 9, per: [text_hash]}"]
    with pytest.raises(UserError, match=r"sample: per: text_hash holds fixed_size_binary\[16\]"):
        plan_corpus(folder, "hashes", steps)


def test_a_negative_number_is_refused(tmp_path):
    for name in ("ref", "web"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a document", "size": -1}\n')
    with pytest.raises(UserError, match=r"total.size: a document of part ref/00000 has a negative number"):
        sampled(tmp_path, "negative", {"total": {"size": 10}})


def test_a_total_may_be_written_as_a_number_of_tokens_is(tmp_path):
    (tmp_path / "x.yaml").write_text(
        f"name: x\noutput: {tmp_path}/x\nsources: [{{name: web, root: {tmp_path}, format: text}}]\n"
        "steps: [{quality_signals: {}}, {sample: {total: {n_bytes: 4e9}}}]\n"
    )
    assert load_corpus_config(tmp_path / "x.yaml").steps[1].stage.total == {"n_bytes": 4_000_000_000}
