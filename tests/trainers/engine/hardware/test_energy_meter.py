"""Energy readings from the machine's counters."""

import pytest

from trainers.engine.hardware.energy_meter import EnergyMeter


def zone(root, number, name, joules, limit=1000):
    folder = root / f"intel-rapl:{number}"
    folder.mkdir(exist_ok=True)
    for file, text in (("name", name), ("energy_uj", joules * 10**6), ("max_energy_range_uj", limit * 10**6)):
        (folder / file).write_text(f"{text}\n")


def test_packages_and_memory_add_up_and_wrap_around(tmp_path):
    for number, name, joules in (("0", "package-0", 100), ("0:0", "core", 5), ("0:2", "dram", 990), ("1", "psys", 7)):
        zone(tmp_path, number, name, joules)
    meter = EnergyMeter(tmp_path)
    assert meter.sources == ("RAPL",)
    for number, name, joules in (("0", "package-0", 130), ("0:0", "core", 20), ("0:2", "dram", 5), ("1", "psys", 90)):
        zone(tmp_path, number, name, joules)
    assert meter.read() == pytest.approx(30 + 15)
    assert meter.read() == 0


def test_gpus_of_all_workers_count(tmp_path):
    counts = iter([10.0, 14.0])
    meter = EnergyMeter(tmp_path, lambda: next(counts), workers=4)
    assert meter.sources == ("NVML",)
    assert meter.read() == 16


def test_a_machine_that_measures_nothing_says_so(tmp_path):
    zone(tmp_path, "0", "package-0", 1)
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()  # as unreadable as for users other than root
    meter = EnergyMeter(tmp_path)
    assert (meter.sources, meter.read()) == ((), None)
