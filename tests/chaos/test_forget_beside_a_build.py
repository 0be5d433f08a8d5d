"""A build that is suspended while documents are forgotten must not bring any of them back into the corpus."""

import signal
from pathlib import Path

import pytest

from gristmill.storage.disk import LocalPath
from pipelines.__main__ import main
from pipelines.contracts.lineage import Quarantined, open_corpus
from tests.chaos.harness.drivers import QUICK, Driver, end_all

DOCUMENT = "web/0.jsonl#5"
pytestmark = pytest.mark.faults


@pytest.fixture(autouse=True)
def ended():
    yield
    end_all()


def texts_of(output):
    return [text for part in open_corpus(output).parts() for text in part.table(("text",))["text"].to_pylist()]


@pytest.mark.parametrize("at", ["00000-000.arrow", "00000.json", "manifest.json"])
def test_a_forgotten_document_does_not_come_back(built_corpus_file, tmp_path, at):
    """A build of another configuration is suspended before it writes a part, a receipt or a manifest; `forget` takes over,
    and then the build resumes.
    """
    output = LocalPath(tmp_path / "out")
    gone = open_corpus(output).find(DOCUMENT)
    text = gone.part.table(("text",))["text"][gone.row].as_py()
    hold, listed = tmp_path / "hold", tmp_path / "ids"
    listed.write_text(f"{DOCUMENT}\n")
    arguments = ["build", built_corpus_file, "--in-process", f"output={output}", "sources.web.part_bytes=4000"]
    build = Driver(tmp_path, "build", *arguments, hold=[at, hold], host="elsewhere", lease=QUICK)
    build.until(Path(f"{hold}.held").exists)
    build.process.send_signal(signal.SIGSTOP)
    said = Driver(tmp_path, "forget", "forget", output, "--ids", listed, lease=QUICK).finish()
    assert "process is building here (host elsewhere" in " ".join(said.split())
    assert "not responding; continuing" in " ".join(said.split())
    assert "nothing is left of them" in said
    Path(f"{hold}.go").touch()
    build.process.send_signal(signal.SIGCONT)
    assert "documents were forgotten while this command ran" in build.finish(2)
    assert text not in texts_of(output)
    assert not any(text.encode() in path.read_bytes() for path in output.rglob("*.arrow"))
    assert main([*map(str, arguments)]) == 0
    assert text not in texts_of(output)
    aside = open_corpus(output).find(DOCUMENT)
    assert isinstance(aside, Quarantined)
    assert aside.reason == "forgotten"
