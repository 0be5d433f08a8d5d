"""Reading the directory of a run while it trains."""

from gristmill.storage.disk import LocalPath
from trainers.report.read_runs import _checkpoints


def test_a_checkpoint_that_training_removes_meanwhile_is_left_out(tmp_path, monkeypatch):
    places = {name: tmp_path / "checkpoints" / name for name in ("step-00000001", "step-00000002", "step-00000003.2")}
    for place in places.values():
        place.mkdir(parents=True)
        (place / "ledger.json").write_bytes(b"x" * 10)
    whole = LocalPath.is_file

    def removed(path):
        found = whole(path)
        if "step-00000001" in str(path):
            path.unlink()
        return found

    monkeypatch.setattr(LocalPath, "is_file", removed)
    assert [(step, size) for step, _, size in _checkpoints(LocalPath(tmp_path))] == [(2, 10), (3, 10)]
