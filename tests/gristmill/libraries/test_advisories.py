"""Security advisories: their version ranges, and the refusal to start with an affected version."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import pipelines
from gristmill.errors import UserError
from gristmill.libraries import advisories
from gristmill.libraries.advisories import ADVISORIES, known, refuse_known
from pipelines.__main__ import main
from pipelines.cluster.ray import RayCluster
from pipelines.commands import doctor
from pipelines.commands.submit.jobs import connect

ROOT = Path(__file__).parents[3]


@pytest.fixture
def installed(monkeypatch):
    versions = {}
    real = metadata.version

    def version(name):
        return versions.get(name) or real(name)

    monkeypatch.setattr(advisories, "version", version)
    monkeypatch.setattr(doctor.metadata, "version", version)
    return versions


@pytest.mark.parametrize(
    ("distribution", "version", "expected"),
    [
        ("ray", "2.55.1", ["CVE-2026-57516"]),
        ("ray", "2.54.0", ["CVE-2026-41486", "CVE-2026-57516"]),
        ("ray", "2.48.0", ["CVE-2025-62593", "CVE-2026-27482", "CVE-2026-57516"]),
        ("ray", "2.56.0", []),
        ("torch", "2.9.1+cpu", ["CVE-2026-24747", "CVE-2025-3000"]),
        ("torch", "2.12.1", ["CVE-2025-3000"]),
        ("torch", "2.13.0+cu130", []),
        ("torch", "2.13", []),
        ("pyarrow", "14.0.0", ["CVE-2023-47248"]),
        ("pyarrow", "14.0.1", []),
        ("pyarrow", "23.0.0", ["CVE-2026-25087"]),
        ("numpy", "0.1", []),
    ],
)
def test_ranges(distribution, version, expected):
    assert [entry.id for entry in known(distribution, version)] == expected


def test_what_is_installed_pinned_and_allowed_has_no_known_advisory():
    names = {entry.distribution for entry in ADVISORIES}
    refuse_known(*names)
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for name in names:
        assert not known(name, pins[name])
        (bound,) = (
            re.fullmatch(rf"{name}(?:\[.*\])?[>=]=(.*)", line) for line in least if re.match(rf"{name}\b", line)
        )
        assert not known(name, bound[1]), f"pyproject.toml allows {name} {bound[1]}"
        assert max(entry.fixed for entry in ADVISORIES if entry.distribution == name)
    assert all(re.fullmatch(r"CVE-20\d\d-\d{4,}", entry.id) for entry in ADVISORIES)
    assert len({entry.id for entry in ADVISORIES}) == len(ADVISORIES)


def test_an_affected_ray_is_not_started_or_spoken_to(installed):
    installed["ray"] = "2.51.0"
    message = r"ray 2\.51\.0 has a known advisory, CVE-2026-57516 .* and 3 more: .*; install 2\.56\.0 or newer"
    with pytest.raises(UserError, match=message):
        next(RayCluster(1).map(len, ["x"], str))
    with pytest.raises(UserError, match=message):
        connect("http://127.0.0.1:1")


def test_an_affected_pyarrow_builds_nothing(installed, corpus_file, tmp_path, capsys):
    installed["pyarrow"] = "14.0.0"
    assert main(["build", str(corpus_file), "--in-process"]) == 2
    assert "error: pyarrow 14.0.0 has a known advisory, CVE-2023-47248" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"pyarrow 14\.0\.0 has a known advisory"):
        pipelines.build(corpus_file, in_process=True)
    assert not (tmp_path / "out").exists()


def test_an_affected_torch_trains_nothing(installed, tmp_path):
    from trainers.training.launch import launch

    installed["torch"] = "2.5.1+cu124"
    with pytest.raises(UserError, match=r"torch 2\.5\.1\+cu124 has a known advisory.*install 2\.13\.0 or newer"):
        launch(None, None, tmp_path, 1, print)
    assert not list(tmp_path.iterdir())


def test_doctor_names_affected_versions(installed):
    installed |= {"pyarrow": "22.0.0"}
    found = {check.name: check for check in doctor._advisories()}
    assert found["pyarrow"].level == "error"
    assert "CVE-2026-25087" in found["pyarrow"].detail
    assert found["advisories"].level == "ok"
    assert "ray" in found["advisories"].detail
    assert "pyarrow" not in found["advisories"].detail
