"""Execution settings that must not change the loss: offload, activation checkpointing, torch.compile, and
ZeRO stages under Muon and averaged SGD. Runs with dropout must resume exactly on as many workers.

Two workers train small runs of up to 6 steps in one launch; one worker then continues some of them.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gristmill.events import read_events
from tests.trainers.engine.execution_worker import HALF, STEPS
from tests.trainers.launching import losses, run_workers
from trainers.data.packed_corpus import open_corpus
from trainers.models import build_model
from trainers.runs import checkpoint
from trainers.runs.run import read_config

pytestmark = [pytest.mark.deepspeed, pytest.mark.slow]
WORKER = Path(__file__).with_name("execution_worker.py")
MUON = {"optimizer.kind": "muon", "optimizer.gradient_clipping": 0.0}
DROPOUT = {"model.dropout": 0.1}
# Averaging begins before the checkpoint that others continue from.
ASGD = {
    "optimizer": {"kind": "asgd", "learning_rate": 3.0, "weight_decay": 0.0, "non_monotone_interval": 1},
    "schedule": {"kind": "constant"},
    "validation": {"every": 1, "tokens": 256, "documents": False},
}


def run(name, recipe="llama_tiny", after=None, stage=1, **changes):
    fields = {"execution.zero_stage": stage, **changes}
    return {"name": name, "recipe": recipe, "set": fields, **({"after": after} if after else {})}


def execution(**fields):
    return {f"execution.{name}": value for name, value in fields.items()}


OFFLOAD, RECOMPUTE = execution(offload_optimizer=True), execution(activation_checkpointing=True)
INDUCTOR = {"backend": "inductor"}
ONE_STEP = {
    **MUON,
    "budget": {"steps": 1},
    "checkpoints": {"every": 1, "keep": 1},
    "schedule": {"kind": "constant"},
    "optimizer.weight_decay": 0.0,
}
# The runs, and for those that go on with another which one they must equal.
NEW = [
    run("plain"),
    *(run(f"offload{stage}", stage=stage, **OFFLOAD) for stage in (1, 2, 3)),
    *(run(f"recompute{stage}", stage=stage, **RECOMPUTE) for stage in (0, 1, 2, 3)),
    *(run(f"muon{stage}", stage=stage, **MUON) for stage in (0, 1, 2, 3)),
    *(run(f"muon{stage}-offload", stage=stage, **MUON, **OFFLOAD) for stage in (2, 3)),
    *(run(f"asgd{stage}", stage=stage, **ASGD) for stage in (0, 1, 2, 3)),
    run("asgd2-offload", stage=2, **ASGD, **OFFLOAD),
    run("dropout", "tiny_gpt2", stage=2, **DROPOUT),
    run("dropout-recompute", "tiny_gpt2", stage=2, **DROPOUT, **RECOMPUTE),
    run("dropout-in-line", "tiny_gpt2", stage=2, **DROPOUT, **execution(loader_threads=0)),
]
RESUMED = [
    run("offload3-to-plain1", after="offload3", stage=1),
    run("plain-to-offload2", after="plain", stage=2, **OFFLOAD),
    run("muon0-to-1", after="muon0", stage=1, **MUON),
    run("muon1-to-2", after="muon1", stage=2, **MUON),
    run("muon2-to-3", after="muon2", stage=3, **MUON),
    run("muon3-to-2-offload", after="muon3", stage=2, **MUON, **OFFLOAD),
    run("muon3-offload-to-0", after="muon3-offload", stage=0, **MUON),
    run("asgd1-to-3", after="asgd1", stage=3, **ASGD),
    run("dropout-again", "tiny_gpt2", after="dropout", stage=1, **DROPOUT),
]
ALONE = [
    # DeepSpeed compiles Muon for each shape of a matrix. That takes longer than all other runs, so one run does it.
    run("muon-step", stage=2, **ONE_STEP) | INDUCTOR,
    run("muon2-alone", after="muon2", stage=1, **MUON),
    run("offload3-alone", after="offload3", stage=3, **OFFLOAD),
    run("asgd-alone", **ASGD),
    run("asgd3-alone", after="asgd3", **ASGD),
    run("dropout-alone", "tiny_gpt2", after="dropout", stage=2, **DROPOUT),
]


def launch(workers, corpus, output, runs):
    listed = output / "runs.json"
    listed.write_text(json.dumps(runs))
    statuses, printed = run_workers(workers, WORKER, corpus, output, listed)
    assert not any(statuses), printed[-4000:]


def possible(runs):
    return runs if shutil.which("g++") else [r for r in runs if "muon" not in r["name"]]


@pytest.fixture(scope="module")
def launched(corpus_directory, tmp_path_factory):
    output = tmp_path_factory.mktemp("execution")
    launch(2, corpus_directory, output, possible(NEW + RESUMED))
    launch(1, corpus_directory, output, possible(ALONE))
    return output


def expect(output, name, before, places):
    """Assert that run `name` has the losses of run `before`, to `places` decimals, from the step at which
    `name` starts.
    """
    if not (output / name).exists():
        pytest.skip("DeepSpeed's Muon needs a C++ compiler, g++ is not there")
    expected, found = losses(output / before), losses(output / name)
    first = HALF + 1 if len(found) < STEPS else 1
    assert list(found) == list(range(first, STEPS + 1))
    assert found == pytest.approx({step: expected[step] for step in found}, abs=0.5 * 10**-places)


@pytest.mark.parametrize("name", [r["name"] for r in NEW if r["name"].startswith("offload")])
def test_offload_of_the_optimizer_changes_no_loss(launched, name):
    expect(launched, name, "plain", 5)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_activation_checkpointing_changes_no_loss(launched, stage):
    expect(launched, f"recompute{stage}", "plain", 5)


@pytest.mark.parametrize("name", ["muon1", "muon2", "muon3", "muon2-offload", "muon3-offload"])
def test_muon_learns_and_its_losses_do_not_depend_on_the_stage(launched, name):
    # Its orthogonalisation is in half precision where the device has it, so 4 places.
    expect(launched, name, "muon0", 4)
    found = losses(launched / name)
    assert found[STEPS] < found[1] - 0.4
    plain = losses(launched / "plain")
    assert max(abs(found[step] - plain[step]) for step in found) > 1e-2


@pytest.mark.parametrize("name", ["asgd0", "asgd1", "asgd2", "asgd3", "asgd2-offload", "asgd1-to-3", "asgd3-alone"])
def test_averages_do_not_depend_on_workers_and_stage(launched, name):
    alone = launched / "asgd-alone"
    (began,) = read_events(alone / "log.jsonl", "averaging")
    assert 2 <= began["step"] <= HALF
    expect(launched, name, "asgd-alone", 5)
    expected, found = (read_events(path / "log.jsonl", "validation") for path in (alone, launched / name))
    losses_of = [entry["loss"] for entry in expected]
    assert [entry["loss"] for entry in found] == pytest.approx(losses_of[-len(found) :], abs=5e-6)
    ours, theirs = (checkpoint.newest(path, pytest.fail) for path in (alone, launched / name))
    assert (theirs.averaging.averaged, STEPS - began["step"]) == (ours.averaging.averaged, ours.averaging.averaged)
    expected, found = map(checkpoint.read_state, (ours, theirs))
    for parameter in expected:
        for key in ("weight", "iterate"):
            torch.testing.assert_close(found[parameter][key], expected[parameter][key], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "before"), [(r["name"], r["after"]) for r in RESUMED if "dropout" not in r["name"]])
def test_a_run_resumes_under_another_stage_as_if_never_stopped(launched, name, before):
    expect(launched, name, before, 4 if "muon" in name else 5)


@pytest.mark.parametrize(("name", "before"), [("muon2-alone", "muon2"), ("offload3-alone", "offload3")])
def test_one_worker_resumes_the_run_of_two(launched, name, before):
    expect(launched, name, before, 4 if "muon" in name else 5)
    resumed = read_events(launched / name / "log.jsonl", "resume")[0]
    assert (resumed["workers_before"], resumed["workers"]) == (2, 1)
    assert "statistically" not in resumed["message"]  # there is no dropout


def test_muons_first_update_is_a_rotation_of_every_hidden_matrix(launched, corpus_directory):
    """Newton-Schulz brings the singular values of an update near 1 (0.5 to 1.5 in Jordan et al., 2024). The
    update is scaled by the learning rate and, for tall matrices, by the square root of rows over columns.
    Parameters other than hidden matrices get AdamW's step, which is at most as large as the learning rate.
    """
    path = launched / "muon-step"
    if not path.exists():
        pytest.skip("DeepSpeed's Muon needs a C++ compiler, g++ is not there")
    config, corpus = read_config(path), open_corpus((str(corpus_directory),), None)
    initial = dict(build_model(config.model, corpus.tokenizer.specials, config.seed).named_parameters())
    state = checkpoint.read_state(checkpoint.newest(path, pytest.fail))
    matrices = 0
    for name, tensors in state.items():
        update = (tensors["weight"] - initial[name].detach()).numpy()
        if "momentum_buffer" in tensors:
            matrices += 1
            scale = config.optimizer.muon_learning_rate * max(1.0, update.shape[0] / update.shape[1]) ** 0.5
            values = np.linalg.svd(update, compute_uv=False) / scale
            assert 0.5 < np.median(values) < 1.5
            assert values.max() < 1.5
        else:
            assert set(tensors) == {"weight", "exp_avg", "exp_avg_sq"}
            assert np.abs(update).max() <= config.optimizer.learning_rate * 1.01
    assert matrices == 7 * config.model.layers


def test_dropout_is_exact_on_resuming_by_as_many_workers_and_with_blocks_computed_again(launched):
    expect(launched, "dropout-again", "dropout", 6)
    expect(launched, "dropout-recompute", "dropout", 5)
    expect(launched, "dropout-in-line", "dropout", 6)
    (resumed,) = read_events(launched / "dropout-again" / "log.jsonl", "resume")
    assert "statistically" not in resumed["message"]


def test_dropout_at_another_world_size_has_the_same_tokens_other_losses_and_says_so(launched):
    before, now = (read_events(launched / name / "log.jsonl", "step") for name in ("dropout", "dropout-alone"))
    assert [entry["tokens"] for entry in now] == [entry["tokens"] for entry in before[HALF:]]
    assert [entry["data"] for entry in now] == [entry["data"] for entry in before[HALF:]]
    apart = [abs(ours["loss"] - theirs["loss"]) for ours, theirs in zip(now, before[HALF:], strict=True)]
    assert 1e-5 < max(apart) < 0.2
    (resumed,) = read_events(launched / "dropout-alone" / "log.jsonl", "resume")
    assert (resumed["workers_before"], resumed["workers"]) == (2, 1)
    assert "the tokens are exact and the losses only statistically equal" in resumed["message"]


def test_what_the_first_batch_and_step_took_is_logged_and_the_time_for_data(launched):
    (first,) = read_events(launched / "plain" / "log.jsonl", "first_step")
    steps = read_events(launched / "plain" / "log.jsonl", "step")
    assert first["first_batch_seconds"] > 0
    assert (
        0 < first["step_seconds"] < steps[0]["time"] - read_events(launched / "plain" / "log.jsonl", "start")[0]["time"]
    )
    assert all(entry["data_seconds"] >= 0 for entry in steps)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, g++ is not there")
def test_compiled_blocks_change_no_loss_for_any_width_of_rows(corpus_directory, tmp_path):
    """Rows hold whole documents, so the number of targets differs from step to step. The run with
    recomputation uses a backend that generates no code, because recomputation affects only the traced graphs.
    """
    rows = {"data.packing": "best_fit"}
    compiled = execution(compile=True)
    runs = [
        run("plain", stage=0, **rows),
        run("compiled", stage=0, **rows, **compiled) | INDUCTOR,
        run("both", stage=2, **rows, **compiled, **RECOMPUTE) | {"backend": "aot_eager"},
    ]
    launch(1, corpus_directory, tmp_path, runs)
    for name in ("compiled", "both"):
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "plain"), abs=1e-4)
    (first,) = read_events(tmp_path / "compiled" / "log.jsonl", "first_step")
    assert first["message"].endswith("compilation included")
