"""Transformer classifier: the score of a Hugging Face sequence classification model, on CPU or GPU."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.storage.store import digest, file_checksum
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage, library_versions

if TYPE_CHECKING:
    import numpy as np

_CHARACTERS = 32  # characters of text read per token of `max_tokens`
_SHORTEST = 32  # minimum length of a batch in tokens
_ROWS = 4096  # documents tokenized at a time


class _Loaded(NamedTuple):
    """A model with its tokenizer, ready to run."""

    tokenizer: Any
    model: Any
    device: str
    label_index: int  # of the label among the outputs
    kind: str  # type of output: number, softmax or sigmoid


@dataclass(frozen=True)
class TransformerClassifier(ReadsText, PartStage):
    """The probability of one label as a column; for a model with a single output, that number itself (such as
    the grade of an educational-value model).

    The beginning of a document is scored: `max_tokens` tokens, special ones included, and no more than 32
    characters for each. All batches have the same shape: lengths are rounded up to a power of two, and an
    incomplete batch is filled with padding. So a score does not depend on neighbouring documents. Scores on
    CPU and GPU differ in their last digits.
    """

    model: str
    """Directory of the model and its tokenizer, relative to the working directory: config.json, model.safetensors,
    tokenizer files. Nothing is downloaded, and no code or pickle in it is run."""
    label: str = ""
    """The label whose probability is computed, as named in config.json; empty for a model with a single output."""
    column: str = "transformer_score"
    """Name of the column."""
    max_tokens: int = 512
    """Tokens read per document; at most the positions of the model."""
    batch: int = 16
    """Documents per batch."""
    num_gpus: float = 0
    """GPUs that a task reserves on Ray; 0.5 lets two tasks share one; 0 runs on the CPU, with one thread. A
    build `--in-process` reserves none and uses the first GPU."""

    paths: ClassVar[tuple[str, ...]] = ("model", "num_gpus")

    def writes(self) -> pa.Schema:
        """Return the score."""
        return pa.schema([(self.column, pa.float32())])

    def never_null(self) -> tuple[str, ...]:
        """Return the score."""
        return (self.column,)

    def depends(self) -> dict[str, str]:
        """Return the libraries, the device, and the checksum of all files of the model."""
        return library_versions("torch", "transformers") | {"device": self._device, "model xxh3_128": self._checksum}

    def gpus(self) -> float:
        """Return `num_gpus`."""
        return self.num_gpus

    def check(self) -> None:
        """Check that the model is a directory and that values are in range."""
        for name in ("config.json", "model.safetensors"):
            if not (Path(self.model) / name).is_file():
                raise ValueError(
                    f"model: got {self.model!r}, expected a directory with config.json and model.safetensors"
                )
        for name in ("max_tokens", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        if self.num_gpus < 0:
            raise ValueError(f"num_gpus: got {self.num_gpus}, expected 0 or more")
        if not self.column.isidentifier():
            raise ValueError(f"column: got {self.column!r}, expected letters, digits and underscores")
        super().check()

    def setup(self) -> None:
        """Load the model. Raises UserError if it is not the planned one, does not load, or lacks
        the label.
        """
        checksum = _directory_checksum(Path(self.model))
        if checksum != self._checksum:
            raise UserError(
                f"transformer_classifier: {self.model}: its checksum is {checksum}, the build was planned with {self._checksum}; "
                "restore the planned files, or run the command again"
            )
        _ = self._loaded

    @property
    def _device(self) -> str:
        return "cuda" if self.num_gpus else "cpu"

    @cached_property
    def _checksum(self) -> str:
        """The checksum of the directory, computed on first use, which is when the build is planned."""
        return _directory_checksum(Path(self.model))

    @cached_property
    def _loaded(self) -> _Loaded:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        where = f"transformer_classifier: {self.model}"
        if self.num_gpus and not torch.cuda.is_available():
            raise UserError(f"{where}: num_gpus is {self.num_gpus:g}, but there is no GPU here; set it to 0")
        try:
            tokenizer = AutoTokenizer.from_pretrained(self.model, local_files_only=True)
            model = AutoModelForSequenceClassification.from_pretrained(
                self.model, local_files_only=True, use_safetensors=True, dtype=torch.float32
            )
        except (OSError, ValueError, KeyError, ImportError) as error:
            raise UserError(f"{where}: does not load ({str(error).splitlines()[0]})") from None
        positions = getattr(model.config, "max_position_embeddings", None)
        if positions is not None and positions < self.max_tokens:
            raise UserError(f"{where}: max_tokens is {self.max_tokens}, the model has {positions} positions")
        return _Loaded(tokenizer, model.eval().to(self._device), self._device, *self._output(model.config, where))

    def _output(self, config: Any, where: str) -> tuple[int, str]:
        """Return (index of the label, type of the outputs)."""
        if config.num_labels == 1 and not self.label:
            return 0, "number"
        names = {str(name): int(index) for index, name in config.id2label.items()}
        if self.label not in names or config.num_labels == 1:
            raise UserError(
                f"{where}: label: got {self.label!r}, the model has {config.num_labels}: {', '.join(names)}"
            )
        return names[self.label], "sigmoid" if config.problem_type == "multi_label_classification" else "softmax"

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return the score of each document."""
        import numpy as np
        import torch

        texts = pc.utf8_slice_codeunits(docs[self.text], 0, _CHARACTERS * self.max_tokens)
        scores = np.zeros(len(texts), np.float32)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a task has one core, and more threads would add sums in another order
        try:
            for first in range(0, len(texts), _ROWS):
                encoded = self._loaded.tokenizer(
                    texts.slice(first, _ROWS).to_pylist(), truncation=True, max_length=self.max_tokens, padding=False
                )["input_ids"]
                for rows, ids in self._batches(encoded):
                    scores[[first + row for row in rows]] = self._scores(ids)[: len(rows)]
        finally:
            torch.set_num_threads(threads)
        return pa.table([pa.array(scores)], schema=self.writes())

    def _batches(self, encoded: list[list[int]]) -> Iterator[tuple[list[int], list[list[int]]]]:
        """Yield (rows, their token ids), each batch with one power-of-two length."""
        groups: dict[int, list[int]] = {}
        for row, ids in enumerate(encoded):
            groups.setdefault(self._length(ids), []).append(row)
        for rows in groups.values():
            for first in range(0, len(rows), self.batch):
                some = rows[first : first + self.batch]
                yield some, [encoded[row] for row in some]

    def _length(self, ids: list[int]) -> int:
        return min(self.max_tokens, max(_SHORTEST, 1 << (len(ids) - 1).bit_length()))

    def _scores(self, encoded: list[list[int]]) -> "np.ndarray":
        """Return the scores of a batch, and of the padding rows after it."""
        import numpy as np
        import torch

        loaded = self._loaded
        shape = (self.batch, self._length(encoded[0]))
        ids = np.full(shape, loaded.tokenizer.pad_token_id or 0, np.int64)
        mask = np.zeros(shape, np.int64)
        mask[:, 0] = 1  # a row of padding only would divide by zero
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        with torch.inference_mode():
            inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            logits = loaded.model(**{name: value.to(loaded.device) for name, value in inputs.items()}).logits.float()
            if loaded.kind == "softmax":
                logits = logits.softmax(-1)
            elif loaded.kind == "sigmoid":
                logits = logits.sigmoid()
            return logits[:, loaded.label_index].cpu().numpy()


def _directory_checksum(directory: Path) -> str:
    """Return one checksum of the names and contents of all files below a directory."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return digest({path.relative_to(directory).as_posix(): file_checksum(path) for path in files})
