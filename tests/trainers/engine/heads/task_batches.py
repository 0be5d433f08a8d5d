"""Batches of task inputs for tests of heads and losses, with one or several inputs in a row."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from tests.trainers.fresh_networks import Template
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import ARCHITECTURES, Model, fill
from trainers.engine.assembly import attach_head
from trainers.engine.forward import Forward
from trainers.engine.task_losses import task_losses
from trainers.models import build_model
from trainers.rows.batch import IGNORED, PADDING, Batch, Decoder, TaskTargets

KINDS = ("classify", "regress", "tag", "span", "choose")
OUTPUTS = {"classify": 3, "regress": 1, "tag": 4, "span": 2, "choose": 1}
CANDIDATES = 2  # of every input of kind choose


def tiny(architecture, **others):
    sizes = {"layers": 4, "width": 32, "heads": 4, "positions": 64, "feed_forward": 64, "vocab_size": 200}
    if architecture == "gpt":
        sizes["feed_forward"] = 128
    if architecture == "gru":
        sizes["feed_forward"] = 32
    if ARCHITECTURES[architecture].recurrent:
        sizes["heads"] = 1
    if "initializer_range" in ARCHITECTURES[architecture].has:
        sizes["initializer_range"] = 0.1  # small weights would hide what leaks
    return fill(Model(architecture, **{**sizes, **others}), 200)


@cache
def _built(model, seed):
    return Template(build_model(model, SPECIAL_IDS, seed))


def network_of(model, kind, seed=0, **head):
    network = _built(model, seed).copy()
    attach_head(network, model, kind, OUTPUTS[kind], seed, **head)
    return network.eval()


def forward_of(network, model, kind, **settings):
    return Forward(network, model.architecture, losses=task_losses(kind, **settings))


@dataclass(frozen=True)
class Inputs:
    """Token ids of segments, with gold labels. Spans are (first, last) positions in the segment, or None."""

    segments: list
    labels: np.ndarray
    values: np.ndarray
    tags: list
    spans: list

    @property
    def last(self):
        return [len(segment) - 1 for segment in self.segments]


def some_inputs(lengths=(9, 3, 14, 6), seed=0):
    generator = np.random.default_rng(seed)
    mark = SPECIAL_IDS["<eos>"]
    segments = [np.append(generator.integers(128, 200, length), mark) for length in lengths]
    spans = [tuple(sorted(generator.integers(0, length, 2))) for length in lengths]
    spans[0] = None  # no answer
    tags = [
        np.where(generator.random(length + 1) < 0.6, generator.integers(0, 4, length + 1), IGNORED)
        for length in lengths
    ]
    return Inputs(segments, generator.integers(0, 2, len(lengths)), generator.normal(size=len(lengths)), tags, spans)


def batch_of(inputs, kind, model, rows, padding=3):
    """Return a batch. `rows` lists the segment numbers of each row, and all rows are padded to `padding`
    tokens more than the longest.
    """
    family, start = model.family, SPECIAL_IDS[model.traits.decoder_start or "<eos>"]
    width = max(sum(len(inputs.segments[n]) for n in row) for row in rows) + padding
    shape = (len(rows), width)
    ids, positions, segments = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.full(shape, PADDING)
    read, owner, tags = np.zeros(shape, np.int64), np.full(shape, -1), np.full(shape, IGNORED)
    order = np.array([n for row in rows for n in row], np.int64)
    index = {n: i for i, n in enumerate(order.tolist())}
    starts = np.zeros(len(order), np.int64)
    for number, row in enumerate(rows):
        place = 0
        for within, n in enumerate(row):
            segment = inputs.segments[n]
            here = (number, slice(place, place + len(segment)))
            ids[here], positions[here], segments[here] = segment, np.arange(len(segment)), within
            read[here] = np.concatenate([[start], segment[:-1]])
            owner[here], tags[here] = index[n], inputs.tags[n]
            starts[index[n]] = number * width + place
            place += len(segment)
    last = starts + np.array([inputs.last[n] for n in order], np.int64)
    at = starts if family == "encoder" else last
    gold = {}
    if kind in ("classify", "choose"):
        chosen = order if kind == "classify" else order[::CANDIDATES]
        gold["labels"] = inputs.labels[np.array(chosen, np.int64) // (CANDIDATES if kind == "choose" else 1)]
    if kind == "choose":
        gold["choice"] = np.arange(len(order)) // CANDIDATES
    if kind == "regress":
        gold["values"] = inputs.values[order].astype(np.float32)
    if kind == "tag":
        gold["tags"] = tags
    if kind == "span":
        sides = [
            [at[i] if inputs.spans[n] is None else starts[i] + inputs.spans[n][side] for i, n in enumerate(order)]
            for side in (0, 1)
        ]
        gold |= {
            "starts": np.array(sides[0], np.int64),
            "ends": np.array(sides[1], np.int64),
            "answerable": segments >= 0,
        }
    number = order[::CANDIDATES] // CANDIDATES if kind == "choose" else order
    task = TaskTargets(number, at, owner, **gold)
    decoder = Decoder(read, positions, segments) if family == "encoder_decoder" else None
    zeros = np.zeros(len(rows), np.int64)
    return Batch(
        ids, np.full(shape, IGNORED), positions, segments, zeros, zeros, zeros, zeros, decoder=decoder, task=task
    )


def hidden(batch, first=0):
    """Return the batch without gold labels, as in a test split, except for its first `first` inputs."""
    values = {"labels": IGNORED, "values": np.nan, "tags": IGNORED, "starts": IGNORED, "ends": IGNORED}
    gold = {name: getattr(batch.task, name).copy() for name in values if getattr(batch.task, name) is not None}
    for name, array in gold.items():
        if name == "tags":
            array[(batch.task.owner >= first) | (batch.task.owner < 0)] = IGNORED
        else:
            array[first:] = values[name]
    return replace(batch, task=replace(batch.task, **gold))
