"""The base class of stages that run a local Hugging Face model. Code and pickles in the model's directory are
never executed, and nothing is downloaded.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from gristmill.libraries.model_positions import most_tokens
from gristmill.storage.store import digest, file_checksum
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage, library_versions

_CHARACTERS = 32  # characters of text read per token of `max_tokens`
_SHORTEST = 32  # minimum length of a batch in tokens
_ROWS = 4096  # documents tokenized at a time


class LoadedModel(NamedTuple):
    """A model with its tokenizer, ready to run on `device`."""

    tokenizer: Any
    model: Any
    device: str


@dataclass(frozen=True)
class TransformerStage(ReadsText, PartStage):
    """Base class of a stage that runs a model over the beginning of each document. Batches have one of a few
    fixed shapes, so the model's output for a document does not depend on its neighbours.
    """

    model: str
    """Directory of the model and its tokenizer, relative to the working directory: config.json, model.safetensors,
    tokenizer files. Nothing is downloaded, and no code or pickle in it is run."""
    max_tokens: int = 512
    """Maximum number of tokens read per document; not more than the positions of the model."""
    batch: int = 16
    """Documents per batch."""
    num_gpus: float = 0
    """GPUs that a task reserves on Ray; 0.5 lets two tasks share a GPU. 0 runs the model on the CPU, with one
    thread. If it is above 0, a build with `--in-process` reserves none and uses the first GPU.
    """

    paths: ClassVar[tuple[str, ...]] = ("model", "num_gpus")
    stage: ClassVar[str]
    """The name of the stage, for messages."""
    auto_class: ClassVar[str]
    """The class of transformers that loads the model."""
    unused: ClassVar[tuple[str, ...]] = ()
    """Prefixes of the names of weights that the stage does not need."""

    def depends(self) -> dict[str, str]:
        return library_versions("torch", "transformers") | {"device": self._device, "model xxh3_128": self._checksum}

    def gpus(self) -> float:
        return self.num_gpus

    def check(self) -> None:
        for name in ("config.json", "model.safetensors"):
            if not (Path(self.model) / name).is_file():
                pickled = (Path(self.model) / "pytorch_model.bin").is_file()
                raise ValueError(
                    f"model: got {self.model!r}, expected a directory with config.json and model.safetensors"
                    + ("; pytorch_model.bin is a pickle, which is not read: save the model as safetensors" * pickled)
                )
        for name in ("max_tokens", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        if self.num_gpus < 0:
            raise ValueError(f"num_gpus: got {self.num_gpus}, expected 0 or more")
        super().check()

    def setup(self) -> None:
        checksum = _directory_checksum(Path(self.model))
        if checksum != self._checksum:
            raise UserError(
                f"{self.stage}: {self.model}: its checksum is {checksum}, the build was planned with {self._checksum}; "
                "restore the planned files, or run the command again"
            )
        _ = self.loaded

    @property
    def _device(self) -> str:
        return "cuda" if self.num_gpus else "cpu"

    @cached_property
    def _checksum(self) -> str:
        """The checksum of the model's directory, computed on first use, when the build is planned."""
        return _directory_checksum(Path(self.model))

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model, loaded on first use. Raises UserError if it does not load, lacks weights or has fewer
        positions than `max_tokens`, or if `num_gpus` is set where there is no GPU.
        """
        import torch
        import transformers

        where = f"{self.stage}: {self.model}"
        if self.num_gpus and not torch.cuda.is_available():
            raise UserError(f"{where}: num_gpus is {self.num_gpus:g}, but there is no GPU here; set it to 0")
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.model, local_files_only=True)
            model, loading = getattr(transformers, self.auto_class).from_pretrained(
                self.model, local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise UserError(f"{where}: does not load ({reason})") from None
        # The library draws weights that the file lacks at random.
        if missing := sorted(name for name in loading["missing_keys"] if not name.startswith(self.unused)):
            raise UserError(
                f"{where}: model.safetensors lacks {len(missing)} weights of the model, such as {missing[0]}; save the model "
                f"as {self.auto_class}, or name another one"
            )
        most = most_tokens(model.config)
        if most is not None and most < self.max_tokens:
            raise UserError(f"{where}: max_tokens is {self.max_tokens}, the model has positions for {most}")
        return LoadedModel(tokenizer, model.eval().to(self._device), self._device)

    def config(self) -> dict[str, Any]:
        """Return the model's config.json. Raises ValueError("model: ...") if it is not a JSON object."""
        return read_json(Path(self.model) / "config.json")

    def outputs(self, texts: pa.Array | pa.ChunkedArray) -> Iterator[tuple[list[int], Any, Any]]:
        """Run the model on `texts`, each cut to `max_tokens` tokens. Yield (rows, outputs of the model,
        attention mask) for each batch. `rows` are the indices of the batch's texts, not always consecutive.
        The first len(rows) rows of the tensors belong to these texts; the others are padding.
        """
        import torch

        texts = pc.utf8_slice_codeunits(texts, 0, _CHARACTERS * self.max_tokens)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a task has one core, and more threads would add sums in another order
        try:
            for first in range(0, len(texts), _ROWS):
                encoded = self.loaded.tokenizer(
                    texts.slice(first, _ROWS).to_pylist(), truncation=True, max_length=self.max_tokens, padding=False
                )["input_ids"]
                for rows, ids in self._batches(encoded):
                    yield [first + row for row in rows], *self._run(ids)
        finally:
            torch.set_num_threads(threads)

    def _batches(self, encoded: list[list[int]]) -> Iterator[tuple[list[int], list[list[int]]]]:
        groups: dict[int, list[int]] = {}
        for row, ids in enumerate(encoded):
            groups.setdefault(self._length(ids), []).append(row)
        for rows in groups.values():
            for first in range(0, len(rows), self.batch):
                some = rows[first : first + self.batch]
                yield some, [encoded[row] for row in some]

    def _length(self, ids: list[int]) -> int:
        return min(self.max_tokens, max(_SHORTEST, 1 << (len(ids) - 1).bit_length()))

    def _run(self, encoded: list[list[int]]) -> tuple[Any, Any]:
        import numpy as np
        import torch

        loaded = self.loaded
        shape = (self.batch, self._length(encoded[0]))
        ids = np.full(shape, loaded.tokenizer.pad_token_id or 0, np.int64)
        mask = np.zeros(shape, np.int64)
        mask[:, 0] = 1  # a row of padding only would divide by zero
        for row, tokens in enumerate(encoded):
            ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
        with torch.inference_mode():
            inputs = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
            inputs = {name: value.to(loaded.device) for name, value in inputs.items()}
            return loaded.model(**inputs), inputs["attention_mask"]


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a model. Raises ValueError("model: ...") if the file cannot be read
    or does not hold a JSON object.
    """
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise ValueError(f"model: {path}: expected a JSON object")
    return content


def _directory_checksum(directory: Path) -> str:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return digest({path.relative_to(directory).as_posix(): file_checksum(path) for path in files})
