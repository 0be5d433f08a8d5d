"""Command lines: the exit status when the output pipe is closed, and where the address of a cluster may
stand.
"""

import subprocess
import sys

import pytest

from tests.trainers.launching import ROOT, environment

# Each prints before it could notice that there is nothing to do.
COMMANDS = {
    "print": ["-c", "from gristmill.cli import run; raise SystemExit(run(lambda: print('x' * 100_000) or 0))"],
    "rich": [
        "-c",
        "from rich import print; from gristmill.cli import run\n"
        "raise SystemExit(run(lambda: [print('x') for _ in range(9)] and 0))",
    ],
    "pipelines": ["-m", "pipelines", "plan", "{corpus}"],
}


@pytest.mark.long
@pytest.mark.parametrize("name", COMMANDS)
def test_a_reader_that_leaves_ends_a_command_quietly(name, corpus_file):
    """A command whose reader closes the pipe prints no message and ends with the status of SIGPIPE, as other tools do."""
    command = [sys.executable, *(word.format(corpus=corpus_file) for word in COMMANDS[name])]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment(), text=True
    )
    process.stdout.close()
    with process:
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_a_pipe_to_a_process_that_died_is_an_error(capfd):
    """A broken pipe other than standard output is not silenced."""
    from gristmill.cli import run

    def fail():
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        run(fail)


@pytest.mark.parametrize("words", [["list"], ["logs", "x"], ["status", "x"], ["stop", "x"]])
def test_the_address_of_a_cluster_may_stand_before_or_after_the_action(words, monkeypatch):
    from pipelines.__main__ import parser

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://default:1")
    for line in (["--address", "http://b:2", *words], [*words, "--address", "http://b:2"]):
        assert parser().parse_args(["jobs", *line]).address == "http://b:2"
    assert (
        parser().parse_args(["jobs", "--address", "http://a:1", *words, "--address", "http://b:2"]).address
        == "http://b:2"
    )
    assert parser().parse_args(["jobs", *words]).address == "http://default:1"
