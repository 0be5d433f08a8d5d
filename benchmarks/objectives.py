"""Benchmark pair objectives: tokens of the stream per second on one thread, and their share of a training step.

    python -m benchmarks.objectives [--rows 64] [--step-rows 2] [--sequence-length 512]

The step is the forward and backward pass of a T5 or a Llama of about 25 M parameters over the batch that the
objective made from fewer rows, on all threads that torch uses. Document lengths are lognormal with a median
of about 150 tokens; times are the shortest of several. There is no comparison, because no peer trains on
these objectives with packed documents.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from tokenizer.vocabulary.definition import Definition, characters_of_bytes
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES, Model, fill
from trainers.objectives.denoising import Denoising
from trainers.objectives.fill_in_the_middle import FillInTheMiddle
from trainers.objectives.masked import Masked
from trainers.objectives.mixture import ObjectiveMixture
from trainers.objectives.multitask import Multitask
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.salient_spans import SalientSpans
from trainers.objectives.sentences.gap_sentences import GapSentences
from trainers.objectives.shared.character_cuts import TokenTexts
from trainers.objectives.shared.context import Context
from trainers.objectives.span_corruption import SpanCorruption
from trainers.objectives.translation_lm import TranslationLM
from trainers.rows.batch import Batch, Frame

VOCABULARY = 32_000
SIZES = {"layers": 4, "width": 384, "heads": 6, "positions": 2048}
OBJECTIVES: dict[str, tuple[str, Any]] = {
    "span corruption": ("t5", SpanCorruption()),
    "i.i.d. replace": ("t5", SpanCorruption(noise="tokens")),
    "i.i.d. drop": ("t5", SpanCorruption(noise="tokens", style="drop")),
    "MASS": ("t5", SpanCorruption(noise="tokens", style="mass")),
    "BERT-style": ("t5", SpanCorruption(noise="tokens", style="bert")),
    "deshuffling": ("t5", SpanCorruption(style="deshuffle")),
    "denoising (BART's choice)": ("t5", Denoising()),
    "denoising, all five noises": ("t5", Denoising(masking=0.1, deletion=0.1, rotate=True)),
    "gap sentences": ("t5", GapSentences()),
    "gap sentences, random": ("t5", GapSentences(choose="random")),
    "salient spans": ("t5", SalientSpans()),
    "salient spans, by sentence": ("t5", SalientSpans(unit="sentences")),
    "multitask": ("t5", Multitask()),
    "prefix LM": ("t5", PrefixLM()),
    "UL2": ("t5", ObjectiveMixture()),
    "span corruption, decoder": ("llama", SpanCorruption()),
    "prefix LM, decoder": ("llama", PrefixLM()),
    "fill in the middle, decoder": ("llama", FillInTheMiddle()),
    "masked, encoder": ("bert", Masked()),
    "translation LM, encoder": ("bert", TranslationLM()),
}


def texts() -> TokenTexts:
    """Texts of a byte-level BPE whose tokens are words of random letters after a space, so that every cut
    inside a word has to be encoded again.
    """
    rng, vocabulary = np.random.default_rng(1), dict(SPECIAL_IDS)
    vocabulary |= {character: len(vocabulary) + number for number, character in enumerate(characters_of_bytes())}
    merges: list[tuple[str, str]] = []
    while len(vocabulary) < VOCABULARY:
        word = "Ġ"
        for letter in rng.choice(list("etaoinshrdlu"), rng.integers(2, 8)).tolist():
            if word + letter not in vocabulary and len(vocabulary) < VOCABULARY:
                merges.append((word, letter))
                vocabulary[word + letter] = len(vocabulary)
            word += letter
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(SPECIAL_IDS))
    return TokenTexts(Definition("benchmark", json.loads(tokenizer.to_str())))


def rows_of(rows: int, length: int, frame: Frame) -> Batch:
    """Rows of documents of random tokens in sentences of about 20 tokens, with the special tokens of `frame`. Two of 24 tokens
    are in spans. Every other document is a pair, whose second half is the target.
    """
    rng = np.random.default_rng(0)
    inputs = rng.integers(len(SPECIAL_IDS), VOCABULARY, (rows, length))
    segments, in_target = np.zeros_like(inputs), np.zeros(inputs.shape, bool)
    for row in range(rows):
        borders = np.cumsum(rng.lognormal(5, 1, length).astype(int) + 1)
        segments[row, borders[borders < length]] = 1
        for first, end in list(pairwise([0, *borders]))[::2]:
            in_target[row, (first + end) // 2 : end] = True
    begins = segments == 1
    begins[:, 0] = True
    segments = np.cumsum(segments, axis=1)
    if frame.before is not None:
        inputs[begins] = SPECIAL_IDS[frame.before]
    targets = np.concatenate([inputs[:, 1:], inputs[:, :1]], axis=1)
    targets[:, :-1][begins[:, 1:]] = SPECIAL_IDS["<eos>"]
    numbers, nothing = np.arange(rows), np.zeros(rows, np.int64)
    starts = begins | (rng.random(inputs.shape) < 0.05)
    inside = (np.arange(length) % 24 < 2)[None, :] & (segments >= 0)  # two tokens of 24, as in prose
    spans = np.where(inside[..., None], np.stack([np.arange(length) // 24, np.arange(length) // 24 % 2], axis=1), -1)
    arrays = (inputs, targets, inputs * 0, segments, nothing, numbers, numbers, nothing)
    return Batch(*arrays, sentence_starts=starts, spans=spans, in_target=in_target)


def shortest(run: Callable[[], object], seconds: float) -> float:
    """Seconds of the fastest run, of as many as fit into `seconds`, at least one."""
    best, began = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def step_of(architecture: str) -> Callable[[Batch], None]:
    """The forward and backward pass of a model of the architecture."""
    from trainers.engine.forward import Forward, tensors
    from trainers.models import build_model

    model = build_model(fill(Model(architecture, **SIZES), VOCABULARY), dict(SPECIAL_IDS), 0)  # type: ignore[arg-type]
    forward = Forward(model, architecture)

    def step(batch: Batch) -> None:
        forward(**tensors(batch, "cpu"))["loss"].sum().backward()
        model.zero_grad()

    return step


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64, help="of an objective's batch")
    parser.add_argument("--step-rows", type=int, default=2, help="of a training step's batch")
    parser.add_argument("--sequence-length", type=int, default=512)
    options = parser.parse_args()
    steps = {architecture: step_of(architecture) for architecture in ("t5", "llama", "bert")}
    found, known = {}, texts()
    for name, (architecture, objective) in OBJECTIVES.items():
        family, length = ARCHITECTURES[architecture].family, options.sequence_length
        start = ARCHITECTURES[architecture].decoder_start
        context = Context(0, dict(SPECIAL_IDS), VOCABULARY, family, length, decoder_start=start, texts=known)
        taken = objective.stream_length(length, family)
        batch, few = (rows_of(rows, taken, objective.frame) for rows in (options.rows, options.step_rows))
        objective.apply(batch, context)
        apply = shortest(lambda o=objective, b=batch, c=context: o.apply(b, c), 1.0) / batch.inputs.size
        made = objective.apply(few, context)
        step = shortest(lambda s=steps[architecture], m=made: s(m), 0.0) / few.inputs.size
        found[name] = {"million_tokens_per_second": 1e-6 / apply, "share_of_step": apply / (apply + step)}
        print(f"{name:28} {1e-6 / apply:7.1f} M tokens/s  {apply / (apply + step):8.4%} of a step", flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
