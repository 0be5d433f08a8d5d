"""Compute the hidden states of texts in every layer of a model. The model reads the texts with the
special tokens of its training objective, usually:

decoder           <bos> text
encoder           <cls> text <sep>
encoder-decoder   text <eos> in the encoder, and the start token and the text in the decoder

Layer 0 is the embedding layer. The last layer of a stack is read after the final norm, if the architecture
has one. Layers of a recurrent model that are not as wide as the last are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import ConfigError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.architecture import Model
from trainers.engine.forward import Forward, tensors
from trainers.engine.hardware.device import compute_device
from trainers.inference.model_export import load_trained
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import IGNORED, Batch, Decoder
from trainers.rows.padded_rows import pad_rows

POSITIONS = 4096  # of a batch


@dataclass(frozen=True)
class DocumentStates:
    """The hidden states of a document, float32: `first` [layers, width] at the first position, and `tokens`
    [layers, n, width] at the n tokens of the text, without special tokens.
    """

    first: np.ndarray
    tokens: np.ndarray


@dataclass(frozen=True)
class _Chunk:
    document: int
    start: int
    ids: np.ndarray


def _layer_width(model: Model, layer: int) -> int | None:
    if model.architecture == "awd_lstm" and 0 < layer < model.layers:
        return model.feed_forward
    return model.embedding_size if model.architecture == "gru" and layer == 0 else model.width


class StateReader:
    """Runs a model on texts and returns its hidden states. `name` is used in messages."""

    def __init__(self, name: str, network: Any, model: Model, objective: TrainingObjective, encoder: Encoder) -> None:
        specials = add_fallback_marks(encoder.specials)
        member, lead = objective.members()[0]
        frame = member.text_frame(model.family)
        self.name, self.encoder, self.width = name, encoder, model.width
        self._both, self._causal = model.family == "encoder_decoder", model.family == "decoder"
        self._before = tuple(specials[mark] for mark in (lead, frame.before) if mark)
        self._after = tuple(specials[mark] for mark in (frame.after,) if mark)
        start = (specials[model.traits.decoder_start],) if model.traits.decoder_start else ()
        self._given = (*start, *(specials[mark] for mark in (frame.before,) if mark))
        self._room = model.positions - max(len(self._before) + len(self._after), len(self._given) if self._both else 0)
        self.forward = Forward(network.to(compute_device()), model.architecture).eval()
        stacks = {"encoder.": model.layers, "decoder.": model.decoder_layers} if self._both else {"": model.layers}
        self.layers = tuple(
            f"{stack}{n}"
            for stack, count in stacks.items()
            for n in range((count or model.layers) + 1)
            if _layer_width(model, n) == model.width
        )

    @classmethod
    def open(cls, path: LocalPath) -> "StateReader":
        """Load the model of a run or an export. Raises UserError if there is none, or if it has a task
        head.
        """
        trained = load_trained(path)
        config = trained.config
        encoder = Encoder.load(lent(trained.tokenizer))
        return cls(str(path), trained.model, config.model, config.objective, encoder)

    def choose_layers(self, named: str, joined: bool = False) -> tuple[str, ...]:
        """Return the names of the layers that `named` selects: `all`, or a list such as `0,3`. With `joined`,
        the list may concatenate layers, as in `1+2`. Raises ConfigError for an unknown layer.
        """
        if named == "all":
            return self.layers
        names = tuple(dict.fromkeys(named.split(",")))
        parts = [part for name in names for part in (name.split("+") if joined else (name,))]
        if unknown := [part for part in parts if part not in self.layers]:
            raise ConfigError(f"layers: got {unknown[0]!r}, allowed for {self.name}: all, {', '.join(self.layers)}")
        return names

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the token ids of each text, int64 [n], without special tokens."""
        ids, offsets = self.encoder.encode(pa.array(texts, pa.large_string()))
        return [ids[offsets[n] : offsets[n + 1]].astype(np.int64) for n in range(len(texts))]

    def read(self, documents: Sequence[np.ndarray], layers: Sequence[str]) -> list[DocumentStates]:
        """Return the states of documents, given their token ids. A document that is too long for the model is
        read in pieces that do not attend to one another.
        """
        first = np.zeros((len(documents), len(layers), self.width), np.float32)
        tokens = [np.zeros((len(layers), len(ids), self.width), np.float32) for ids in documents]
        for chunks in self._batches(documents):
            for chunk, its, own in self._states(chunks, layers):
                if chunk.start == 0:
                    first[chunk.document] = its
                tokens[chunk.document][:, chunk.start : chunk.start + len(chunk.ids)] = own
        return [DocumentStates(first[n], tokens[n]) for n in range(len(documents))]

    def batches(self, documents: Sequence[np.ndarray]) -> Iterator[Batch]:
        """Yield batches of documents, given their token ids. Each row holds a document, or a piece of one
        that is too long for the model.
        """
        for chunks in self._batches(documents):
            yield self._batch(chunks)

    def _batches(self, documents: Sequence[np.ndarray]) -> Iterator[list[_Chunk]]:
        room = self._room
        chunks = [
            _Chunk(number, start, ids[start : start + room])
            for number, ids in enumerate(documents)
            for start in range(0, max(1, len(ids)), room)
        ]
        chunks.sort(key=lambda chunk: -len(chunk.ids))
        first = 0
        while first < len(chunks):
            longest = len(chunks[first].ids) + len(self._before) + len(self._after) + len(self._given)
            count = max(1, POSITIONS // longest)
            yield chunks[first : first + count]
            first += count

    def _states(
        self, chunks: Sequence[_Chunk], layers: Sequence[str]
    ) -> Iterator[tuple[_Chunk, np.ndarray, np.ndarray]]:
        import torch

        device, batch = next(self.forward.parameters()).device, self._batch(chunks)
        if self._causal:  # padding after a text changes nothing in it, so that no mask is needed
            batch = replace(batch, segments=np.zeros_like(batch.segments))
        with torch.no_grad():
            stacks = self.forward.layers(**tensors(batch, device))
        names = [layer.rpartition(".") for layer in layers]
        found = [stacks[stack or "decoder"][int(number)].float().cpu().numpy() for stack, _, number in names]
        marks = [len(self._given) if stack == "decoder" else len(self._before) for stack, _, _ in names]
        for row, chunk in enumerate(chunks):
            count = len(chunk.ids)
            first = np.stack([states[row, 0] for states in found])
            own = [states[row, mark : mark + count] for states, mark in zip(found, marks, strict=True)]
            yield chunk, first, np.stack(own)

    def _batch(self, chunks: Sequence[_Chunk]) -> Batch:
        read = [np.concatenate([self._before, chunk.ids, self._after]).astype(np.int64) for chunk in chunks]
        inputs, positions, segments = pad_rows(read)
        none = np.zeros(len(chunks), np.int64)
        if not self._both:
            targets = np.full(inputs.shape, IGNORED, np.int64)
            return Batch(inputs, targets, positions, segments, none, none, none, none)
        written = [np.concatenate([self._given, chunk.ids]).astype(np.int64) for chunk in chunks]
        decoder = Decoder(*pad_rows(written))
        targets = np.full(decoder.inputs.shape, IGNORED, np.int64)
        return Batch(inputs, targets, positions, segments, none, none, none, none, decoder=decoder)
