"""Transformer embeddings: compute a vector for each document with a local sentence encoder, on CPU or GPU."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UserError
from pipelines.stages.score.transformer_stage import TransformerStage, read_json

_WIDTHS = ("hidden_size", "dim", "d_model", "n_embd")  # names of the width in config.json
_MODULES = ("Transformer", "Pooling", "Normalize")
_POOLING = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class TransformerEmbeddings(TransformerStage):
    """Write the column `embedding`: the unit vector, in half precision, that a sentence encoder computes from
    the beginning of each document. `dedup_semantic`, `topics` and `embedding_classifier` use these vectors.

    The model is an encoder that Hugging Face's transformers supports, with or without the files of
    sentence-transformers (modules.json, 1_Pooling/config.json). Only the first `max_tokens` tokens, including
    special ones, of the first 32 x `max_tokens` characters are read, so the rest of a long document has no
    influence. An embedding does not depend on neighbouring documents, but its last digits differ between CPU
    and GPU. The embedding of a document that is empty or only ASCII white space is null.
    """

    pooling: Literal["model", "mean", "cls"] = "model"
    """How token vectors are combined into one. model: as 1_Pooling/config.json says, or mean if there is no
    such file. mean: the mean of all tokens except padding. cls: the vector of the first token.
    """
    prompt: str = ""
    """Text to put before every document, such as `query: ` for E5, for encoders that were trained with a
    prompt.
    """

    stage: ClassVar[str] = "transformer_embeddings"
    auto_class: ClassVar[str] = "AutoModel"
    unused: ClassVar[tuple[str, ...]] = ("pooler.",)

    def writes(self) -> pa.Schema:
        return pa.schema([("embedding", pa.list_(pa.float16(), self._width))])

    def check(self) -> None:
        super().check()
        _ = self._width, self._pooling

    @cached_property
    def _width(self) -> int:
        config = self.config()
        if config.get("is_encoder_decoder"):
            raise ValueError(f"model: got {self.model!r}, an encoder-decoder, expected an encoder")
        width = next((config[name] for name in _WIDTHS if isinstance(config.get(name), int)), 0)
        if width < 1:
            raise ValueError(f"model: {self.model}/config.json: expected the width as one of {', '.join(_WIDTHS)}")
        return int(width)

    @cached_property
    def _pooling(self) -> str:
        if self.pooling != "model":
            return self.pooling
        directory = Path(self.model)
        for module in _modules(directory / "modules.json"):
            if module not in _MODULES:
                raise ValueError(
                    f"model: {self.model}/modules.json: has a module {module}, which is not computed here, only "
                    f"{', '.join(_MODULES)}; `pooling: mean` leaves such modules out"
                )
        path = directory / "1_Pooling" / "config.json"
        if not path.is_file():
            return "mean"
        given = read_json(path)
        modes = [str(given["pooling_mode"])] if "pooling_mode" in given else []
        modes += [name for name, on in given.items() if name.startswith("pooling_mode_") and on is True]
        names = [_POOLING.get(mode, mode) for mode in modes]
        if len(names) != 1 or names[0] not in _POOLING.values():
            raise ValueError(
                f"model: {path}: pools by {', '.join(names) or 'nothing'}, expected mean or cls, which `pooling` sets"
            )
        return names[0]

    def annotate(self, docs: pa.Table) -> pa.Table:
        import numpy as np

        texts = pc.fill_null(docs[self.text], "").combine_chunks()
        visible = pc.match_substring_regex(texts, r"\S")
        rows = np.flatnonzero(visible.to_numpy(zero_copy_only=False))
        vectors: np.ndarray = np.zeros((docs.num_rows, self._width), np.float16)
        chosen = texts.take(pa.array(rows))
        if self.prompt:
            chosen = pc.binary_replace_slice(chosen, 0, 0, self.prompt)
        for some, outputs, mask in self.outputs(chosen):
            vectors[rows[some]] = self._pool(outputs, mask)[: len(some)]
        flat = pa.array(vectors.ravel())
        column = pa.FixedSizeListArray.from_arrays(flat, self._width, mask=pc.invert(visible))
        return pa.table([column], schema=self.writes())

    def _pool(self, outputs: Any, mask: Any) -> Any:
        """Pool the token states of a batch into one vector of length 1 per text, [batch, width]."""
        hidden = outputs.last_hidden_state.float()
        if hidden.shape[-1] != self._width:
            raise UserError(
                f"{self.stage}: {self.model}: gives {hidden.shape[-1]} numbers, its config.json says {self._width}"
            )
        if self._pooling == "cls":
            pooled = hidden[:, 0]
        else:
            weights = mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        norms = pooled.norm(dim=-1, keepdim=True)
        vectors = (pooled / norms).cpu().numpy()
        if not bool(((norms > 0) & norms.isfinite()).all()):
            raise UserError(f"{self.stage}: {self.model}: gives vectors of length 0 or without a finite length")
        return vectors


def _modules(path: Path) -> list[str]:
    if not path.is_file():
        return []
    try:
        return [str(module["type"]).rpartition(".")[2] for module in json.loads(path.read_bytes())]
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"model: {path}: is not the modules.json of sentence-transformers, a list of objects with a `type`; save the "
            "model again"
        ) from None
