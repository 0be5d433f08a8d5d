"""Fine-tuning by three methods: number of workers, ZeRO stage, micro-batch size, kill -9 and resuming change
neither losses nor predictions.
"""

import json
import signal
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from tests.trainers.launching import losses, run_workers
from trainers.inference.predict import PREDICTIONS
from trainers.tasks.predictions import read_predictions

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]
STEPS, KILLED_AT = 9, 6
METHODS = ("full", "lora", "prefix")
# How a run is executed: workers, ZeRO stage, micro-batch.
EXECUTIONS = {"alone": (1, 0, 8), "one, stage 3": (1, 3, 3), "two, stage 1": (2, 1, 2), "two, stage 2": (2, 2, 4)}
WORDS = ("abcd", "bcde", "cdef", "defg", "efgh")
TASK = """
kind: classify
files: {train: train.jsonl, dev: dev.jsonl}
columns: {text: text, label: label}
labels: ["no", "yes"]
metrics: [accuracy]
"""


@pytest.fixture(scope="module")
def task_file(tmp_path_factory):
    directory = tmp_path_factory.mktemp("task")
    generator = np.random.default_rng(0)
    for split, count in (("train", 90), ("dev", 21)):
        rows = []
        for number in range(count):
            words = [str(word) for word in generator.choice(WORDS, generator.integers(1, 9))]
            rows.append({"text": f"{' '.join(words)} {split}{number}", "label": "yes" if WORDS[0] in words else "no"})
        (directory / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "find.yaml").write_text(TASK)
    return directory / "find.yaml"


@pytest.fixture(scope="module")
def runs(task_file, corpus_directory, tmp_path_factory):
    """A function that returns the run of a method under an execution. If a moment is given, the run is killed
    at that moment of step KILLED_AT and continued under the last execution.
    """
    folder = LocalPath(tmp_path_factory.mktemp("runs"))

    def launched(method, execution, run, moment, step):
        workers, stage, micro_batch = EXECUTIONS[execution]
        script = [Path(__file__).parents[1] / "kill_worker.py", moment, step, 0, f"{run}.record"]
        arguments = ["finetune", task_file, "model=tiny_roberta", f"tokenizer={corpus_directory / 'tokenizer.json'}"]
        arguments += [
            f"method={method}",
            f"run={run}",
            "model.dropout=0",
            "batch.sequences=8",
            f"budget={{steps: {STEPS}}}",
        ]
        arguments += [
            "optimizer.learning_rate=2e-3",
            "log_every=1",
            "validation.every=3",
            "checkpoints={every: 2, keep: 9}",
        ]
        arguments += [f"execution={{zero_stage: {stage}, micro_batch: {micro_batch}}}"]
        return run_workers(workers, *script, *arguments)

    @cache
    def made(method, execution, killed=None):
        run = folder / f"{method} {execution} {killed}".replace(" ", "_").replace(",", "")
        if killed:
            statuses, printed = launched(method, execution, run, killed, KILLED_AT)
            assert statuses[0] == -signal.SIGKILL, printed[-4000:]
            assert not (run / "finished.json").exists()
            execution = "two, stage 2"
        statuses, printed = launched(method, execution, run, "never", 0)
        assert not any(statuses), printed[-4000:]
        return run

    return made


def check_equal(run, reference):
    expected = losses(reference)
    assert list(expected) == list(range(1, STEPS + 1))
    assert losses(run) == pytest.approx(expected, abs=1e-5)
    validations = [
        {e["step"]: e["loss"] for e in read_events(each / "log.jsonl", "validation")} for each in (run, reference)
    ]
    assert validations[0] == pytest.approx(validations[1], abs=1e-5)
    found, wanted = (read_predictions(each / PREDICTIONS / "dev.parquet") for each in (run, reference))
    assert found.ids == wanted.ids
    classes = [each.scores.reshape(len(each.ids), -1).argmax(axis=1) for each in (found, wanted)]
    assert classes[0].tolist() == classes[1].tolist()
    assert found.scores == pytest.approx(wanted.scores, abs=1e-4)


def executions():
    """Return all pairs of a method and an execution other than `alone`. By default, each execution runs with
    one method only; the other pairs run in `make chaos`.
    """
    return [
        pytest.param(method, execution, marks=[pytest.mark.chaos] * (row != column))
        for row, method in enumerate(METHODS)
        for column, execution in enumerate(list(EXECUTIONS)[1:])
    ]


@pytest.mark.parametrize(("method", "execution"), executions())
def test_every_execution_gives_the_same_losses_and_predictions(runs, method, execution):
    check_equal(runs(method, execution), runs(method, "alone"))


@pytest.mark.parametrize(
    ("method", "moment"), [("full", "amid_a_step"), ("lora", "after_a_checkpoint"), ("prefix", "amid_a_checkpoint")]
)
def test_a_run_that_was_killed_goes_on_under_another_execution(runs, method, moment):
    check_equal(runs(method, "two, stage 1" if moment == "amid_a_step" else "alone", moment), runs(method, "alone"))
