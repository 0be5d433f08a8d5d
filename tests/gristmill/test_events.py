"""The event log: a last line cut off by a kill is skipped, damaged lines are reported."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.events import EventLog, events_of, read_events

EVENTS = [("start", {"step": 0}), ("step", {"step": 1, "loss": 3.25}), ("warning", {"message": "é\u2028\x1b[2J"})]


def write(path, events=EVENTS):
    log = EventLog(path)
    for name, fields in events:
        log.write(name, **fields)
    log.close()


def said(events):
    return [
        (event["event"], {key: value for key, value in event.items() if key not in ("event", "time")})
        for event in events
    ]


def test_events_come_back(tmp_path):
    path = tmp_path / "run" / "log.jsonl"
    assert read_events(path) == []
    write(path)
    assert said(read_events(path)) == EVENTS
    assert said(read_events(path, "step")) == EVENTS[1:2]
    assert path.read_bytes().isascii()  # no line does anything to a terminal


def test_a_line_that_a_kill_cut_off_is_passed_over_also_when_the_log_goes_on(tmp_path):
    write(tmp_path / "log.jsonl")
    whole = (tmp_path / "log.jsonl").read_bytes()
    (tmp_path / "log.jsonl").write_bytes(whole[:-5])
    assert said(read_events(tmp_path / "log.jsonl")) == EVENTS[:2]
    write(tmp_path / "log.jsonl")
    assert said(read_events(tmp_path / "log.jsonl")) == EVENTS[:2] + EVENTS


def test_lines_of_earlier_versions_are_read():
    assert said(events_of([b'{"event": "step", "time": 1.0, "step": 4}'])) == [("step", {"step": 4})]


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write(path)
    return path.read_bytes()


@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_told_or_changes_nothing(content, tmp_path_factory, place, bit):
    position = int(place * (len(content) - 1))  # the last line end: then it looks cut off
    damaged = bytearray(content)
    damaged[position] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.jsonl"
    path.write_bytes(damaged)
    found = read_events(path)
    told = [event for event in found if event["event"] == "damaged"]
    whole = [
        (name, {k: v for k, v in fields.items() if not k.startswith(("xxh", "yxh"))}) for name, fields in said(found)
    ]
    line = content[:position].count(b"\n") + 1
    if told:
        assert told[0]["message"] == f"line {line} of the log is damaged and is skipped"
        assert all(event in EVENTS for event in whole if event[0] != "damaged")
    else:
        assert [(name, {k: fields[k] for k in EVENTS[i][1]}) for i, (name, fields) in enumerate(whole)] == EVENTS
