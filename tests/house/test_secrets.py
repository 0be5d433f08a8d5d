"""Secrets of the environment and of URLs appear in no file that commands write, and in nothing that they
print.

test_jobs.py covers jobs on a cluster.
"""

from urllib.parse import quote

import pytest

from gristmill.terminal import printable
from pipelines.__main__ import main
from pipelines.commands import doctor
from tests.canaries import add_signed_source, places, secrets, signed_pages
from trainers.__main__ import main as trainers

SIGNATURE = "swordfish/+of the=query"


@pytest.fixture
def hidden(monkeypatch):
    found = secrets()
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def test_what_is_looked_for_would_be_found(tmp_path):
    (tmp_path / "held").write_bytes(b"\0\1aGVsbG8gc3dvcmRmaXNoL3NlY3JldA==")  # b"hello swordfish/secret"
    texts = ["a%20swordfish%2Fsecret", "swordfish"]
    assert places(["swordfish/secret"], texts, [tmp_path / "held"]) == (texts[:1], [tmp_path / "held"])


@pytest.mark.deepspeed
def test_builds_and_runs_keep_and_print_no_secret(hidden, alone, corpus_file, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(doctor, "_imports", lambda wanted: iter(()))
    config, corpus, run = str(corpus_file), f"{tmp_path}/out", f"{tmp_path}/run"
    far = [f"https://me:{quote(hidden['HF_TOKEN'], safe='')}@127.0.0.1/x", f"http://a.example/x?{hidden['HF_TOKEN']}"]
    small = ["batch.sequences=4", "budget.steps=2", "checkpoints.every=1", "schedule.warmup_steps=0"]
    with signed_pages(SIGNATURE, fails_at=3) as port:
        add_signed_source(corpus_file, port, "here", SIGNATURE)
        wrong = [
            f"sources.far.root=http://127.0.0.1:{port}/here/far.jsonl?sig=swordfish/+of the=other",
            f"output={corpus}-2",
        ]
        statuses = [
            main(["plan", config]),
            main(["build", config, "--in-process"]),
            main(["build", config, "--in-process", *wrong]),
            main(
                [
                    "build",
                    config,
                    "--in-process",
                    f"sources.far.root=https://me:{quote(hidden['HF_TOKEN'], safe='')}@127.0.0.1/x",
                ]
            ),
            main(["inspect", corpus, "--doc", "far/far.jsonl#3"]),
            main(["export", corpus, f"{tmp_path}/exported"]),
            main(
                [
                    "submit",
                    "--address",
                    f"http://me:{hidden['RAY_AUTH_TOKEN']}@cluster.example:8265",
                    "--",
                    "python",
                    "x",
                ]
            ),
            main(["submit", "--env", "HF_TOKEN", "--", "python", "-m", "pipelines", "build", config]),
            main(["doctor", "--directory", str(tmp_path)]),
            trainers(["pretrain", "llama_tiny", f"corpus={corpus}", f"run={run}", *small]),
            *(trainers(["pretrain", "llama_tiny", f"corpus={place}", f"run={run}-2", *small]) for place in far),
        ]
    printed = "".join(capfd.readouterr())
    assert statuses == [0, 0, 2, 2, 0, 0, 2, 2, 0, 0, 2, 2], printable(printed, lines=True)
    assert "here/far.jsonl?...: access is denied" in printed
    assert "the URL holds a user name or password" in printed
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path != corpus_file]
    names = {path.name for path in files}
    assert {"manifest.json", "report.html", "run.json", "resolved.yaml", "log.jsonl", "model.safetensors"} <= names
    looked_for = [*hidden.values(), SIGNATURE, "swordfish/+of the=other", "swordfish/"]
    assert places(looked_for, [printed], files) == ([], [])
