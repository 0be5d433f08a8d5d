"""The majority baseline of a task: the score of predictions that ignore the texts of the examples."""

from collections import Counter

import numpy as np

from trainers.tasks.examples import Examples
from trainers.tasks.predictions import Predictions, predictions_of, score_predictions


def majority_predictions(train: Examples, examples: Examples) -> Predictions:
    """Return predictions for `examples` that depend only on the gold of `train`, which must not be hidden:

    - for `classify` and `tag`, the most common label or tag
    - for `generate`, the most common text, counting only the first accepted text of each example
    - for `choose`, the index that is most often correct, among those that the example has
    - for `regress`, the mean
    - for `span`, "no answer"
    """
    if train.values is not None:
        return predictions_of(examples, np.full(len(examples), train.values.mean()), "mean")
    if train.targets is not None and train.labels is None:
        texts = [target for targets in train.targets for target in targets[:1]]
        common = "" if train.spans is not None else (Counter(texts).most_common(1) or [("", 0)])[0][0]
        return predictions_of(examples, [common] * len(examples), "majority")
    gold = train.labels if train.labels is not None else train.tags
    assert gold is not None
    counts = np.bincount(gold[gold >= 0])
    if examples.candidate_offsets is not None:
        chosen = [counts[:size].argmax() for size in np.diff(examples.candidate_offsets)]
        return predictions_of(examples, np.array(chosen, np.int64), "majority")
    count = len(examples) if examples.tags is None else len(examples.tags)
    return predictions_of(examples, np.full(count, counts.argmax()), "majority")


def majority_scores(train: Examples, examples: Examples) -> dict[str, float]:
    """Return the scores of the majority predictions from `train` on `examples`, keyed by metric. They cover
    the task's metrics except perplexity.
    """
    metrics = [metric for metric in examples.task.metrics if metric != "perplexity"]
    scores = score_predictions(majority_predictions(train, examples), metrics, repetitions=0)
    return {metric: score.value for metric, score in scores.items()}
