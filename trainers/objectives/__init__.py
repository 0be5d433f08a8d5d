"""Objectives, which turn batches of packed documents into inputs and targets.

`shared.training_objective` defines their protocol. To add an objective, add a file here and its class to the
union `Objective`.
"""

from typing import get_args

from trainers.objectives.bidirectional_lm import BidirectionalLM
from trainers.objectives.causal import Causal
from trainers.objectives.characters.masked_characters import MaskedCharacters
from trainers.objectives.characters.masked_subwords import MaskedSubwords
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.masked import Masked
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.multitask import Multitask
from trainers.objectives.permutation import Permutation
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.replaced_tokens import ReplacedTokens
from trainers.objectives.sentences.gap_sentences import GapSentences
from trainers.objectives.sentences.next_sentence import NextSentence
from trainers.objectives.sentences.quick_thought import QuickThought
from trainers.objectives.sentences.sentence_order import SentenceOrder
from trainers.objectives.sentences.simcse import SimCSE
from trainers.objectives.sentences.skip_thought import SkipThought
from trainers.objectives.span_boundary import SpanBoundary
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.salient_spans import SalientSpans
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.objectives.translation_lm import TranslationLM

Objective = (
    BidirectionalLM
    | Causal
    | Denoising
    | FillInTheMiddle
    | GapSentences
    | Masked
    | MaskedCharacters
    | MaskedSubwords
    | ObjectiveMixture
    | Multitask
    | NextSentence
    | Permutation
    | PrefixLM
    | QuickThought
    | ReplacedTokens
    | SalientSpans
    | SentenceOrder
    | SimCSE
    | SkipThought
    | SpanBoundary
    | SpanCorruption
    | TranslationLM
)
OBJECTIVES: dict[str, type[Objective]] = {objective.kind: objective for objective in get_args(Objective)}
