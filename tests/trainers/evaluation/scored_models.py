"""Tiny models with a real tokenizer, and the likelihoods that stock `transformers` gives them for single
texts.
"""

from functools import cache

import numpy as np
import pyarrow as pa
import torch

from tests.trainers.models.test_models import tiny
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.evaluation.scoring.scorer import Scorer
from trainers.models import build_model
from trainers.objectives.causal import Causal
from trainers.objectives.masked import Masked
from trainers.objectives.multitask import Multitask
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.sentences.gap_sentences import GapSentences
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.rows.batch import IGNORED

OBJECTIVES = {
    "gpt2": Causal(),
    "gpt": Causal(),
    "llama": Causal(),
    "t5": SpanCorruption(),
    "bart": Denoising(permute_sentences=False),
    "albert": Masked(),
    "bert": Masked(),
    "deberta": Masked(),
    "deberta_v2": Masked(),
    "roberta": Masked(),
    "modernbert": Masked(),
    "prefix": PrefixLM(),
    "t5, prefix": PrefixLM(),
    "bart, gaps": GapSentences(),
    "t5, pairs": Multitask(),
    "llama, pairs": Multitask(),
}
WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "while",
    "another",
    "unhappy",
    "dogfish",
    "barked",
    "loudly",
    "beyond",
    "twenty",
    "gates",
]


@cache
def tokenizer_json():
    return train_byte_bpe([" ".join(WORDS)] * 3, 420)


@cache
def encoder(folder):
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    return Encoder.load(str(folder / "tokenizer.json"))


@cache
def network_of(name):
    architecture = "llama" if name == "prefix" else name.partition(",")[0]
    scale = {} if architecture == "t5" else {"initializer_range": 0.2}
    model = tiny(architecture, vocab_size=448, layers=2, **scale)
    return model, build_model(model, SPECIAL_IDS, 0).eval()


def scorer_of(name, folder, objective=None, **options):
    model, network = network_of(name)
    return Scorer(name, network, model, objective or OBJECTIVES[name], encoder(folder), **options)


def ids_of(folder, text):
    return encoder(folder).encode(pa.array([text], pa.large_string()))[0].astype(np.int64).tolist()


def likelihoods(network, wanted, **arrays):
    with torch.no_grad():
        logits = network(**{name: torch.tensor([ids]) for name, ids in arrays.items()}).logits[0].double()
    chosen = [(place, token) for place, token in enumerate(wanted) if token != IGNORED]
    return [float(logits[place].log_softmax(0)[token]) for place, token in chosen]


def reference(name, folder, context, continuation, word_ends=None):
    """Return the log-likelihood of the ids of a continuation, computed in a plain loop. When an encoder
    predicts token i of the continuation, the tokens from i to before `word_ends[i]` are masked, by default
    only token i.
    """
    _, network = network_of(name)
    specials, both = SPECIAL_IDS, [*context, *continuation]
    if name in ("gpt2", "gpt", "llama"):
        inputs = [specials["<bos>"], *both[:-1]]
        return sum(likelihoods(network, [*[IGNORED] * len(context), *continuation], input_ids=inputs))
    if name == "llama, pairs":
        inputs = [specials["<bos>"], *context, specials["<eos>"], *continuation[:-1]]
        return sum(likelihoods(network, [*[IGNORED] * (len(context) + 1), *continuation], input_ids=inputs))
    if name in ("albert", "bert", "deberta", "deberta_v2", "roberta", "modernbert"):
        total = 0.0
        for number, token in enumerate(continuation):
            until = number + 1 if word_ends is None else word_ends[number]
            first = len(context) + number
            masked = [*both[:first], *[specials["<mask>"]] * (until - number), *both[first + until - number :]]
            wanted = [IGNORED] * (first + 1) + [token]
            total += likelihoods(network, wanted, input_ids=[specials["<cls>"], *masked, specials["<sep>"]])[0]
        return total
    eos, start, sentinel = specials["<eos>"], specials["<pad>"], specials["<extra_id_0>"]
    if name == "t5":
        source, given = [*context, sentinel, eos], [start, sentinel]
    elif name in ("t5, prefix", "t5, pairs"):
        source, given = [*context, eos], [start]
    elif name == "bart, gaps":
        source, given = [*context, specials["<mask>"], eos], [eos]
    else:
        bos = specials["<bos>"]
        source, given = [bos, *context, specials["<mask>"], eos], [eos, bos, *context]
    wanted = [*[IGNORED] * (len(given) - 1), *continuation]
    return sum(likelihoods(network, wanted, input_ids=source, decoder_input_ids=[*given, *continuation[:-1]]))
