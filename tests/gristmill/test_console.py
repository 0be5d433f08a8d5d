"""Console output: text is shown as it is."""

from gristmill.console import ProgressDisplay, wide_console


def test_names_between_colons_stay_text(capsys):
    ProgressDisplay().say("read :fire:")
    wide_console().print("kept :fire:", markup=False)
    assert capsys.readouterr().out.count(":fire:") == 2
