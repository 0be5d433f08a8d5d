"""Which measurements in a log count, even if a worker wrote its line late."""

from trainers.runs.history import drop_superseded


def events(*pairs):
    names = ("event", "step", "attempt")
    return [dict(zip(names, pair, strict=False)) for pair in pairs]


def steps(found):
    return [event["step"] for event in found if event["event"] == "step"]


def test_what_a_resume_repeats_is_left_out():
    log = events(("start", 0, 1), ("step", 1), ("step", 2), ("step", 3), ("start", 1, 2), ("step", 2), ("step", 3))
    assert drop_superseded(log) == events(("start", 0, 1), ("step", 1), ("start", 1, 2), ("step", 2), ("step", 3))


def test_starts_without_a_number_count_as_before():
    log = events(("start", 0), ("step", 1), ("step", 2), ("start", 1), ("step", 2))
    assert steps(drop_superseded(log)) == [1, 2]
    assert steps(drop_superseded([*log, *events(("start", 0, 1), ("step", 1))])) == [1]


def test_a_start_that_comes_after_that_of_a_later_attempt_removes_nothing():
    log = events(("start", 0, 2), ("step", 1), ("step", 2), ("start", 0, 1), ("step", 3))
    assert drop_superseded(log) == events(("start", 0, 2), ("step", 1), ("step", 2), ("step", 3))


def test_a_measurement_that_is_there_already_is_left_out():
    log = events(
        ("start", 0, 1), ("step", 1), ("start", 1, 2), ("validation", 2), ("step", 2), ("step", 3), ("step", 2)
    )
    assert [event["step"] for event in drop_superseded(log)] == [0, 1, 1, 2, 2, 3]
