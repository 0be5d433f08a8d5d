"""The commands that list stages, rules, formats and signals show every name, with its meaning."""

import pytest

from pipelines.__main__ import main
from pipelines.reading.sources.registry import FORMATS
from pipelines.stages import STAGES
from pipelines.stages.decide.rule_sets import SETS
from pipelines.stages.measure.signal_columns import SIGNALS


def printed(capsys, *arguments):
    assert main(list(arguments)) == 0
    lines = capsys.readouterr().out.splitlines()
    return dict(line.split(maxsplit=1) for line in lines if len(line.split()) > 1)


@pytest.mark.parametrize(("command", "names"), [("stages", STAGES), ("rules", SETS), ("formats", FORMATS)])
def test_every_name_is_listed(capsys, command, names):
    assert set(printed(capsys, command)) == set(names)


def test_every_signal_is_listed(capsys):
    shown = printed(capsys, "signals")
    for name in SIGNALS.names:
        general = "".join("N" if character.isdigit() and "gram" in name else character for character in name)
        assert name in shown or general.replace("NN", "N") in shown
    assert shown["word_count"] == "words [words]"


def test_one_stage_is_documented(capsys):
    assert main(["stages", "dedup_minhash"]) == 0
    shown = capsys.readouterr().out
    assert "near-copies" in shown
    assert "bands" in shown


def test_the_knobs_of_a_stage_have_their_defaults(capsys):
    knobs = printed(capsys, "stages", "pii")
    assert knobs["score_threshold"] == "default 0.3"
    assert knobs["score_thresholds"] == "default {}"
    assert printed(capsys, "stages", "shards")["tokenizer"] == "required"


def test_the_rules_of_a_set(capsys):
    shown = printed(capsys, "rules", "gopher_quality@massivetext")
    assert shown["word_count:"] == "word_count at least 50 and at most 100000"


@pytest.mark.parametrize(("command", "near"), [("stages", "filtr"), ("rules", "c4@papr")])
def test_an_unknown_name_suggests_a_near_one(capsys, command, near):
    assert main([command, near]) != 0
    assert "did you mean" in capsys.readouterr().err
