"""The pass through a model that training, evaluation and blame share: from a batch to the nats of every target.

Documents of a row are kept apart by masks over their segments: a boolean 4-D mask is handed to sdpa as it is.
`position_ids` alone isolate documents only with `attention_mask=None` and `use_cache=False` in decoders, silently do not
otherwise, and never do in encoders.
"""

from typing import Any

import torch

from trainers.batch import Batch
from trainers.cross_entropy import cross_entropy


class Forward(torch.nn.Module):
    """A `transformers` model of a family (`decoder`, `encoder`, `encoder_decoder`) with its loss.

    With `isolation` documents of one row do not see each other and positions restart; without, they share the row.
    """

    def __init__(self, model: Any, family: str, isolation: bool = True) -> None:
        super().__init__()
        self.model, self.family, self.isolation = model, family, isolation

    def forward(
        self,
        inputs: Any,
        targets: Any,
        positions: Any,
        segments: Any,
        prefix: Any = None,
        token_types: Any = None,
        labels: Any = None,
        decoder_inputs: Any = None,
        decoder_positions: Any = None,
        decoder_segments: Any = None,
    ) -> tuple[Any, Any]:
        """(nats of every target, fp32 of the shape of `targets`, 0 where there is none; nats of every row's label, fp32
        [rows], or None without labels). Arguments are the arrays of a Batch as tensors.
        """
        if not self.isolation:
            segments, positions = segments.clamp(max=0), _running(segments)
            if decoder_segments is not None:
                decoder_segments = decoder_segments.clamp(max=0)
        mask = attention_mask(segments, segments, self.family == "decoder", prefix)
        if self.family == "encoder_decoder":
            encoded = self.model.get_encoder()(input_ids=inputs, attention_mask=mask)
            output = self.model(
                encoder_outputs=encoded,
                attention_mask=attention_mask(decoder_segments, segments, False),
                decoder_input_ids=decoder_inputs,
                decoder_attention_mask=attention_mask(decoder_segments, decoder_segments, True),
                use_cache=False,
            )
            return cross_entropy(output.logits, targets), None
        arguments = {"input_ids": inputs, "attention_mask": mask, "position_ids": positions}
        if self.family == "decoder":
            arguments["use_cache"] = False
        if token_types is not None:
            arguments["token_type_ids"] = token_types
        output = self.model(**arguments)
        return cross_entropy(output.logits, targets), None


def _running(segments: Any) -> Any:
    return torch.arange(segments.shape[1], device=segments.device).expand_as(segments)


def attention_mask(queries: Any, keys: Any, causal: bool, prefix: Any = None) -> Any:
    """Boolean [rows, 1, queries, keys]: what each position sees, from segments [rows, length]: its own document, with
    `causal` no position after it, but those in `prefix` [rows, length] see one another. Padding sees padding alone.
    """
    seen = queries[:, :, None] == keys[:, None, :]
    if causal:
        length = queries.shape[1]
        earlier = torch.ones(length, length, dtype=torch.bool, device=queries.device).tril()
        allowed = earlier if prefix is None else earlier | (prefix[:, :, None] & prefix[:, None, :])
        seen = seen & allowed
    return seen[:, None]


def tensors(batch: Batch, device: Any) -> dict[str, Any]:
    """The arrays of a batch as arguments of Forward, on `device`."""
    arrays = {name: getattr(batch, name) for name in ("inputs", "targets", "positions", "segments")}
    arrays |= {name: getattr(batch, name) for name in ("prefix", "token_types", "labels")}
    if batch.decoder is not None:
        arrays |= {f"decoder_{name}": getattr(batch.decoder, name) for name in ("inputs", "positions", "segments")}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items() if array is not None}
