"""Checkpoints are complete and verified, and old ones are removed. Corruption is reported, and the last good
checkpoint survives every kill.
"""

import os
import resource
import shutil
import sys

import pytest
import torch

from gristmill.errors import CorruptFileError, UserError
from gristmill.storage.disk import LocalPath
from tests.trainers.launching import preloaded
from trainers.runs import checkpoint
from trainers.runs.run import SupersededError

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


def test_what_a_kill_after_the_last_save_has_left_is_removed(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_remove_old", lambda *arguments: None)
        for step in (1, 2, 3, 4):
            save(tmp_path, step)
    (tmp_path / "checkpoints" / "step-00000002" / "checkpoint.json").unlink()
    checkpoint.remove_replaced(tmp_path, keep=1, keep_every=3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000003", "step-00000004"]
    checkpoint.remove_replaced(tmp_path / "fresh", keep=1, keep_every=0)


def test_every_nth_checkpoint_is_kept_and_an_older_one_can_be_chosen(tmp_path):
    for step in range(1, 9):
        save(tmp_path, step, keep=1, keep_every=3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000003", "step-00000006", "step-00000008"
    ]  # fmt: skip
    assert [checkpoint.newest(tmp_path, pytest.fail, last).step for last in (None, 7, 5)] == [8, 6, 3]
    assert checkpoint.newest(tmp_path, pytest.fail, 2) is None
    assert [checkpoint.nearest(tmp_path, pytest.fail, step).step for step in (9, 7, 5, 2, 0)] == [8, 6, 3, 3, 3]


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


def test_a_damaged_best_checkpoint_is_named(tmp_path):
    best = checkpoint.Best(1, 0.5)
    first = save(tmp_path, 1)
    checkpoint.save(tmp_path, 2, 20, MARKS, state(2), 2, best=best)
    assert checkpoint.pick(tmp_path, pytest.fail).step == 1
    (first / "model.safetensors").write_bytes(b"")
    warnings = []
    with pytest.raises(CorruptFileError, match="the checkpoint of step 1, its best, is missing or damaged"):
        checkpoint.pick(tmp_path, warnings.append)
    assert "CORRUPT CHECKPOINT of step 1" in warnings[0]


def test_a_checkpoint_that_a_damaged_one_falls_back_on_has_its_best(tmp_path):
    for step, best in ((10, 10), (20, 10), (30, 30)):
        path = checkpoint.save(tmp_path, step, 1, MARKS, state(step), 1, best=checkpoint.Best(best, float(best)))
    (path / "model.safetensors").write_bytes(b"")
    fallback = checkpoint.newest(tmp_path, lambda _: None)
    assert (fallback.step, fallback.best.step) == (20, 10)
    assert checkpoint.pick(tmp_path, lambda _: None).step == 10
    for step in (40, 50):
        checkpoint.save(tmp_path, step, 1, MARKS, state(step), 1, best=checkpoint.Best(step, float(step)))
    assert [step for step, _ in checkpoint.published(tmp_path)] == [40, 50]


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
    third = save(tmp_path, 1)
    assert checkpoint.newest(tmp_path, pytest.fail).path == third
    assert list((tmp_path / "checkpoints").iterdir()) == [third]


def test_the_split_of_the_last_step_is_kept(tmp_path):
    checkpoint.save(tmp_path, 3, 30, MARKS, state(3), 1, split=checkpoint.ParallelLayout(4, 16))
    assert checkpoint.newest(tmp_path, pytest.fail).split == checkpoint.ParallelLayout(workers=4, micro_batch=16)


def test_the_state_of_the_order_is_kept(tmp_path):
    checkpoint.save(tmp_path, 3, 30, MARKS, state(3), 1, order={"sample": 12, "tokens": [5, 1 << 60]})
    assert checkpoint.newest(tmp_path, pytest.fail).order == {"sample": 12, "tokens": [5, 1 << 60]}


def run_apart(function, *arguments):
    """Call a function of this file in a separate process, and return its result."""
    context = preloaded()
    answers = context.SimpleQueue()
    process = context.Process(target=_answer, args=(answers, function, *arguments))
    process.start()
    process.join(timeout=300)
    assert process.exitcode == 0
    return answers.get()


def _answer(answers, function, *arguments):
    answers.put(function(*arguments))


def save_limited(root, limit):
    """Save a checkpoint with a limit on file size, and return the error as text."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        save(LocalPath(root), 2)
    except Exception as error:
        return f"{type(error).__name__} {error}"


# A limit on the size of files stands in for a full disk: writing beyond it fails in the same place.
@pytest.mark.long
@pytest.mark.parametrize("limit", [0, 100, 250])
def test_no_space_while_saving_is_a_user_error_and_leaves_the_older_one(tmp_path, limit):
    save(tmp_path, 1)
    error = run_apart(save_limited, str(tmp_path), limit)
    assert error.startswith("UserError")
    assert "could not be written" in error
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    save(tmp_path, 2)
    assert checkpoint.newest(tmp_path, pytest.fail).step == 2


def save_killed(root, new):
    """Save a checkpoint to each directory of `root`, in a process that is killed after n changes to the disk,
    where n is the directory's name. Return the exit statuses.
    """
    import safetensors.torch  # noqa: F401  # which saving imports: the first of the processes would write to disk for it

    codes, left = [], 0

    def hook(event, arguments):
        nonlocal left
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
            left -= 1
            if left < 0:
                os._exit(9)

    for run in sorted(LocalPath(root).iterdir(), key=lambda path: int(path.name)):
        child = os.fork()
        if child == 0:
            left = int(run.name)
            sys.addaudithook(hook)
            save(run, new, keep=1)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


@pytest.mark.long
@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 2)])
def test_a_kill_at_any_moment_of_saving_leaves_a_good_one_and_no_rubbish_after_the_next(tmp_path, old, new):
    """The process is killed before its first change to the disk, then before its second, and so on, until it
    completes.
    """
    runs = [tmp_path / str(moment) for moment in range(30)]
    for run in runs:
        save(run, old)
    codes = run_apart(save_killed, str(tmp_path), new)
    assert len(codes) == len(runs)
    assert codes == sorted(codes, reverse=True)
    assert codes[6] == 9
    assert codes[-1] == 0
    for run in runs:
        assert checkpoint.newest(run, pytest.fail).step in (old, new)
        path = save(run, 3, keep=1)
        assert list((run / "checkpoints").iterdir()) == [path]


def test_tensors_are_read_one_parameter_at_a_time(tmp_path, monkeypatch):
    save(tmp_path, 5)
    read = checkpoint.read_state(checkpoint.newest(tmp_path, pytest.fail))
    monkeypatch.setattr("safetensors.torch.load_file", None)
    assert len(read) == 2
    first = read["b"]["exp_avg"]
    assert first.unique().tolist() == [6.0]


@pytest.mark.parametrize("moment", ["before it writes", "before it publishes", "before it removes"])
def test_a_worker_that_others_have_replaced_takes_nothing_from_them(tmp_path, moment):
    for step in (5, 10):
        save(tmp_path, step)
    passed = iter(["before it writes", "before it publishes", "before it removes"])

    def check():
        if next(passed) == moment:
            for step in (15, 20):
                save(tmp_path, step)
            raise UserError("replaced")

    with pytest.raises(UserError, match="replaced"):
        checkpoint.save(tmp_path, 15, 150, MARKS, state(15), keep=1, skipped=1, check=check)
    assert checkpoint.newest(tmp_path, pytest.fail).step == 20
    assert checkpoint.newest(tmp_path, pytest.fail, last=15).step == 15
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_name_that_is_taken_meanwhile_is_not_the_end(tmp_path):
    taken = tmp_path / "checkpoints" / "step-00000005"
    late = iter([lambda: None, lambda: shutil.copytree(save(tmp_path / "other", 5), taken), lambda: None])
    path = checkpoint.save(tmp_path, 5, 50, MARKS, state(5), keep=1, check=lambda: next(late)())
    assert path.name == "step-00000005.2"
    assert checkpoint.newest(tmp_path, pytest.fail).path == path
    assert not taken.exists()


def test_a_kill_while_checkpoints_are_removed_leaves_no_part_of_one(tmp_path, monkeypatch):
    save(tmp_path, 1)

    def killed_halfway(directory):
        sorted(directory.iterdir())[0].unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalPath, "remove_tree", killed_halfway)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, 2, keep=1)
    places = checkpoint.published(tmp_path)
    assert [checkpoint.load(path).step for _, path in places] == [2]
    save(tmp_path, 3, keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_two_that_remove_the_same_checkpoints_do_not_disturb_each_other(tmp_path, monkeypatch):
    whole = checkpoint._remove_old
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_remove_old", lambda *arguments: None)
        for step in (1, 2, 3):
            save(tmp_path, step)
    monkeypatch.setattr(checkpoint, "_remove_old", lambda *arguments: (whole(*arguments), whole(*arguments)))
    checkpoint.remove_replaced(tmp_path, keep=1, keep_every=0)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


def test_a_worker_whose_attempt_was_removed_by_others_says_that_they_have_taken_over(tmp_path, monkeypatch):
    import safetensors.torch

    whole, others = safetensors.torch.save_file, []

    def save_file(tensors, path, *arguments, **named):
        if not others:
            others.append("have begun")
            save(tmp_path, 5)  # which removes the attempt
        whole(tensors, path, *arguments, **named)

    def check():
        if others:
            raise SupersededError("replaced")

    monkeypatch.setattr("safetensors.torch.save_file", save_file)
    with pytest.raises(SupersededError, match="replaced"):
        checkpoint.save(tmp_path, 5, 50, MARKS, state(5), keep=1, check=check)
    assert checkpoint.newest(tmp_path, pytest.fail).step == 5


def test_attempts_of_a_killed_trainer_are_removed_at_the_end(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "checkpoints" / ".step-00000001.0.tmp").mkdir()
    checkpoint.remove_replaced(tmp_path, keep=1, keep_every=0)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


def test_checkpoints_that_are_removed_while_they_are_looked_for_are_not_corrupt(tmp_path, monkeypatch):
    """The trainer has published another checkpoint and is removing the listed one, of which it has deleted
    the first file or all files.
    """
    for removed in ("model.safetensors", ""):
        run = tmp_path / f"run{removed}"
        save(run, 1)
        whole, waiting = checkpoint.load, [2]

        def overtaken(path, run=run, removed=removed, whole=whole, waiting=waiting):
            if waiting:
                save(run, waiting.pop(), keep=2)
                (path / removed).unlink() if removed else shutil.rmtree(path)
            return whole(path)

        for find in (checkpoint.newest, lambda *arguments: checkpoint.nearest(*arguments, 2)):
            with monkeypatch.context() as patch:
                patch.setattr(checkpoint, "load", overtaken)
                assert find(run, pytest.fail).step == 2
