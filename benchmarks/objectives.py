"""Benchmark objectives: tokens of the stream per second on one thread, and their share of a training step.

    python -m benchmarks.objectives [OBJECTIVE ...] [--rows 64] [--step-rows 2] [--sequence-length 512]

The step is the forward and backward pass, including losses, of a model that the objective trains, with 4
layers (skip-thoughts: 1) of width 384. It runs on all threads that torch uses, over a batch that the
objective made from fewer rows. Document lengths are lognormal with a median of about 150 tokens. Times are
the shortest of several. There is no comparison, because no peer trains on these objectives with packed
documents.

A generator and a second stream are part of the step. Some objectives need other work in networks and losses
besides layers and cross-entropies, such as drawing tokens or comparing vectors. This work is also part of the
step, and its share of the step in the forward pass is printed too.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from tokenizer.vocabulary.definition import Definition, characters_of_bytes
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import Model, fill
from trainers.objectives.bidirectional_lm import BidirectionalLM
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
from trainers.objectives.shared.character_cuts import TokenTexts
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.spellings import SpelledTokens, character_counts, spellings
from trainers.objectives.shared.whole_words import word_marks
from trainers.objectives.span_boundary import SpanBoundary
from trainers.objectives.spans.denoising import Denoising
from trainers.objectives.spans.salient_spans import SalientSpans
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.objectives.translation_lm import TranslationLM
from trainers.rows.batch import IGNORED, Batch, Frame

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
    "masked spans and their boundary": ("bert", SpanBoundary()),
    "next sentence": ("bert", NextSentence()),
    "sentence order": ("albert", SentenceOrder()),
    "replaced tokens": ("electra", ReplacedTokens()),
    "permutations": ("xlnet", Permutation()),
    "masked subwords of characters": ("canine", MaskedSubwords()),
    "masked characters": ("canine", MaskedCharacters()),
    "bidirectional LM": ("elmo", BidirectionalLM()),
    "SimCSE": ("bert", SimCSE()),
    "quick thoughts": ("bert", QuickThought()),
    "skip-thoughts": ("gru", SkipThought()),
}
# The fields of a model that an objective or an architecture needs, or that recurrent models have otherwise.
FIELDS: dict[str, dict[str, Any]] = {
    "span_boundary": {"boundary_head": True},
    "next_sentence": {"sentence_head": True},
    "sentence_order": {"sentence_head": True},
    "replaced_tokens": {"generator_size": 0.5},
    "masked_subwords": {"positions": 8192},
    "masked_characters": {"positions": 8192, "character_buckets": 1024},
    "bidirectional_lm": {"heads": 1},
    "skip_thought": {"heads": 1, "layers": 1},
}
# The functions of networks and losses that work for an objective beside layers and cross-entropies: where a name is looked up.
_SPELLED = "trainers.models.encoders.canine_characters:Spelling.lay_out"
_POOLED, _NATS = (
    "trainers.engine.vectors.contrastive_losses:pooled_segments",
    "trainers.engine.vectors.contrastive_losses",
)
PARTS: dict[str, tuple[str, ...]] = {
    "replaced_tokens": ("trainers.engine.losses:draw_tokens",),
    "masked_subwords": (_SPELLED,),
    "masked_characters": (_SPELLED,),
    "simcse": (_POOLED, f"{_NATS}:contrastive_nats"),
    "quick_thought": (_POOLED, f"{_NATS}:neighbour_nats"),
    "skip_thought": ("trainers.engine.losses:neighbour_vectors",),
}


def definition() -> Definition:
    """Return a byte-level BPE in which each merged token is a space followed by random letters.

    With these tokens, cutting inside a word always requires re-encoding.
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
    return Definition("benchmark", json.loads(tokenizer.to_str()))


def rows_of(rows: int, length: int, frame: Frame) -> Batch:
    """Return rows of random tokens, cut into documents, with sentences of about 20 tokens and `frame.before`
    at the start of each document.

    Two of every 24 tokens are in spans. Every other document is a pair, and its second half is the target.
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
    """Return the seconds of the fastest run, repeating for about `seconds`."""
    best, began = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def pairs_of(rows: int, length: int) -> Batch:
    """Return rows of two segments of random tokens, separated by special tokens.

    The first segment fills between a quarter and three quarters of the row.
    """
    rng = np.random.default_rng(0)
    inputs = rng.integers(len(SPECIAL_IDS), VOCABULARY, (rows, length))
    end = rng.integers(length // 4, 3 * length // 4, rows)
    second = (np.arange(length) > end[:, None]).astype(np.int64)
    inputs[:, 0] = SPECIAL_IDS["<cls>"]
    inputs[np.arange(rows), end] = inputs[:, -1] = SPECIAL_IDS["<sep>"]
    numbers, nothing = np.arange(rows), np.zeros(rows, np.int64)
    arrays = (inputs, np.full_like(inputs, IGNORED), np.tile(np.arange(length), (rows, 1)), second)
    return Batch(*arrays, nothing, numbers, numbers, nothing, token_types=second, labels=numbers % 2)


def model_of(architecture: str, objective: Any) -> Model:
    return fill(Model(architecture, **SIZES | FIELDS.get(objective.kind, {})), VOCABULARY)


def step_of(sizes: Model, objective: Any, spelled: list[bytes]) -> Callable[[Batch], None]:
    from trainers.engine.forward import Forward, tensors
    from trainers.engine.losses import losses_of
    from trainers.models import MODELS, build_model

    model, architecture = build_model(sizes, dict(SPECIAL_IDS), 0), MODELS[sizes.architecture]
    if architecture.spell is not None:
        architecture.spell(model, spelled, dict(SPECIAL_IDS))
    losses = losses_of(objective.losses, objective.contrast)
    forward = Forward(model, sizes.architecture, not objective.sentence_pairs, losses)

    def step(batch: Batch) -> None:
        made = forward(**tensors(batch, "cpu"))
        sum(made[loss.name].sum() for loss in losses).backward()
        model.zero_grad()

    return step


@contextmanager
def timed(parts: tuple[str, ...]) -> Iterator[list[float]]:
    """Record in a list the seconds of every call to the functions `parts`, each `module:name` or `module:Class.method`."""
    seconds: list[float] = []
    places = []
    for part in parts:
        module, _, names = part.partition(":")
        owner, (*classes, name) = import_module(module), names.split(".")
        for each in classes:
            owner = getattr(owner, each)
        places.append((owner, name, getattr(owner, name)))

    def counting(function: Callable[..., object]) -> Callable[..., object]:
        @wraps(function)
        def counted(*arguments: Any, **named: Any) -> object:
            start = time.perf_counter()
            made = function(*arguments, **named)
            seconds.append(time.perf_counter() - start)
            return made

        return counted

    for owner, name, function in places:
        setattr(owner, name, counting(function))
    try:
        yield seconds
    finally:
        for owner, name, function in places:
            setattr(owner, name, function)


def share_of(parts: tuple[str, ...], step: Callable[[], None]) -> float:
    with timed(parts) as seconds:
        start = time.perf_counter()
        step()
        return sum(seconds) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "objectives", metavar="OBJECTIVE", nargs="*", help=f"some of {', '.join(OBJECTIVES)}; default all"
    )
    parser.add_argument("--rows", type=int, default=64, help="of an objective's batch")
    parser.add_argument("--step-rows", type=int, default=2, help="of a training step's batch")
    parser.add_argument("--sequence-length", type=int, default=512)
    options = parser.parse_args()
    if unknown := set(options.objectives) - set(OBJECTIVES):
        parser.error(f"OBJECTIVE: got {', '.join(sorted(unknown))}, expected some of {', '.join(OBJECTIVES)}")
    found, known = {}, definition()
    texts, spelled = TokenTexts(known), spellings(known)
    characters = {"character_counts": character_counts(spelled), "spelled": SpelledTokens.of(spelled)}
    for name in options.objectives or OBJECTIVES:
        architecture, objective = OBJECTIVES[name]
        sizes, length = model_of(architecture, objective), options.sequence_length
        context = Context(
            0,
            dict(SPECIAL_IDS),
            VOCABULARY,
            sizes.family,
            length,
            word_marks(known),
            decoder_start=sizes.traits.decoder_start,
            texts=texts,
            character_buckets=sizes.character_buckets,
            **characters,  # type: ignore[arg-type]
        )
        taken = objective.stream_length(length, sizes.family)
        batch, few = (
            pairs_of(rows, taken) if objective.sentence_pairs else rows_of(rows, taken, objective.frame)
            for rows in (options.rows, options.step_rows)
        )
        objective.apply(batch, context)
        apply = shortest(partial(objective.apply, batch, context), 1.0) / batch.inputs.size
        made, train = objective.apply(few, context), step_of(sizes, objective, spelled)
        step = shortest(partial(train, made), 2.0) / few.inputs.size
        share = apply / (apply + step)
        found[name] = {"million_tokens_per_second": 1e-6 / apply, "share_of_step": share}
        line = f"{name:31} {1e-6 / apply:7.1f} M tokens/s  {share:8.4%} of a step"
        if parts := PARTS.get(objective.kind, ()):
            inside = share_of(parts, partial(train, made))
            found[name]["share_of_parts"] = inside
            line += f"  {inside:6.2%} in {', '.join(part.rpartition(':')[2] for part in parts)}"
        print(line, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
