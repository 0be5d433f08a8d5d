"""The configuration of a model: its architecture, sizes and position scheme. This module imports no heavy
libraries.
"""

import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from gristmill.config import ADDED
from gristmill.errors import ConfigError

Family = Literal["decoder", "encoder", "encoder_decoder"]
Position = Literal["learned", "sinusoidal", "rope", "t5_bias", "relative", "disentangled", "transformer_xl", "none"]
SharedParts = Literal["all", "attention", "feed_forward"]
EmbeddingSharing = Literal["gradient_disentangled", "shared"]


@dataclass(frozen=True)
class Traits:
    """The properties of an architecture that a configuration needs before the model is built.

    - `family`: which stacks it has; an objective lists the families that it can train
    - `positions`: the position schemes that it supports, the default first
    - `has`: the optional fields of `Model` that apply to it
    - `decoder_start`: the special token that the decoder of a published encoder-decoder reads first;
      `transformers` starts generation with it
    - `feed_forward`: the default inner size, as a multiple of the width
    - `fixed_feed_forward`: whether no other inner size is allowed
    - `causal_only`: whether it cannot attend in both directions within a prefix
    - `token_types`: whether token types distinguish the second of two texts from the first
    - `permutes`: whether it is pretrained to predict tokens in a random order
    - `bidirectional_lm`: whether it is pretrained as a forward and a backward language model
    - `characters`: whether it reads characters instead of tokens, and counts positions in characters
    - `decodes_neighbours`: whether it is pretrained with decoders that learn to write the sentences
      before and after a sentence
    - `window_objective`: the objective that can train it in windows of a row, where each window begins
      with the state that the previous one left; None if no objective can

    An architecture with `permutes`, `bidirectional_lm` or `decodes_neighbours` is never pretrained in another
    way.
    """

    family: Family
    positions: tuple[Position, ...]
    has: tuple[str, ...]
    decoder_start: str | None = None
    feed_forward: Fraction = Fraction(4)
    fixed_feed_forward: bool = False
    causal_only: bool = False
    token_types: bool = False
    permutes: bool = False
    bidirectional_lm: bool = False
    characters: bool = False
    decodes_neighbours: bool = False
    window_objective: str | None = None

    @property
    def predicts_no_masks(self) -> bool:
        """Whether the architecture is an encoder that is never pretrained on masked tokens."""
        return self.permutes or self.bidirectional_lm or self.decodes_neighbours

    @property
    def recurrent(self) -> bool:
        """Whether the architecture is recurrent, with neither attention nor positions."""
        return self.positions == ("none",)

    @property
    def folder(self) -> str:
        """The folder of `trainers.models` that contains the architecture's module."""
        return "recurrent" if self.recurrent else f"{self.family}s"


# Schemes for architectures with a position table. Clipped relative positions (Shaw et al., 2018) are our own
# implementation.
_TABLE: tuple[Position, ...] = ("learned", "sinusoidal", "relative")
_COMMON = ("dropout", "initializer_range")
_STACKS = ("decoder_layers", "tied_stacks")
_SHARING = ("layer_groups", "shared_parts")
_GENERATOR = ("generator_size", "generator_layers")
_DEBERTA = ("position_buckets", "convolution", "mask_decoder", *_GENERATOR, "embedding_sharing")
_CHARACTERS = ("character_filters", "highway_layers")
RECURRENT_RATES = ("input_dropout", "hidden_dropout", "embedding_dropout", "weight_dropout")
"""The rates of dropout that only AWD-LSTM has."""
_GLU = Fraction(8, 3)  # three gated matrices then have as many parameters as two ungated ones at 4 x width
ARCHITECTURES: dict[str, Traits] = {
    "albert": Traits(
        "encoder", ("learned",), (*_COMMON, "sentence_head", "embedding_size", *_SHARING), token_types=True
    ),
    "awd_lstm": Traits(
        "decoder",
        ("none",),
        ("dropout", *RECURRENT_RATES),
        feed_forward=Fraction(23, 8),
        causal_only=True,
        window_objective="causal",
    ),
    "bart": Traits("encoder_decoder", _TABLE, (*_COMMON, *_STACKS), decoder_start="<eos>"),
    "bert": Traits("encoder", _TABLE, (*_COMMON, "sentence_head", "boundary_head"), token_types=True),
    "canine": Traits("encoder", ("learned",), (*_COMMON, "character_buckets"), token_types=True, characters=True),
    "deberta": Traits("encoder", ("disentangled",), (*_COMMON, "mask_decoder")),
    "deberta_v2": Traits("encoder", ("disentangled",), (*_COMMON, *_DEBERTA)),
    "electra": Traits("encoder", ("learned",), (*_COMMON, "embedding_size", *_GENERATOR), token_types=True),
    "elmo": Traits("encoder", ("none",), ("dropout", *_CHARACTERS), bidirectional_lm=True),
    "gpt": Traits("decoder", ("learned", "sinusoidal"), _COMMON, fixed_feed_forward=True, causal_only=True),
    "gpt2": Traits("decoder", _TABLE, (*_COMMON, "tied")),
    "gru": Traits("encoder", ("none",), ("embedding_size",), None, Fraction(1), True, decodes_neighbours=True),
    "llama": Traits("decoder", ("rope",), ("initializer_range", "key_value_heads", "norm_epsilon", "tied"), None, _GLU),
    "modernbert": Traits("encoder", ("rope",), _COMMON, feed_forward=Fraction(3, 2)),
    "roberta": Traits("encoder", _TABLE, _COMMON),
    "t5": Traits("encoder_decoder", ("t5_bias",), ("dropout", "gated", "head_width", "tied", *_STACKS), "<pad>"),
    "xlnet": Traits(
        "encoder", ("transformer_xl",), _COMMON, token_types=True, permutes=True, window_objective="permutation"
    ),
}
"""Every architecture by name. Its module has the same name, in `Traits.folder` of `trainers.models`."""

if TYPE_CHECKING:
    ArchitectureName = str
else:  # type checkers do not support a computed Literal; the configuration parser does
    ArchitectureName = Literal[tuple(ARCHITECTURES)]

# The value that a field named in `Traits.has` must keep where the architecture lacks it.
_ABSENT: dict[str, object] = {
    "decoder_layers": None,
    "head_width": None,
    "gated": False,
    "tied": True,
    "tied_stacks": False,
    "sentence_head": False,
    "norm_epsilon": 1e-6,
    "dropout": 0.0,
    "initializer_range": 0.02,
    "embedding_size": None,
    "generator_size": None,
    "generator_layers": None,
    "embedding_sharing": None,
    "layer_groups": None,
    "shared_parts": None,
    "boundary_head": False,
    "position_buckets": None,
    "convolution": False,
    "mask_decoder": False,
    "character_filters": None,
    "highway_layers": None,
    "character_buckets": None,
    **dict.fromkeys(RECURRENT_RATES, 0.0),
}
PRETRAINING_ONLY: dict[str, object] = {
    name: _ABSENT[name]
    for name in (
        *("generator_size", "generator_layers", "embedding_sharing"),
        *("boundary_head", "mask_decoder", "character_buckets"),
    )
}
"""Fields of parts that only pretraining uses, and their values without these parts."""
_VOCABULARY_MULTIPLE = 64
_HIGHWAYS = 2  # in ELMo's "original" model
_HASHES = 8  # functions that hash a character, in both published models of CANINE
_BUCKETS = 256  # in all published models of DeBERTa, versions 2 and 3
_WHOLE = 0.01  # a share such as 0.333 of 12 heads means 4


def require(condition: bool, message: str) -> None:
    """Raise ValueError with `message` (`field: got X, allowed Y`) unless `condition` holds."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Model:
    """An architecture and its sizes. `width` is the hidden size, `feed_forward` the inner size of a block.

    `layers` is the depth of each stack; `decoder_layers` overrides it for the decoder. `head_width` is the
    width of one head, which in T5 3B and 11B is not width / heads. `position` selects one of the position
    schemes that the architecture supports; the scheme `relative` clips distances at `relative_distance`.
    `gated` selects T5 v1.1's feed-forward. `tied` shares weights between the output layer and the embeddings,
    `tied_stacks` between encoder and decoder (Raffel et al., 2020, section 3.2.2). `sentence_head` adds the
    classifier of sentence pairs, `boundary_head` the layers that objective span_boundary trains. `rope_base`
    is the base of the rotary positions, in ModernBERT only of its global layers. `norm_epsilon` belongs to
    Llama's RMS norm (1e-5 in Llama 2 and 3). T5 has its own initialisation, so it takes no
    `initializer_range`.

    `embedding_size` is the width of the embeddings, which a matrix maps to `width`. For a BERT with such
    embeddings, use electra without a generator and train it with objective masked. `generator_size` adds the
    generator that objective replaced_tokens trains. The generator has `generator_layers` layers.
    `generator_size` is the ratio of the generator's heads, width and feed-forward size to the discriminator's
    (Clark et al., 2020, table 6: 1/4 for small and large, 1/3 for base). In electra, the two share the
    embeddings. In deberta_v2, the generator has the full width (`generator_size: 1`) and usually fewer layers
    (He et al., 2023, section 5.1: half as many). With `embedding_sharing: gradient_disentangled`, the
    discriminator's embeddings are the sum of the generator's and a separate table, and the discriminator's
    loss trains only that table (section 3.2). With `shared`, both losses train the same embeddings.

    `layer_groups` divides the layers into groups of consecutive layers that share parameters. `shared_parts`
    says which parameters: `all`, only those of the `attention`, or only those of the `feed_forward`, each
    with its norm (Lan et al., 2020, table 4). With as many groups as layers, nothing is shared.

    In AWD-LSTM, `width` is the size of the embeddings and of the last layer, and `feed_forward` the size of
    the layers before it (400 and 1,150 as published). `embedding_dropout` drops words, `input_dropout` units
    after the embeddings, `hidden_dropout` units between layers, `dropout` units after the last layer, and
    `weight_dropout` recurrent weights.

    In ELMo, `width` is the size of the states of both directions together. Each direction has half that
    width, and so do the embeddings. `feed_forward` is the number of cells per direction, whose outputs are
    projected to half of `width` (as published, `width` is 1,024 and `feed_forward` 4,096). With
    `character_filters`, the vector of a token is computed from its characters instead of being looked up in a
    table. There are `character_filters` filters (2,048 as published), with the published proportions of
    filter widths, followed by `highway_layers`. The output layer is then not tied to the embeddings.

    In CANINE, `positions` is a number of characters, and each of the eight tables of hashed embeddings also
    has `positions` rows (16,384 as published). `character_buckets` replaces the output layer over tokens with
    the decoder of CANINE-C, which objective masked_characters trains. This decoder predicts one of
    `character_buckets` classes for each character: its code point modulo `character_buckets`.

    In GRU, `width` is the size of the states of the encoder and of both decoders. `embedding_size` is the
    size of the embeddings, which no matrix maps to `width`, and `layers` is the depth of the encoder (2,400,
    620 and 1 in uni-skip, Kiros et al., 2015, section 3).

    `position_buckets` (in deberta_v2) is the number of distances in each direction that attention tells
    apart: half of them singly, the others in ranges that grow logarithmically up to `positions`.
    `convolution` adds a convolution over three tokens in parallel with the first layer, as in version 2.
    `mask_decoder` predicts masked tokens with the enhanced mask decoder (He et al., 2021), which applies the
    last layer twice, with queries that also know their absolute position. Only pretraining uses it.

    Fields left null are computed: `decoder_layers` (= layers), `embedding_size` (= width), `head_width`
    (width / heads), `key_value_heads` (= heads), `position_buckets` (256), `highway_layers` (2 with
    `character_filters`), `layer_groups` (1), `shared_parts` (all), `feed_forward` (4 x width; 8/3 x width,
    rounded up to a multiple of 64, in Llama and gated T5; 3/2 x width in ModernBERT; 23/8 x width in
    AWD-LSTM; width in GRU), `position` (the architecture's default), `vocab_size` (the tokenizer's, rounded
    up to a multiple of 64 for the matrix products). With a generator, `generator_layers` (= layers) and, in
    deberta_v2, `embedding_sharing` (gradient_disentangled) are computed, too.
    """

    architecture: ArchitectureName
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
    embedding_size: int | None = field(default=None, metadata=ADDED)
    generator_size: float | None = field(default=None, metadata=ADDED)
    layer_groups: int | None = field(default=None, metadata=ADDED)
    shared_parts: SharedParts | None = field(default=None, metadata=ADDED)
    boundary_head: bool = field(default=False, metadata=ADDED)
    position_buckets: int | None = field(default=None, metadata=ADDED)
    convolution: bool = field(default=False, metadata=ADDED)
    mask_decoder: bool = field(default=False, metadata=ADDED)
    generator_layers: int | None = field(default=None, metadata=ADDED)
    embedding_sharing: EmbeddingSharing | None = field(default=None, metadata=ADDED)
    character_filters: int | None = field(default=None, metadata=ADDED)
    highway_layers: int | None = field(default=None, metadata=ADDED)
    character_buckets: int | None = field(default=None, metadata=ADDED)
    input_dropout: float = field(default=0.0, metadata=ADDED)
    hidden_dropout: float = field(default=0.0, metadata=ADDED)
    embedding_dropout: float = field(default=0.0, metadata=ADDED)
    weight_dropout: float = field(default=0.0, metadata=ADDED)

    @property
    def traits(self) -> Traits:
        """The traits of the architecture."""
        return ARCHITECTURES[self.architecture]

    @property
    def family(self) -> Family:
        """The family of the architecture."""
        return self.traits.family

    @property
    def scheme(self) -> Position:
        """The position scheme: `position`, or the architecture's default."""
        return self.position or self.traits.positions[0]

    def check(self) -> None:
        """Validate ranges and combinations of fields. Fields that the architecture does not have must keep
        their defaults.
        """
        for name in ("layers", "width", "heads", "positions", "relative_distance"):
            require(getattr(self, name) >= 1, f"{name}: got {getattr(self, name)}, allowed 1 or more")
        for name in (
            "decoder_layers",
            "head_width",
            "feed_forward",
            "vocab_size",
            "embedding_size",
            "layer_groups",
            "character_buckets",
            "key_value_heads",
        ):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}: got {value}, allowed 1 or more")
        for name in ("initializer_range", "rope_base", "norm_epsilon"):
            require(getattr(self, name) > 0, f"{name}: got {getattr(self, name)}, allowed above 0")
        for name in ("dropout", *RECURRENT_RATES):
            rate = getattr(self, name)
            require(0.0 <= rate < 1.0, f"{name}: got {rate}, allowed 0 or more and below 1")
        for name, absent in _ABSENT.items():
            value = getattr(self, name)
            owners = ", ".join(owner for owner, traits in ARCHITECTURES.items() if name in traits.has)
            require(
                value == absent or name in self.traits.has,
                f"{name}: got {value}, {self.architecture} has none; leave it at {absent}, or use one of {owners}",
            )
        buckets = self.position_buckets
        require(buckets is None or buckets >= 4, f"position_buckets: got {buckets}, allowed 4 or more")
        allowed = self.traits.positions
        require(
            self.position is None or self.position in allowed,
            f"position: got {self.position}, {self.architecture} allows {', '.join(allowed)}",
        )
        self._check_heads()
        self._check_stacks()
        self._check_generator()
        self._check_characters()

    def _check_heads(self) -> None:
        require(
            not self.traits.recurrent or self.heads == 1,
            f"heads: got {self.heads}, {self.architecture} has no attention; leave it at 1",
        )
        require(
            not self.traits.bidirectional_lm or self.width % 2 == 0,
            f"width: got {self.width}, each direction of {self.architecture} has half of it; allowed even numbers",
        )
        require(
            not self.traits.characters or self.width % _HASHES == 0,
            f"width: got {self.width}, {self.architecture} has {_HASHES} tables of embeddings; allowed multiples of {_HASHES}",
        )
        require(
            self.head_width is not None or self.width % self.heads == 0,
            f"heads: got {self.heads}, which does not divide width {self.width}",
        )
        shared = self.key_value_heads or self.heads
        require(self.heads % shared == 0, f"key_value_heads: got {shared}, which does not divide heads {self.heads}")
        require(
            "key_value_heads" in self.traits.has or shared == self.heads,
            f"key_value_heads: got {shared}, {self.architecture} has as many as heads ({self.heads})",
        )
        inner = _feed_forward(self)
        require(
            not self.traits.fixed_feed_forward or self.feed_forward in (None, inner),
            f"feed_forward: got {self.feed_forward}, {self.architecture} always has {self.traits.feed_forward} x width ({inner})",
        )

    def _check_stacks(self) -> None:
        require(
            not self.tied_stacks or self.decoder_layers in (None, self.layers),
            f"decoder_layers: got {self.decoder_layers}, tied_stacks needs as many as layers ({self.layers})",
        )

        groups = self.layer_groups or 1
        require(self.layers % groups == 0, f"layer_groups: got {groups}, which does not divide layers {self.layers}")

    def _check_generator(self) -> None:
        if self.generator_size is None:
            for name in ("generator_layers", "embedding_sharing"):
                require(getattr(self, name) is None, f"{name}: got {getattr(self, name)} without generator_size")
            return
        layers = self.generator_layers
        require(
            layers is None or 1 <= layers <= self.layers,
            f"generator_layers: got {layers}, allowed 1 to layers ({self.layers})",
        )
        require(
            "embedding_size" in self.traits.has or self.generator_size == 1,
            f"generator_size: got {self.generator_size}, allowed 1 in {self.architecture}, whose generator has embeddings of the "
            f"discriminator's width; set generator_layers",
        )
        require(
            0 < self.generator_size <= 1,
            f"generator_size: got {self.generator_size}, allowed above 0 and at most 1: a generator is not wider than its "
            f"discriminator",
        )
        heads = self.generator_size * self.heads
        require(
            heads >= 1 - _WHOLE and abs(heads - round(heads)) < _WHOLE,
            f"generator_size: got {self.generator_size}, which gives the generator {heads:.4g} of {self.heads} heads; allowed "
            f"multiples of 1/{self.heads}",
        )
        inner = (self.feed_forward or _feed_forward(self)) * round(heads)
        require(
            inner % self.heads == 0,
            f"generator_size: got {self.generator_size}, which gives the generator a feed_forward of {inner / self.heads:.4g}; "
            f"allowed a feed_forward that is a multiple of heads ({self.heads})",
        )

    def _check_characters(self) -> None:
        filters, highways = self.character_filters, self.highway_layers
        require(
            filters is None or (filters > 0 and filters % 64 == 0),
            f"character_filters: got {filters}, allowed multiples of 64, so that the filters of every width are a whole number",
        )
        require(
            highways is None or (filters is not None and highways >= 1),
            f"highway_layers: got {highways}, allowed 1 or more with character_filters",
        )


def generator_of(model: Model) -> Model:
    """Return the configuration of a resolved model's generator. `generator_size` must be set."""
    assert model.generator_size is not None
    heads = round(model.generator_size * model.heads)
    width = model.width // model.heads * heads
    inner = (model.feed_forward or _feed_forward(model)) * heads // model.heads
    layers = model.generator_layers or model.layers
    smaller = replace(model, layers=layers, width=width, heads=heads, key_value_heads=heads, feed_forward=inner)
    return replace(smaller, generator_size=None, generator_layers=None, embedding_sharing=None)


def fill(model: Model, tokens: int) -> Model:
    """Return the model with default values in place of null fields. `tokens` is the number of tokens of the
    tokenizer.

    Fields that the architecture lacks or the model does not use stay null, except `key_value_heads`.
    `generator_layers` and `embedding_sharing` stay null too. Raises ConfigError if `vocab_size` is smaller
    than `tokens`.
    """
    vocabulary = model.vocab_size or -(-tokens // _VOCABULARY_MULTIPLE) * _VOCABULARY_MULTIPLE
    if vocabulary < tokens:
        raise ConfigError(
            f"model.vocab_size: got {vocabulary}, the corpus's tokenizer has {tokens} tokens; "
            f"raise it, or leave it out to use the tokenizer's"
        )
    return replace(
        model,
        vocab_size=vocabulary,
        feed_forward=model.feed_forward or _feed_forward(model),
        key_value_heads=model.key_value_heads or model.heads,
        decoder_layers=(model.decoder_layers or model.layers) if "decoder_layers" in model.traits.has else None,
        head_width=(model.head_width or model.width // model.heads) if "head_width" in model.traits.has else None,
        embedding_size=(model.embedding_size or model.width) if "embedding_size" in model.traits.has else None,
        layer_groups=(model.layer_groups or 1) if "layer_groups" in model.traits.has else None,
        shared_parts=(model.shared_parts or "all") if "shared_parts" in model.traits.has else None,
        position_buckets=(model.position_buckets or _BUCKETS) if "position_buckets" in model.traits.has else None,
        highway_layers=model.highway_layers or (_HIGHWAYS if model.character_filters else None),
        position=model.scheme,
    )


def _feed_forward(model: Model) -> int:
    factor = _GLU if model.gated else model.traits.feed_forward
    return math.ceil(factor * model.width / 64) * 64 if factor == _GLU else int(factor * model.width)
