"""Probe layers: measure the accuracy of classifiers on the states of each layer, and on a control task."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.evaluation.probing.classifiers import Classifier, predict_labels
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.evaluation.probing.probe_examples import ProbeExamples, control_labels, probe_examples
from trainers.evaluation.suites.task_result import NoisyScore, estimate
from trainers.tasks.examples import Examples
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.outcomes import Outcomes


@dataclass(frozen=True)
class ProbedLayer:
    """The accuracy of a classifier that reads the states of a layer: on the probed labels (`accuracy`) and on
    the control task (`control`). Their difference, the `selectivity`, is low if the classifier can memorise
    arbitrary labels (Hewitt and Liang, 2019).
    """

    layer: str
    classifier: Classifier
    accuracy: NoisyScore
    control: NoisyScore

    @property
    def selectivity(self) -> float:
        """The accuracy on the probed labels minus that on the control task."""
        return self.accuracy.value - self.control.value

    def plain(self) -> dict[str, Any]:
        """Return the scores as JSON data."""
        names = {"layer": self.layer, "classifier": self.classifier, "selectivity": self.selectivity}
        return {**names, "accuracy": self.accuracy.plain(), "control": self.control.plain()}


def probe_layers(
    reader: StateReader,
    train: Examples,
    test: Examples,
    layers: Sequence[str],
    classifiers: Sequence[Classifier],
    seed: int,
    tell: Callable[[str], None],
) -> list[ProbedLayer]:
    """Return the accuracies of classifiers that read the states of a model's layers. For each layer and kind
    of classifier, one classifier is trained on the labels of `train` and one on the labels of the control
    task; both are scored on `test`. An entry of `layers` that joins several layers with `+` is probed on
    their concatenated states.

    Chance is the accuracy of always predicting the most common label of the training examples.
    """
    single = list(dict.fromkeys(part for layer in layers for part in layer.split("+")))
    first, second = probe_examples(reader, train, single), probe_examples(reader, test, single)
    tell(f"{len(first):,} training and {len(second):,} test examples of {len(set(first.types)):,} types")
    most = int(np.bincount(first.labels).argmax())
    chance = float((second.labels == most).mean())
    controls = control_labels(first, second, seed)
    found = []
    for layer in layers:
        numbers = [single.index(part) for part in layer.split("+")]
        states, unseen = (np.concatenate(each.states[numbers], axis=1) for each in (first, second))
        for kind in classifiers:
            values = list(_scores(kind, states, unseen, first, second, controls, seed))
            found.append(ProbedLayer(layer, kind, _noisy(second, *values[0], chance), _noisy(second, *values[1])))
            tell(f"layer {layer}: {kind} {found[-1].accuracy.value:.4f}, control {found[-1].control.value:.4f}")
    return found


def _scores(
    kind: Classifier, states: np.ndarray, unseen: np.ndarray, first: ProbeExamples, second: ProbeExamples,
    controls: tuple[np.ndarray, np.ndarray], seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:  # fmt: skip
    for labels, gold in ((first.labels, second.labels), controls):
        yield gold, predict_labels(kind, states, labels, unseen, seed)


def _noisy(test: ProbeExamples, gold: np.ndarray, predicted: np.ndarray, chance: float | None = None) -> NoisyScore:
    return estimate(METRICS["accuracy"], Outcomes(gold=gold, predicted=predicted, offsets=test.offsets), chance)


def probe_lines(found: Sequence[ProbedLayer], finetuned: NoisyScore | None = None) -> list[Sequence[str]]:
    """Return a header, a row for each layer and classifier, and a last row for a fine-tuned run if its score
    is given.
    """
    rows: list[Sequence[str]] = [("layer", "classifier", "accuracy", "error", "chance", "control", "selectivity")]
    for each in found:
        score = each.accuracy
        numbers = (f"{score.value:.4f}", f"{score.error:.4f}", f"{score.chance:.4f}", f"{each.control.value:.4f}")
        rows.append((each.layer, each.classifier, *numbers, f"{each.selectivity:+.4f}"))
    if finetuned is not None:
        rows.append(("fine-tuned", "", f"{finetuned.value:.4f}", f"{finetuned.error:.4f}", "", "", ""))
    return rows
