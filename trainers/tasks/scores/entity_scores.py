"""F1 of entities. An entity is correct if its type, its first word and its last word are all correct (Tjong
Kim Sang and De Meulder, 2003).

Entities are counted as in the default mode of seqeval 1.2: an I tag that does not continue an entity begins a
new one.
"""

import numpy as np

from trainers.tasks.scores.metric import TaskMetric, ratio, summed
from trainers.tasks.scores.outcomes import Outcomes


def entity_spans(tags: np.ndarray, labels: tuple[str, ...], offsets: np.ndarray) -> np.ndarray:
    """Return the entities in BIO `tags` (indices into `labels`), int64 [entities, 3]: the index of the type
    among the sorted types, the index of the first word, and the index after the last word. Words are numbered
    across all sentences; sentence i begins at word `offsets[i]`.
    """
    types = {name: number for number, name in enumerate(sorted({label[2:] for label in labels if label != "O"}))}
    type_of = np.array([types[label[2:]] if label != "O" else -1 for label in labels], np.int64)
    inside = np.array([label.startswith("I-") for label in labels])
    kinds, continues = type_of[tags], inside[tags]
    continues[1:] &= kinds[1:] == kinds[:-1]
    continues[offsets[:-1][offsets[:-1] < len(tags)]] = False
    (starts,) = np.nonzero((kinds >= 0) & ~continues)
    (breaks,) = np.nonzero(~continues)
    breaks = np.append(breaks, len(tags))
    return np.stack([kinds[starts], starts, breaks[np.searchsorted(breaks, starts, "right")]], axis=1)


def _entities(outcomes: Outcomes) -> np.ndarray:
    """Return the numbers of correct, predicted and gold entities of each sentence, float64 [sentences, 3]."""
    assert outcomes.gold is not None
    assert outcomes.predicted is not None
    assert outcomes.offsets is not None
    offsets = outcomes.offsets
    gold = entity_spans(outcomes.gold, outcomes.labels, offsets)
    predicted = entity_spans(outcomes.predicted, outcomes.labels, offsets)
    right = np.array([*{*map(tuple, gold.tolist())} & {*map(tuple, predicted.tolist())}], np.int64).reshape(-1, 3)
    sentences = len(offsets) - 1
    columns = [
        np.bincount(np.searchsorted(offsets, spans[:, 1], "right") - 1, minlength=sentences)
        for spans in (right, predicted, gold)
    ]
    return np.stack(columns, axis=1).astype(np.float64)


METRICS = (
    TaskMetric(
        "entity_f1",
        _entities,
        summed(lambda sums: ratio(2 * sums[:, 0], sums[:, 1] + sums[:, 2])),
        "Tjong Kim Sang and De Meulder, 2003, as seqeval counts it",
    ),
)
