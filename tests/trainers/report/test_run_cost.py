"""The cost of a run, computed from its log."""

import re

import pytest

from gristmill.events import EventLog
from trainers.__main__ import main
from trainers.engine.hardware.footprint import KG_PER_KWH, add_footprints, footprint, operations, parse_footprint
from trainers.report.run_cost import run_cost

FLOPS = {"read": 4e9, "decoded": 0.0, "predicted": 1e9}


def part(begins, ends, workers=1, joules=None, device="cpu"):
    measured = {"energy_from": "RAPL" if joules else ""}
    return [
        {"event": "start", "time": begins, "step": 0, "workers": workers, "device": device, "threads": 2, **measured},
        *({"event": "step", "time": ends - 1, "step": n, "flops": FLOPS, "joules": joules} for n in (1, 2)),
        {"event": "checkpoint", "time": ends, "step": 2},
    ]


def test_the_formula_is_that_of_strubell_et_al():
    """Section 2 of the paper gives 1.58 t (p_c + p_r + g p_g) / 1000 kWh, and 0.954 pounds of CO2e per kWh."""
    cost = footprint(FLOPS, 7200, "NVIDIA A100-SXM4-80GB", 1)
    assert cost.kwh == pytest.approx(1.58 * 2 * 400 / 1000)
    assert cost.kg_co2e == pytest.approx(0.954 * 0.45359237 * cost.kwh)
    assert parse_footprint(cost.plain()) == cost
    assert "400 W, its data sheet; PUE 1.58" in str(cost)


def test_work_that_was_repeated_counts_twice_and_workers_count_each():
    events = part(0, 100) + part(1000, 1050, workers=3)
    cost = run_cost(events)
    assert cost.flops == {"read": 1.6e10, "decoded": 0, "predicted": 4e9}
    assert cost.device_hours == pytest.approx((100 + 150) / 3600)
    assert cost.joules == pytest.approx(250 * 24)  # 12 W for each of two threads
    assert operations(cost.flops) == "20G FLOPs (read 16G, predicted 4G)"


def test_the_time_between_two_parts_costs_nothing():
    """A run logs that it resumes before it logs the start of the next part."""
    before = [{"event": name, "time": 900, "step": 2, "message": ""} for name in ("warning", "resume", "excluded")]
    assert run_cost(part(0, 100) + before + part(1000, 1050)).device_hours == pytest.approx(150 / 3600)
    assert run_cost(part(0, 100) + before).device_hours == pytest.approx(100 / 3600)
    assert run_cost(part(0, 100) + before[:1]).device_hours == pytest.approx(900 / 3600), "a warning of the run"


def test_measured_energy_counts_and_that_of_a_part_without_is_nominal():
    assert run_cost(part(0, 100, joules=50)).joules == 100
    mixed = run_cost(part(0, 100, joules=50) + part(200, 210))
    assert mixed.joules == pytest.approx(100 + 240)
    assert mixed.energy_from == "measured by RAPL and 12 W x 2 threads, Lannelongue et al., 2021"


def test_what_is_unknown_is_not_made_up():
    events = part(0, 100, device="Abacus 9")
    del events[1]["flops"]  # of an earlier version
    cost = run_cost(events)
    assert (cost.flops, cost.joules, cost.kg_co2e) == (None, None, None)
    assert "energy unknown: no nominal power is known for Abacus 9" in str(cost)
    assert add_footprints([cost, run_cost(part(0, 9))]).joules is None
    assert run_cost([]) is None


def test_the_command_prints_every_run_and_the_total(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainers.runs.run.read_run", lambda run: {})
    for name in "ab":
        log = EventLog(tmp_path / name / "log.jsonl")
        for event in part(0, 100):
            log.write(**{key: value for key, value in event.items() if key != "time"})
        log.close()
    assert main(["cost", str(tmp_path / "a"), str(tmp_path / "b"), "--kg-per-kwh", "0.05", "--pue", "1.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(tmp_path / "a"), str(tmp_path / "b"), "total:"]
    assert all("PUE 1.1" in line and "0.050 kg/kWh" in line for line in lines)
    assert re.search(r"total: 20G FLOPs \(read 16G, predicted 4G\)", lines[2])
    assert main(["cost", str(tmp_path / "a"), "--pue", "0.5"]) == 2
    assert "--pue: got 0.5, allowed 1 or more" in capsys.readouterr().err
    assert pytest.approx(0.4327, abs=1e-4) == KG_PER_KWH
