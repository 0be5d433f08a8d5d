"""The inputs of tasks as rows of a batch. To save padding, a row can contain several segments, isolated from
one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainers.data.examples.row_places import Places, assign_rows, place
from trainers.data.examples.task_inputs import Rendered, TaskInputs
from trainers.data.examples.task_targets import targets_of
from trainers.data.examples.text_format import TextFormat
from trainers.rows.batch import IGNORED, PADDING, Batch, Decoder


@dataclass(frozen=True)
class ChosenInputs:
    """The inputs of one task in a batch: those at the indices `numbers` of `inputs`. `source` is the index of
    the task; `samples` and `epochs` hold each input's sample index and epoch.
    """

    inputs: TaskInputs
    source: int
    numbers: np.ndarray
    samples: np.ndarray
    epochs: np.ndarray


def task_batch(chosen: Sequence[ChosenInputs], packed: bool = True) -> Batch:
    """Return the batch of the inputs in `chosen`, which must not be empty. All must be of one kind, and their
    formats may differ only in `first_virtual`. Without `packed`, every segment has its own row.
    """
    form, kind = chosen[0].inputs.format, chosen[0].inputs.kind
    picked = [each.inputs.segments_of(each.numbers) for each in chosen]
    segments = [segments for segments, _ in picked]
    pairs = list(zip([each.inputs for each in chosen], segments, strict=True))
    read = [task.lengths[numbers] + form.virtual_tokens for task, numbers in pairs]
    decoded = [
        task.target_lengths[numbers] if kind == "text_to_text" else task.lengths[numbers] for task, numbers in pairs
    ]
    both = form.decoder_start is not None
    row = assign_rows([a + b for a, b in zip(read, decoded, strict=True)] if both else read, packed)
    places = place(row, np.concatenate(read))
    behind = place(row, np.concatenate(decoded)) if both else places
    per_row = _per_row(chosen, [owner for _, owner in picked], places)
    texts = _joined([task.render(numbers) for task, numbers in pairs])
    virtual = np.concatenate([np.full(len(numbers), task.format.first_virtual) for task, numbers in pairs])
    if kind == "text_to_text":
        answers = _joined([task.render_targets(numbers) for task, numbers in pairs])
        if both:
            goals = _scattered(behind, behind.of_tokens(answers.offsets)[0], answers.ids)
            inputs, positions, numbers = _rows(form, texts, places, virtual)
            return Batch(inputs, goals, positions, numbers, *per_row, decoder=_decoder(form, answers, behind))
        joined, at = _continued(texts, answers, places.base + form.virtual_tokens)
        inputs, positions, numbers = _rows(form, joined, places, virtual)
        return Batch(inputs, _scattered(places, at, answers.ids), positions, numbers, *per_row)
    inputs, positions, numbers = _rows(form, texts, places, virtual)
    decoder = _decoder(form, texts, behind) if both else None
    skip = 0 if both else form.virtual_tokens
    types = None
    if form.token_types:
        types = _scattered(places, places.of_tokens(texts.offsets, skip)[0], _types(texts), 0)
    task_targets = targets_of([each.inputs for each in chosen], [each.numbers for each in chosen], texts, behind, skip)
    nothing = np.full((behind.count, behind.width), IGNORED, np.int64)
    return Batch(inputs, nothing, positions, numbers, *per_row, decoder=decoder, token_types=types, task=task_targets)


def _joined(parts: Sequence[Rendered]) -> Rendered:
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum([0, *(part.offsets[-1] for part in parts)])
    offsets = [part.offsets[:-1] + begin for part, begin in zip(parts, begins[:-1], strict=True)]
    ids, kinds = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "part"))
    return Rendered(ids, kinds, np.concatenate([*offsets, begins[-1:]]))


def _per_row(
    chosen: Sequence[ChosenInputs], owners: Sequence[np.ndarray], places: Places
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (source, sequence, sample, epoch) of each row, taken from its first segment. A row of padding
    has sample -1.
    """
    source, sequence, sample, epoch = np.zeros((4, places.count), np.int64)
    sample[:] = -1
    columns = [
        (np.full(len(owner), each.source), each.numbers[owner], each.samples[owner], each.epochs[owner])
        for each, owner in zip(chosen, owners, strict=True)
    ]
    first = places.number == 0
    for array, parts in zip((source, sequence, sample, epoch), zip(*columns, strict=True), strict=True):
        array[places.row[first]] = np.concatenate(parts)[first]
    return source, sequence, sample, epoch


def _rows(
    form: TextFormat, rendered: Rendered, places: Places, first_virtual: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    virtual, first = form.virtual_tokens, form.first_position
    at, within = places.of_tokens(rendered.offsets, virtual)
    inputs = _scattered(places, at, rendered.ids, form.padding)
    positions = _scattered(places, at, within + first + virtual, 0)
    segments = _scattered(places, at, np.repeat(places.number, np.diff(rendered.offsets)), PADDING)
    if virtual:
        ahead = places.base[:, None] + np.arange(virtual)
        inputs.ravel()[ahead] = first_virtual[:, None] + np.arange(virtual)
        positions.ravel()[ahead] = first + np.arange(virtual)
        segments.ravel()[ahead] = places.number[:, None]
    return inputs, positions, segments


def _decoder(form: TextFormat, rendered: Rendered, places: Places) -> Decoder:
    assert form.decoder_start is not None
    at, within = places.of_tokens(rendered.offsets)
    shifted = np.where(within == 0, form.decoder_start, np.roll(rendered.ids, 1))
    segments = np.repeat(places.number, np.diff(rendered.offsets))
    return Decoder(
        _scattered(places, at, shifted, form.padding),
        _scattered(places, at, within + form.first_position, 0),
        _scattered(places, at, segments, PADDING),
    )


def _continued(sources: Rendered, targets: Rendered, base: np.ndarray) -> tuple[Rendered, np.ndarray]:
    """Return each source followed by its target without the last token, and the flattened positions that
    predict the targets. `base` is the flattened position at which each source begins.
    """
    source_sizes, target_sizes = np.diff(sources.offsets), np.diff(targets.offsets)
    offsets = np.concatenate([[0], np.cumsum(source_sizes + target_sizes - 1)])
    ids, part = np.empty((2, offsets[-1]), np.int64)
    at = np.arange(sources.offsets[-1]) + np.repeat(offsets[:-1] - sources.offsets[:-1], source_sizes)
    ids[at], part[at] = sources.ids, sources.part
    within = np.arange(targets.offsets[-1]) - np.repeat(targets.offsets[:-1], target_sizes)
    read = within < np.repeat(target_sizes - 1, target_sizes)
    at = np.repeat(offsets[:-1] + source_sizes, target_sizes)[read] + within[read]
    ids[at], part[at] = targets.ids[read], targets.part[read]
    return Rendered(ids, part, offsets), np.repeat(base + source_sizes - 1, target_sizes) + within


def _types(rendered: Rendered) -> np.ndarray:
    """Return the token types: 1 from the first token of a second text to the end of its segment, otherwise 0."""
    second = np.cumsum(rendered.part == 2)
    before = np.concatenate([[0], second])[rendered.offsets[:-1]]
    types: np.ndarray = (second > np.repeat(before, np.diff(rendered.offsets))).astype(np.int64)
    return types


def _scattered(places: Places, at: np.ndarray, values: np.ndarray, other: int = IGNORED) -> np.ndarray:
    rows = np.full((places.count, places.width), other, np.int64)
    rows.ravel()[at] = values
    return rows
