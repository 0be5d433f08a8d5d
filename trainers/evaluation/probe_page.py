"""The page with the scores of probes on each layer, rendered from the template probe.html."""

from collections.abc import Sequence
from pathlib import Path, PurePath

from gristmill.page.lines import LineChart, Series, line_chart
from gristmill.page.render import render_template
from trainers.evaluation.probing.probe_layers import ProbedLayer
from trainers.evaluation.suites.task_result import NoisyScore

_SIZE = (860, 300)
_FINETUNED = "fine-tuned"


def render_probes(
    model: str, task: str, train: str, test: str, layers: Sequence[ProbedLayer], finetuned: NoisyScore | None = None
) -> str:
    """Return a page of probe results as self-contained HTML. `finetuned` is the score of a fine-tuned model
    on the same examples.
    """
    kinds = list(dict.fromkeys(each.classifier for each in layers))
    single = [each for each in layers if "+" not in each.layer]
    stacks = list(dict.fromkeys(each.layer.rpartition(".")[0] for each in single))
    return render_template(
        Path(__file__).with_name("probe.html"),
        title=f"{task}: {PurePath(model).name}",
        kind="probes",
        model=model,
        train=train,
        test=test,
        layers=layers,
        finetuned=finetuned,
        names=[name for kind in kinds for name in (kind, f"{kind}, control")] + [_FINETUNED] * (finetuned is not None),
        charts=[_chart(stack, kinds, single, finetuned) for stack in stacks],
    )


def _chart(
    stack: str, kinds: Sequence[str], layers: Sequence[ProbedLayer], finetuned: NoisyScore | None
) -> LineChart | None:
    series: list[Series] = []
    ticks: dict[float, str] = {}
    for number, kind in enumerate(kinds):
        its = [each for each in layers if each.classifier == kind and each.layer.rpartition(".")[0] == stack]
        places = [int(each.layer.rpartition(".")[2]) for each in its]
        ticks |= {float(place): str(place) for place in places}
        for which, name, scores in (
            (0, kind, [each.accuracy.value for each in its]),
            (1, f"{kind}, control", [each.control.value for each in its]),
        ):
            points = sorted(zip(map(float, places), scores, strict=True))
            series.append(Series(2 * number + which, name, points, dotted=len(points) == 1))
    if finetuned is not None:
        level = [(place, finetuned.value) for place in sorted({min(ticks), max(ticks)})]
        series.append(Series(2 * len(kinds), _FINETUNED, level, dotted=len(level) == 1))
    title = f"accuracy by layer{f' of the {stack}' if stack else ''}"
    return line_chart(title, series, lambda value: f"{value:.3f}", _SIZE, x_ticks=sorted(ticks.items()))
