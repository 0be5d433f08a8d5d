"""Objectives: what a batch of packed documents becomes for a model to learn from.

An objective is a frozen dataclass; its fields are the knobs of `objective:` in a recipe. It says how documents are marked
in the stream (`frame`), which `families` of models it trains, whether all of the text is predicted once
(`predicts_text`: then bits per byte mean something), how many tokens of the stream a row of a model of a family takes
(`stream_length`), and which losses with which weights training minimises (`losses`, names of `trainers.engine.losses`,
`loss` first). Its `apply` is a pure function from batch to batch. To add one: a file here, a line in OBJECTIVES.
"""

from trainers.objectives.causal import Causal
from trainers.objectives.denoising import Denoising
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.masked import Masked
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.next_sentence import NextSentence
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.sentence_order import SentenceOrder
from trainers.objectives.span_corruption import SpanCorruption

Objective = (
    Causal
    | Denoising
    | FillInTheMiddle
    | Masked
    | ObjectiveMixture
    | NextSentence
    | PrefixLM
    | SentenceOrder
    | SpanCorruption
)
PAIR_OBJECTIVES = (NextSentence, SentenceOrder)  # their rows are sentence pairs
OBJECTIVES: dict[str, type] = {
    "causal": Causal,
    "denoising": Denoising,
    "fill_in_the_middle": FillInTheMiddle,
    "masked": Masked,
    "mixture": ObjectiveMixture,
    "next_sentence": NextSentence,
    "prefix_lm": PrefixLM,
    "sentence_order": SentenceOrder,
    "span_corruption": SpanCorruption,
}
