"""Checkpoints are whole, verified, few, and a corrupt one is passed over loudly."""

import pytest
import torch

from pipelines.contracts.errors import UserError
from trainers import checkpoint

MARKS = {"code": "c", "config": "f", "corpus": "d", "tokenizer": "t"}


def state(value):
    for name in ("a.weight", "b"):
        tensor = torch.full((3, 2), float(value))
        yield name, {"weight": tensor, "exp_avg": tensor + 1, "exp_avg_sq": tensor + 2}


def save(run, step, keep=2, keep_every=0):
    return checkpoint.save(run, step, step * 10, MARKS, state(step), keep, keep_every, skipped=1)


def test_what_is_saved_is_read_back(tmp_path):
    save(tmp_path, 5)
    found = checkpoint.newest(tmp_path, pytest.fail)
    assert (found.step, found.tokens, found.skipped, found.fingerprints) == (5, 50, 1, MARKS)
    read = checkpoint.read_state(found)
    assert set(read) == {"a.weight", "b"}
    assert read["a.weight"]["exp_avg_sq"].unique().tolist() == [7.0]
    assert checkpoint.read_weights(found)["b"].unique().tolist() == [5.0]


def test_only_the_newest_are_kept(tmp_path):
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003", "step-00000004"]


def test_every_nth_is_kept_for_good_and_an_older_one_can_be_asked_for(tmp_path):
    for step in range(1, 9):
        save(tmp_path, step, keep=1, keep_every=3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000003", "step-00000006", "step-00000008"
    ]  # fmt: skip
    assert [checkpoint.newest(tmp_path, pytest.fail, last).step for last in (None, 7, 5)] == [8, 6, 3]
    assert checkpoint.newest(tmp_path, pytest.fail, 2) is None


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_corrupt_checkpoint_falls_back_to_the_one_before_loudly(tmp_path, file, damage):
    save(tmp_path, 1)
    path = save(tmp_path, 2) / file
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content if damage == "flip" else content[:-1])
    warnings = []
    assert checkpoint.newest(tmp_path, warnings.append).step == 1
    assert len(warnings) == 1
    assert "CORRUPT CHECKPOINT of step 2" in warnings[0]


def test_a_corrupt_later_checkpoint_does_not_outlast_the_good_ones_that_follow(tmp_path):
    save(tmp_path, 10)
    (save(tmp_path, 17) / "model.safetensors").write_bytes(b"")
    assert checkpoint.newest(tmp_path, lambda _: None).step == 10
    save(tmp_path, 15, keep=1)
    assert checkpoint.newest(tmp_path, pytest.fail).step == 15
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000015"]


def test_a_run_whose_checkpoints_are_all_corrupt_does_not_start_again_silently(tmp_path):
    (save(tmp_path, 1) / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="all 1 checkpoints are corrupt"):
        checkpoint.newest(tmp_path, lambda _: None)
    assert checkpoint.newest(tmp_path / "fresh", pytest.fail) is None


def test_a_failed_write_leaves_the_older_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(UserError, match=r"could not be written .*No space left"):
        save(tmp_path, 2)
    monkeypatch.undo()
    assert checkpoint.newest(tmp_path, pytest.fail).step == 1
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_checkpoint_of_a_step_is_replaced(tmp_path):
    (save(tmp_path, 1) / "model.safetensors").write_bytes(b"")
    save(tmp_path, 1)
    assert checkpoint.newest(tmp_path, pytest.fail).step == 1
