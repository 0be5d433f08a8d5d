"""Summaries merge exactly, and the facts of the funnel equal independent counts."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.edits import EDITS, edits_column
from pipelines.contracts.manifest import load_step
from pipelines.contracts.reads import TEXT
from pipelines.contracts.stage import PartStage
from pipelines.planning.corpus import StepConfig, load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan, summary_columns
from pipelines.stages.decide.filter import Filter
from pipelines.stages.decide.rules import Rule
from pipelines.stages.materialise.column_profile import (
    DROPPED_SAMPLES,
    KEPT,
    KEPT_SAMPLES,
    TEXT_BYTES,
    VALUE_LIMIT,
    Histogram,
    Sampled,
    Summary,
    bin_floors,
    bin_width,
    histogram,
)

WHOLE = st.integers(-(2**50), 2**50)
REAL = st.floats(-1e12, 1e12, allow_nan=False)


@given(st.lists(WHOLE, min_size=1))
def test_whole_numbers_lie_in_their_bins(values):
    for value, floor in zip(values, bin_floors(np.array(values)).tolist(), strict=True):
        assert floor <= value < floor + bin_width(floor, whole=True)
        assert bin_width(floor, whole=True) == 1 or bin_width(floor, whole=True) * 10 <= abs(value)
        if 0 <= value < 100:
            assert floor == value


@given(st.lists(REAL, min_size=1))
def test_real_numbers_fall_into_their_bins(values):
    for value, floor in zip(values, bin_floors(np.array(values)).tolist(), strict=True):
        width = bin_width(floor, whole=False)
        assert floor - 1e-9 * abs(value) <= value + 2e-4 * width
        assert value < floor + width * (1 + 1e-9) + 1e-9 * abs(value)
        assert width <= max(0.01, abs(value) / 9)
        assert math.copysign(1, floor) == 1 or floor < 0  # no -0.0, which would be a bin of its own


@pytest.mark.parametrize("bound", [0.01, 0.1, 0.3, 0.7, 0.8, 0.9, 1.0, 2.0, 3.0, 10.0, 50.0, 100_000.0])
def test_bounds_of_two_digits_begin_a_bin(bound):
    assert bin_floors(np.array([bound]))[0] == bound
    assert bin_floors(np.array([bound], np.float32))[0] == bound
    assert bin_floors(np.array([bound * (1 - 1e-3)]))[0] < bound


def test_bins_of_negative_numbers_mirror():
    assert bin_floors(np.array([-0.005, -3.25, -10.0, -123])).tolist() == [-0.01, -3.3, -10.0, -130.0]
    assert [bin_width(floor, whole=False) for floor in (-0.01, -3.3, -10.0, -130.0)] == [0.01, 0.1, 0.1, 10.0]


@given(st.lists(st.tuples(st.one_of(st.none(), REAL, st.just(math.nan)), st.booleans())), st.integers(0, 20))
def test_histograms_of_parts_add_up(rows, cut):
    column, kept = pa.array([value for value, _ in rows], pa.float64()), np.array([k for _, k in rows], bool)
    merged = Histogram(False)
    merged.add(histogram(column.slice(cut), kept[cut:]))
    merged.add(histogram(column.slice(0, cut), kept[:cut]))
    assert merged.facts() == histogram(column, kept).facts()
    finite = [value for value, _ in rows if value is not None and math.isfinite(value)]
    assert sum(all_ for all_, _ in merged.bins.values()) == len(finite)
    assert merged.missing == sum(value is None for value, _ in rows)
    assert merged.minimum == min(finite, default=None)


def test_tables_of_values_end_at_the_limit_in_any_order():
    tables = [{str(i): (1, 0) for i in range(n, n + VALUE_LIMIT // 2 + 1)} for n in (0, VALUE_LIMIT // 2)]
    for order in (tables, tables[::-1], [tables[0], {}, tables[1]]):
        summary = Summary()
        for table in order:
            summary.add(Summary(values={"column": dict(table)}))
        assert summary.values["column"] is None


def test_samples_are_the_lowest_hashes():
    everything = [Sampled(hash_, bytes([hash_]) * 16, 0, row) for row, hash_ in enumerate([9, 3, 7, 1, 8, 2, 6, 5, 4])]
    summary = Summary()
    for sampled in everything:
        summary.add(Summary(samples={KEPT: [sampled], ("step", "rule"): [sampled]}))
    assert [sampled.hash for sampled in summary.samples[KEPT]] == list(range(1, KEPT_SAMPLES + 1))
    assert [sampled.hash for sampled in summary.samples["step", "rule"]] == list(range(1, DROPPED_SAMPLES + 1))


@dataclass(frozen=True)
class Measure(PartStage):
    def reads(self):
        return (TEXT,)

    def writes(self):
        names = [("n_words", pa.int32()), ("e_ratio", pa.float32()), ("first", pa.string()), ("edits", EDITS)]
        return pa.schema([*names, ("even", pa.bool_()), ("shape", pa.list_(pa.int8()))])

    def annotate(self, docs):
        texts = docs["text"].to_pylist()
        columns = {
            "n_words": [len(text.split()) for text in texts],
            "e_ratio": [e_ratio(text) for text in texts],
            "first": [text.split()[0] for text in texts],
            "edits": edits_column([[(0, 7, "", "secret")] if text.startswith("secret ") else [] for text in texts]),
            "even": [len(text) % 2 == 0 for text in texts],
            "shape": [[1]] * len(texts),
        }
        return pa.table(columns, schema=self.writes())


def e_ratio(text):
    return None if text.endswith("!") else float(np.float32(text.count("e") / len(text)))


WORDS = ["the", "mill", "grinds", "secret", "corn", "every", "eve", "slowly"]
TEXTS = [" ".join(WORDS[(i * k) % 8] for k in range(1, 3 + i * i % 40)) + "!" * (i % 7 == 0) for i in range(90)]


def steps(at_least):
    rules = (Rule(signal="n_words", at_least=at_least), Rule(signal="e_ratio", at_most=0.2, name="too_many_e"))
    return (StepConfig("measure", Measure(), "measure"), StepConfig("filter", Filter(rules), "filter"))


def plan_of(tmp_path: Path, at_least: int = 5, part_bytes: int = 4000):
    (tmp_path / "raw").mkdir(exist_ok=True)
    (tmp_path / "raw/a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    path = tmp_path / "corpus.yaml"
    source = f"{{name: notes, root: {tmp_path}/raw, format: jsonl, part_bytes: {part_bytes}}}"
    path.write_text(f"name: small\noutput: {tmp_path}/out{part_bytes}\nsources: [{source}]\nsteps: [text_hash: {{}}]\n")
    config = replace(load_corpus_config(path), steps=steps(at_least))
    return make_plan(config, take_inventory(config.sources, config.place))


def facts_of(plan):
    build(plan, LocalCluster(), lambda line: None)
    manifest = load_step(plan.config.place, plan.step("funnel").directory)
    assert manifest is not None
    return manifest.facts


def test_facts_equal_counting_by_hand(tmp_path):
    facts = facts_of(plan_of(tmp_path))
    short = [text for text in TEXTS if len(text.split()) < 5]
    rest = [text for text in TEXTS if len(text.split()) >= 5]
    rich = [text for text in rest if e_ratio(text) is not None and e_ratio(text) > np.float32(0.2)]
    kept = [text for text in rest if text not in rich]
    assert short
    assert rich
    assert kept
    size = sum(len(text) for text in TEXTS)
    edited = size - 7 * sum(text.startswith("secret ") for text in TEXTS)
    left = sum(len(text) for text in kept) - 7 * sum(text.startswith("secret ") for text in kept)
    numbers = {"documents_in": 90, "documents_out": 90, "bytes_in": size, "bytes_out": edited}
    filtered = {"documents_in": 90, "documents_out": len(kept), "bytes_in": edited, "bytes_out": left}
    dropped = {"n_words": len(short), "too_many_e": len(rich)}
    assert facts["rows"] == [
        {"source": "notes", "step": "measure", "dropped": {}, **numbers},
        {"source": "notes", "step": "filter", "dropped": dropped, **filtered},
    ]
    found = facts["distributions"]["notes"]
    assert set(found) == {TEXT_BYTES, "n_words", "e_ratio"}
    words = [len(text.split()) for text in TEXTS]
    kept_words = [len(text.split()) for text in kept]
    assert found["n_words"]["bins"] == [[n, words.count(n), kept_words.count(n)] for n in sorted(set(words))]
    assert (found["n_words"]["minimum"], found["n_words"]["maximum"]) == (min(words), max(words))
    assert found["e_ratio"]["missing"] == sum(text.endswith("!") for text in TEXTS)
    assert sum(entry[2] for entry in found[TEXT_BYTES]["bins"]) == len(kept)
    first = [text.split()[0] for text in TEXTS]
    values = {value: n for value, n, _ in facts["values"]["notes"]["first"]}
    assert values == {value: first.count(value) for value in set(first)}
    assert sum(kept_ for _, _, kept_ in facts["values"]["notes"]["even"]) == len(kept)
    groups = [(entry["step"], entry["rule"]) for entry in facts["samples"]]
    assert groups == sorted(groups, key=lambda group: (group != (None, None), group[1] or ""))
    assert groups.count((None, None)) == KEPT_SAMPLES
    assert groups.count(("filter", "n_words")) == groups.count(("filter", "too_many_e")) == DROPPED_SAMPLES


def test_facts_do_not_depend_on_the_parts(tmp_path):
    def facts(part_bytes):
        found = facts_of(plan_of(tmp_path, part_bytes=part_bytes))
        assert found["distributions"]["notes"]["n_words"]["bins"]
        places = [{name: entry[name] for name in ("source", "step", "rule", "id")} for entry in found["samples"]]
        return {**found, "samples": places}

    assert facts(2000) == facts(1_000_000)


def test_a_changed_threshold_repeats_no_measurement(tmp_path):
    one, other = plan_of(tmp_path, at_least=5), plan_of(tmp_path, at_least=6)
    same = [step.label for step in one.steps if step.fingerprint == other.step(step.label).fingerprint]
    assert same == ["read.notes", "measure.notes"]


def test_columns_worth_summarising(tmp_path):
    config = plan_of(tmp_path).config
    assert summary_columns(config) == ("n_words", "e_ratio", "first", "even")
    twice = replace(config, steps=(*config.steps, StepConfig("again", Measure(), "measure")))
    assert summary_columns(twice) == ()
    elsewhere = StepConfig("again", Measure(), "measure", sources=("other",))
    assert summary_columns(replace(config, steps=(*config.steps, elsewhere)))
