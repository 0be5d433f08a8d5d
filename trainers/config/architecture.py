"""What a model is: a `transformers` architecture, its sizes and its position scheme. Nothing heavy is imported here."""

from dataclasses import dataclass, replace
from typing import Literal

from gristmill.errors import ConfigError

Position = Literal["learned", "sinusoidal", "rope", "t5_bias", "relative"]

FAMILY: dict[str, str] = {
    "bart": "encoder_decoder",
    "bert": "encoder",
    "gpt": "decoder",
    "gpt2": "decoder",
    "llama": "decoder",
    "modernbert": "encoder",
    "roberta": "encoder",
    "t5": "encoder_decoder",
}
"""Which stacks an architecture has; objectives name the families that they train."""

DECODER_START: dict[str, str] = {"bart": "<eos>", "t5": "<pad>"}
"""The special that a decoder reads first, as published: generation in `transformers` begins with it."""

_TABLE: tuple[Position, ...] = ("learned", "sinusoidal", "relative")
POSITIONS: dict[str, tuple[Position, ...]] = {
    "bart": _TABLE,
    "bert": _TABLE,
    "gpt": ("learned", "sinusoidal"),
    "gpt2": _TABLE,
    "llama": ("rope",),
    "modernbert": ("rope",),
    "roberta": _TABLE,
    "t5": ("t5_bias",),
}
"""The position schemes of each architecture, its own first. Clipped relative positions (Shaw et al., 2018) are ours."""

_ENCODER_DECODERS = tuple(name for name, family in FAMILY.items() if family == "encoder_decoder")
# field: (architectures that have it, value of those that do not)
_PARTICULAR: dict[str, tuple[tuple[str, ...], object]] = {
    "decoder_layers": (_ENCODER_DECODERS, None),
    "head_width": (("t5",), None),
    "gated": (("t5",), False),
    "tied": (("gpt2", "llama", "t5"), True),
    "tied_stacks": (_ENCODER_DECODERS, False),
    "sentence_head": (("bert",), False),
    "norm_epsilon": (("llama",), 1e-6),
    "dropout": (tuple(name for name in FAMILY if name != "llama"), 0.0),
    "initializer_range": (tuple(name for name in FAMILY if name != "t5"), 0.02),
}
_VOCABULARY_MULTIPLE = 64


def require(condition: bool, message: str) -> None:
    """ValueError with `message` (`field: got X, allowed Y`) unless `condition`."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Model:
    """A `transformers` architecture and its sizes; `width` is the hidden size, `feed_forward` the inner size of a block.

    `layers` are those of each stack; `decoder_layers` of the decoder alone. `head_width` (T5) is apart from width / heads
    in T5 3B and 11B. `position` is one of POSITIONS[architecture]; `relative_distance` where `relative` clips. `gated` is
    T5 v1.1's feed-forward, `tied` the output layer's weights with the embeddings, `tied_stacks` the encoder's with the
    decoder's (Raffel et al., 2020, section 3.2.2). `sentence_head` adds BERT's classifier of sentence pairs. `rope_base`
    is that of the global layers in ModernBERT, `norm_epsilon`
    that of Llama's RMS norm (1e-5 in Llama 2 and 3). T5 has its own initialisation, so no `initializer_range`.

    Left open and computed by `fill`: `decoder_layers` (= layers), `head_width` (width / heads), `key_value_heads`
    (= heads), `feed_forward` (4 x width; 8/3 x width, rounded up to 64, in Llama and gated T5; 3/2 x width in
    ModernBERT), `position` (the architecture's own), `vocab_size` (the tokenizer's, rounded up to a multiple of 64 for
    the matrix products).
    """

    architecture: Literal["bart", "bert", "gpt", "gpt2", "llama", "modernbert", "roberta", "t5"]
    layers: int
    width: int
    heads: int
    positions: int
    decoder_layers: int | None = None
    key_value_heads: int | None = None
    head_width: int | None = None
    feed_forward: int | None = None
    vocab_size: int | None = None
    position: Position | None = None
    relative_distance: int = 16
    gated: bool = False
    tied: bool = True
    tied_stacks: bool = False
    sentence_head: bool = False
    dropout: float = 0.0
    initializer_range: float = 0.02
    rope_base: float = 10000.0
    norm_epsilon: float = 1e-6

    def check(self) -> None:
        """Sizes are positive and fit one another; the architecture has what is asked for."""
        for name in ("layers", "width", "heads", "positions", "relative_distance"):
            require(getattr(self, name) >= 1, f"{name}: got {getattr(self, name)}, allowed 1 and more")
        for name in ("decoder_layers", "head_width", "feed_forward", "vocab_size"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}: got {value}, allowed 1 and more")
        require(0.0 <= self.dropout < 1.0, f"dropout: got {self.dropout}, allowed 0 to below 1")
        for name, (architectures, absent) in _PARTICULAR.items():
            value = getattr(self, name)
            require(
                value == absent or self.architecture in architectures,
                f"{name}: got {value}, {self.architecture} has none; leave it at {absent}, "
                f"or take one of {', '.join(architectures)}",
            )
        allowed = POSITIONS[self.architecture]
        require(
            self.position is None or self.position in allowed,
            f"position: got {self.position}, {self.architecture} allows {', '.join(allowed)}",
        )
        self._check_heads()
        self._check_stacks()

    def _check_heads(self) -> None:
        require(
            self.head_width is not None or self.width % self.heads == 0,
            f"heads: got {self.heads}, which does not divide width {self.width}",
        )
        shared = self.key_value_heads or self.heads
        require(self.heads % shared == 0, f"key_value_heads: got {shared}, which does not divide heads {self.heads}")
        require(
            self.architecture == "llama" or shared == self.heads,
            f"key_value_heads: got {shared}, {self.architecture} has as many as heads ({self.heads})",
        )
        require(
            self.architecture != "gpt" or self.feed_forward in (None, 4 * self.width),
            f"feed_forward: got {self.feed_forward}, gpt always has 4 x width ({4 * self.width})",
        )

    def _check_stacks(self) -> None:
        require(
            not self.tied_stacks or self.decoder_layers in (None, self.layers),
            f"decoder_layers: got {self.decoder_layers}, tied_stacks needs as many as layers ({self.layers})",
        )


def fill(model: Model, tokens: int) -> Model:
    """The model with all that was left open, for a tokenizer of `tokens` tokens. ConfigError where they do not fit."""
    vocabulary = model.vocab_size or -(-tokens // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    if vocabulary < tokens:
        raise ConfigError(
            f"model.vocab_size: got {vocabulary}, the corpus's tokenizer has {tokens} tokens; "
            f"raise it, or leave it out to take the tokenizer's"
        )
    both = FAMILY[model.architecture] == "encoder_decoder"
    own_head = model.architecture == "t5"
    return replace(
        model,
        vocab_size=vocabulary,
        feed_forward=model.feed_forward or _feed_forward(model),
        key_value_heads=model.key_value_heads or model.heads,
        decoder_layers=(model.decoder_layers or model.layers) if both else None,
        head_width=(model.head_width or model.width // model.heads) if own_head else None,
        position=model.position or POSITIONS[model.architecture][0],
    )


def _feed_forward(model: Model) -> int:
    if model.architecture == "llama" or model.gated:
        return -(-8 * model.width // (3 * 64)) * 64
    return 3 * model.width // 2 if model.architecture == "modernbert" else 4 * model.width
