"""What a run imports before its first step. Unneeded libraries would add seconds to every start."""

import json
import subprocess
import sys

import pytest
import torch

from tests.trainers.launching import ROOT, environment
from trainers.engine.zero import compiled_when_called

NEEDLESS = {
    "awkward", "datasets", "deepspeed", "gigatoken", "matplotlib", "mlflow", "pandas", "peft", "presidio_analyzer",
    "pyarrow.dataset", "ray", "resiliparse", "s3fs", "sklearn.base", "spacy", "tensorboard",
    "trainers.report.run_page", "trainers.studies", "wandb",
}  # fmt: skip
SCRIPT = """
import json, sys
from trainers.__main__ import main
from trainers.training import launch

def train(*arguments, _train=launch._train):
    from trainers.training.loop import Training

    def first(self, *arguments, _first=Training._log_first):
        print("IMPORTED", json.dumps(sorted(sys.modules)), flush=True)
        return _first(self, *arguments)

    Training._log_first = first
    return _train(*arguments)

launch._train = train
sys.exit(main(sys.argv[1:]))
"""
OURS = 325  # modules of the four packages; 319 on 2026-11-28


@pytest.mark.slow
def test_nothing_that_no_step_needs_is_imported_before_the_first_step(corpus_directory, tmp_path):
    run = f"run={tmp_path / 'run'}"
    settings = [
        "budget.steps=1",
        "schedule.warmup_steps=0",
        "checkpoints.every=1",
        "validation.tokens=1",
        "log_every=1",
    ]
    arguments = ["pretrain", "llama_tiny", f"corpus={corpus_directory}", run, *settings]
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("IMPORTED "))
    imported = set(json.loads(line.removeprefix("IMPORTED ")))
    assert sorted(NEEDLESS & imported) == []
    ours = [name for name in imported if name.split(".")[0] in ("gristmill", "tokenizer", "pipelines", "trainers")]
    assert 0 < len(ours) <= OURS, len(ours)


def test_functions_that_deepspeed_decorates_are_compiled_when_they_are_called(monkeypatch):
    calls, whole = [], torch.compiler.is_compiling

    def compile_now(function=None, **options):
        calls.append((function.__name__, options))
        return lambda *arguments: ("compiled", *function(*arguments))

    monkeypatch.setattr(torch, "compile", compile_now)
    with compiled_when_called():

        @torch.compile
        def one(number):
            """A function."""
            return (number,)

        two = torch.compile(lambda number: (2 * number,), dynamic=True)
        module = torch.nn.Identity()
        module.__name__ = "module"
        torch.compile(module)
    assert calls == [("module", {})]  # at once, as nothing but a function is decorated
    assert torch.compile is compile_now
    assert [one(1), one(1), two(2)] == [("compiled", 1), ("compiled", 1), ("compiled", 4)]
    assert calls[1:] == [("one", {}), ("<lambda>", {"dynamic": True})]
    assert one.__doc__ == "A function."
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: not whole())
    assert one(1) == (1,)  # a compiled function that calls it takes its code in
