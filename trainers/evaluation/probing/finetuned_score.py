"""The accuracy of a fine-tuned run on the test examples of a probe."""

import numpy as np

from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from trainers.evaluation.suites.task_result import NoisyScore, estimate
from trainers.inference.predict import PREDICTIONS
from trainers.tasks.examples import Examples
from trainers.tasks.predictions import read_predictions
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.outcomes import Outcomes


def finetuned_score(run: LocalPath, test: Examples) -> NoisyScore:
    """Return the accuracy of a fine-tuned run on `test`, the first examples of a split, from its stored
    predictions. The standard error treats sentences or texts, not words, as independent. Raises UserError if
    the run has no predictions of the split, or if they are of other examples.
    """
    task, split, count = test.task, test.split, len(test.ids)
    paths = [run / PREDICTIONS / f"{name}.parquet" for name in (split, f"{task.name}.{split}")]
    found = next((path for path in paths if path.exists()), None)
    if found is None:
        raise UserError(
            f"finetuned: {run} has no predictions of {split}; give a finished run of `finetune {task.name}`, or name another "
            f"split in test="
        )
    stored = read_predictions(found)
    offsets = np.arange(count + 1) if test.word_offsets is None else test.word_offsets
    gold, its = test.labels if test.tags is None else test.tags, stored.outcomes
    assert gold is not None
    size = int(offsets[-1])
    same = stored.task.kind == task.kind and stored.ids[:count] == list(test.ids) and its.gold is not None
    if not same or its.gold is None or its.predicted is None or not np.array_equal(its.gold[:size], gold):
        raise UserError(
            f"finetuned: {found} has other examples than {split} of {task.name}; give a run that was fine-tuned on this task"
        )
    outcomes = Outcomes(gold=gold, predicted=its.predicted[:size], offsets=offsets)
    return estimate(METRICS["accuracy"], outcomes)
