"""Forecasts of a build: the rates of finished steps are applied to the text of the steps to run."""

import pytest

from gristmill.storage.store import read_json, write_json
from gristmill.terminal import human_seconds
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.cluster.memory import measured
from pipelines.commands.show_plan import show_plan
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.forecast import forecast
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan


def plan_of(path, *overrides):
    config = load_corpus_config(path, overrides)
    return make_plan(config, take_inventory(config.sources, config.place))


@pytest.fixture
def built(built_corpus_file, tmp_path):
    """A finished build with recorded times that are easy to compute with: one second per kB of text that a
    step reads.
    """
    for path in (tmp_path / "out").glob("*/run.json"):
        run = read_json(path)
        write_json(
            path, run | {"seconds": run["text_bytes"] / 1000, "workers": 4, "peak_bytes": 500_000_000, "finished": 1.0}
        )
    return tmp_path / "out"


def test_steps_that_take_more_memory_than_a_worker_has_are_named(corpus_file, built, capsys):
    from pipelines.__main__ import main

    changed = ["plan", str(corpus_file), "steps.filter=[{signal: word_count, at_least: 9}]"]
    assert main([*changed, "--memory-per-worker", "400MB"]) == 0
    said = capsys.readouterr().out
    assert "more memory than the 400.0 MB of a worker: filter.web" in said
    assert "quality_signals.web" not in said.partition("of a worker:")[2], "it is finished"
    assert main([*changed, "--memory-per-worker", "500MB"]) == 0
    assert "of a worker:" not in capsys.readouterr().out
    assert main([*changed, "--memory-per-worker", "much"]) == 2
    assert capsys.readouterr().err == (
        "error: --memory-per-worker: got 'much', expected a size, such as 4GB or 512MiB\n"
    )


@pytest.mark.long
def test_a_build_keeps_what_estimates_need(corpus_file, tmp_path):
    build(plan_of(corpus_file), LocalCluster(), lambda line: None)
    runs = {path.parent.name.rpartition("-")[0]: read_json(path) for path in (tmp_path / "out").glob("*/run.json")}
    assert all(run["peak_bytes"] > 20 << 20 for run in runs.values() if run["peak_bytes"])
    assert runs["quality_signals.web"]["peak_bytes"] > 0
    assert runs["read.web"]["input_bytes"] == sum(f.stat().st_size for f in (tmp_path / "raw" / "web").iterdir())
    assert runs["dedup_minhash"]["work_bytes"] > 0
    assert not (tmp_path / "out" / "work").exists()


def test_a_finished_build_takes_nothing(corpus_file, built):
    expected = forecast(plan_of(corpus_file), [built])
    assert (expected.steps, expected.unknown, expected.seconds) == ({}, (), 0)


def test_a_changed_step_is_forecast_by_its_earlier_rate(corpus_file, built):
    changed = plan_of(corpus_file, "steps.filter=[{signal: word_count, at_least: 9}]")
    expected = forecast(changed, [built])
    text = {
        name: sum(part["text_bytes"] for part in read_json(next(built.glob(f"read.{name}-*/manifest.json")))["parts"])
        for name in ("web", "code")
    }
    assert expected.steps["filter.web"].seconds == pytest.approx(text["web"] / 1000)
    # A step over the corpus had four workers to itself.
    assert expected.steps["dedup_minhash"].seconds == pytest.approx(4 * (text["web"] + text["code"]) / 1000)
    assert expected.steps["dedup_minhash"].work > 0
    assert expected.peak == 500_000_000
    assert expected.workers == 4
    assert expected.seconds == pytest.approx(sum(step.seconds for step in expected.steps.values()) / 4)
    assert "read.web" not in expected.steps
    assert expected.unknown == ()


def test_unread_text_is_guessed_from_the_size_of_its_files(corpus_file, built, tmp_path):
    before = plan_of(corpus_file)
    (tmp_path / "raw" / "code" / "more.py").write_text("x = 1\n" * 5000)
    after = plan_of(corpus_file)
    share = after.inventories["code"].bytes / before.inventories["code"].bytes
    assert share > 5
    expected = forecast(after, [built])
    run = read_json(next(built.glob("read.code-*/run.json")))
    assert expected.steps["read.code"].seconds == pytest.approx(run["seconds"] * share)
    step = next(built.glob("read.code-*"))
    stored = sum(file.stat().st_size for file in step.rglob("*.arrow"))
    assert expected.steps["read.code"].disk == pytest.approx(stored * share, rel=0.001)
    assert "read.web" not in expected.steps


def test_another_corpus_is_estimated_from_the_builds_it_names(corpus_file, built, tmp_path, capsys):
    elsewhere = plan_of(corpus_file, f"output={tmp_path}/elsewhere", "name=other")
    nothing = forecast(elsewhere, [tmp_path / "elsewhere"])
    assert nothing.steps == {}
    assert len(nothing.unknown) == len(elsewhere.steps)
    expected = forecast(elsewhere, [tmp_path / "elsewhere", built])
    assert set(expected.steps) == {step.label for step in elsewhere.steps}
    show_plan(elsewhere, tmp_path / "elsewhere", nothing)
    assert "--rates OUTPUT" in capsys.readouterr().out
    show_plan(elsewhere, tmp_path / "elsewhere", expected)
    out = capsys.readouterr().out
    assert "with 4 workers" in out
    assert "500.0 MB for each of them" in out


def test_the_time_outside_steps_counts_once(corpus_file, built, capsys):
    changed = plan_of(corpus_file, "steps.filter=[{signal: word_count, at_least: 9}]")
    without = forecast(changed, [built])
    write_json(built / "run.json", {"finished": 2.0, "fixed_seconds": 11.0, "workers": 2})
    expected = forecast(changed, [built])
    assert (without.fixed, expected.fixed) == (0.0, 11.0)
    assert expected.seconds == pytest.approx(without.seconds + 11.0)
    show_plan(changed, built, expected)
    assert "as the last build had, 11 s of them to start, plan and report" in capsys.readouterr().out


def test_files_of_older_builds_and_damaged_ones_teach_nothing(corpus_file, built):
    for number, path in enumerate(sorted(built.glob("*/run.json"))):
        if number % 2:
            path.write_text("{}")
        else:
            write_json(path, {k: v for k, v in read_json(path).items() if k != "peak_bytes"})
    changed = plan_of(corpus_file, "steps.filter=[{signal: word_count, at_least: 9}]")
    expected = forecast(changed, [built])
    assert expected.steps == {}
    assert "filter.web" in expected.unknown


def allocate(size):
    return len(bytearray(b"x" * size))


@pytest.mark.long
def test_a_task_is_measured_by_itself():
    """Where the kernel reports it, the peak memory of a small task is small even after a large task in the
    same process.
    """
    small = measured(allocate, 1)[1]
    if not small:
        pytest.skip("the kernel does not say how much memory a process used")
    size, large, _ = measured(allocate, 200 << 20)
    assert size == 200 << 20
    assert large - small > 190 << 20
    assert measured(allocate, 1)[1] < large - (100 << 20)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0.2 s"), (99, "99 s"), (100, "1.7 min"), (7000, "1.9 h"), (200_000, "2.3 days")]
)
def test_times_for_people(seconds, text):
    assert human_seconds(seconds) == text
