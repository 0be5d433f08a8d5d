"""The scores of checkpoints as lines of text."""

from collections.abc import Sequence

from trainers.evaluation.checkpoints.score_history import ScoreHistory, compare_histories, signals
from trainers.evaluation.evaluation_lines import cells, difference_lines
from trainers.report.task_table import align


def history_lines(histories: Sequence[ScoreHistory]) -> list[str]:
    """Return the lines of text tables: the scores of each checkpoint, the averages of each run, the signal
    and noise of each score, and comparisons of the runs.
    """
    rows: list[Sequence[str]] = [("run", "step", "score", "version", "value", "error", "95 % interval", "chance")]
    for history in histories:
        for result in history.results:
            for name, score in result.scores.items():
                shown = (f"[{score['low']:.4f}, {score['high']:.4f}]", _chance(score))
                numbers = (f"{score['value']:.4f}", f"{score['error']:.4f}")
                rows.append((history.run, f"{result.step:,}", name, result.versions[name], *numbers, *shown))
    lines = align(rows)
    rows = [("run", "average of steps", "score", "value", "error", "95 % interval", "chance", "between checkpoints")]
    for history in histories:
        for name, each in history.averages.items():
            deviation = "" if each.deviation is None else f"{each.deviation:.4f}"
            steps = ", ".join(f"{step:,}" for step in each.steps)
            rows.append((history.run, steps, name, *cells(each.score), deviation))
    lines += ["", *align(rows)]
    for history in histories:
        if history.suite is not None and history.at_chance:
            names = ", ".join(history.at_chance)
            lines.append(f"{history.run}: not above chance in the mean of {history.suite.name}: {names}")
    if found := signals(histories):
        table: list[Sequence[str]] = [("score", "signal", "noise", "signal to noise", "")]
        for one in found:
            mark = "no run above chance" if one.at_chance else ""
            table.append((one.name, f"{one.signal:.4f}", f"{one.noise:.4f}", f"{one.ratio:.1f}", mark))
        lines += ["", *align(table)]
    return lines + difference_lines(list(compare_histories(histories)))


def _chance(score: dict[str, object]) -> str:
    if "chance" not in score:
        return ""
    mark = {"at": " (at chance)", "below": " (below chance)"}.get(str(score["verdict"]), "")
    return f"{score['chance']:.4f}{mark}"
