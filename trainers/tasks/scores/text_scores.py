"""Metrics of text: ROUGE, BLEU and chrF for texts that a model has written, and perplexity and bits per byte
for texts that it has scored.

rouge-score computes ROUGE, and sacrebleu computes BLEU and chrF, because their tokenization is part of the
metric.
"""

import importlib
import math
from functools import partial
from typing import Any

import numpy as np

from gristmill.errors import UserError
from gristmill.libraries.extras import install_extra
from trainers.tasks.scores.metric import TaskMetric, Value, bounded_exp, mean_of, summed
from trainers.tasks.scores.outcomes import Outcomes

LIBRARIES = {
    **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), "rouge_score"),
    **dict.fromkeys(("bleu", "chrf"), "sacrebleu"),
}
"""The library that each of these metrics needs. Other metrics need none."""


def _library(module: str, metric: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise UserError(f"metrics: {metric} needs {package} ({error}); run: {install_extra('finetune')}") from None


def _texts(outcomes: Outcomes) -> tuple[list[str], list[list[str]]]:
    assert outcomes.texts is not None
    assert outcomes.references is not None
    return outcomes.texts, outcomes.references


def _rouge(outcomes: Outcomes, kind: str) -> np.ndarray:
    """Return two columns, float64 [n, 2]: each example's best ROUGE F1 (Lin, 2004) over its references, and a
    constant 1, which counts the examples. Words are stemmed by Porter's stemmer.
    """
    scorer = _library("rouge_score.rouge_scorer", kind).RougeScorer([kind], use_stemmer=True)
    texts, references = _texts(outcomes)
    values = [scorer.score_multi(gold, text)[kind].fmeasure for text, gold in zip(texts, references, strict=True)]
    return np.stack([values, np.ones(len(values))], axis=1)


def _sacrebleu(name: str, outcomes: Outcomes) -> tuple[Any, np.ndarray]:
    """Return sacrebleu's object for the metric `name` ("bleu" or "chrf") and the statistics that it computes
    for each example, float64 [n, statistics].
    """
    metric = {"bleu": "BLEU", "chrf": "CHRF"}[name]
    scorer = getattr(_library("sacrebleu", name), metric)()
    texts, references = _texts(outcomes)
    most = max(map(len, references))
    streams = [[gold[i] if i < len(gold) else None for gold in references] for i in range(most)]
    return scorer, np.array(scorer._extract_corpus_statistics(texts, streams), np.float64)


def _statistics(name: str, outcomes: Outcomes) -> np.ndarray:
    return _sacrebleu(name, outcomes)[1]


def _signature(name: str, outcomes: Outcomes) -> str:
    return str(_sacrebleu(name, outcomes)[0].get_signature())


def _value(name: str) -> Value:
    def finish(sums: np.ndarray) -> np.ndarray:
        scorer = getattr(_library("sacrebleu", name), {"bleu": "BLEU", "chrf": "CHRF"}[name])()
        return np.array([scorer._compute_score_from_stats(row).score for row in sums])

    return summed(finish)


def _costs(outcomes: Outcomes) -> np.ndarray:
    if outcomes.nats is None or outcomes.tokens is None:
        raise UserError("metrics: perplexity needs the nats and tokens of the gold texts, which these predictions lack")
    return np.stack([outcomes.nats, outcomes.tokens], axis=1)


def _bits(outcomes: Outcomes) -> np.ndarray:
    if outcomes.nats is None or outcomes.text_bytes is None:
        raise UserError(
            "metrics: bits_per_byte needs the nats and bytes of texts; measure them with `trainers evaluate`"
        )
    return np.stack([outcomes.nats / math.log(2), outcomes.text_bytes], axis=1)


METRICS = (
    *(
        TaskMetric(kind, partial(_rouge, kind=kind), summed(mean_of), "Lin, 2004, as rouge-score counts it, with stems")
        for kind in ("rouge1", "rouge2", "rougeL", "rougeLsum")
    ),
    *(
        TaskMetric(name, partial(_statistics, name), _value(name), source, signature=partial(_signature, name))
        for name, source in (
            ("bleu", "Papineni et al., 2002, as sacrebleu counts it (Post, 2018)"),
            ("chrf", "Popovic, 2015, as sacrebleu counts it"),
        )
    ),
    TaskMetric(
        "perplexity",
        _costs,
        summed(lambda sums: bounded_exp(mean_of(sums))),
        "exp of the mean nats per token of the gold texts",
        higher_is_better=False,
    ),
    TaskMetric(
        "bits_per_byte",
        _bits,
        summed(mean_of),
        "Gao et al., 2020, The Pile: nats / ln 2 of all texts over their UTF-8 bytes",
        higher_is_better=False,
    ),
)
