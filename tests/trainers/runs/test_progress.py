"""Events are printed as lines, including events written by another process."""

from trainers.runs.progress import Progress, followed, line

STEP = {
    "step": 10,
    "steps": 20,
    "tokens": 12_345,
    "loss": 3.21,
    "learning_rate": 1e-3,
    "gradient_norm": 0.5,
    "tokens_per_second": 99.6,
}


def test_an_event_is_a_line_and_the_same_fields_in_the_log(tmp_path):
    from gristmill.events import read_events

    lines = []
    progress = Progress(tmp_path / "log.jsonl", lines.append)
    progress.write("step", **STEP)
    progress.write("checkpoint", step=10, message="here")
    progress.close()
    assert lines == [
        "step 10/20  tokens 12,345  loss 3.21  rate 0.001  gradient 0.5  tokens/s 100",
        "checkpoint  here",
    ]
    assert line("step", {**STEP, "mfu": 0.4567}).endswith("tokens/s 100  mfu 45.7%")
    assert read_events(tmp_path / "log.jsonl", "step")[0]["loss"] == 3.21


def test_only_new_lines_of_a_log_are_followed(tmp_path):
    log = tmp_path / "log.jsonl"
    old = Progress(log, None)
    old.write("checkpoint", message="old")
    lines = []
    with followed(log, lines.append):
        old.write("checkpoint", message="new")
    old.close()
    assert lines == ["checkpoint  new"]


def test_a_line_that_a_kill_cut_off_does_not_end_the_following(tmp_path):
    log, lines = tmp_path / "log.jsonl", []
    log.write_text('{"event": "st')
    with followed(log, lines.append):
        for message in ("one", "two"):
            worker = Progress(log, None)
            worker.write("checkpoint", message=message)
            worker.close()
            with open(log, "a") as file:
                file.write('{"event": "checkp')
    assert lines == ["checkpoint  one", "checkpoint  two"]


def test_workers_but_the_first_are_silent(tmp_path):
    lines = []
    Progress(None, lines.append).write("step", **STEP)
    assert lines == []


def test_a_validation_shows_what_its_objective_measures():
    source = {"loss": 2.0, "tokens": 9}
    masked = {"step": 5, "tokens": 99, "loss": 2.0, "sentence_loss": 0.5, "sources": {"web": source, "code": source}}
    assert line("validation", masked) == (
        "validation at step 5  loss 2.0000  sentence loss 0.5000  web 2.0000  code 2.0000"
    )
    source = source | {"bits_per_byte": 1.25}
    text = masked | {"bits_per_byte": 1.25, "uniform_loss": 3.0, "sources": {"web": source, "code": source}}
    assert line("validation", text) == (
        "validation at step 5  loss 2.0000  sentence loss 0.5000  uniform 3.0000  bits per byte 1.2500  "
        "web 2.0000 (1.250)  code 2.0000 (1.250)"
    )


def test_a_validation_of_one_source_says_its_loss_once():
    fields = {"step": 5, "loss": 2.0, "uniform_loss": 2.0, "scores": {"f1": 0.5}, "sources": {"sst2": {"loss": 2.0}}}
    assert line("validation", fields) == "validation at step 5  loss 2.0000  f1 0.5000"
