"""The interface of an architecture: its `transformers` configuration, and its forward pass in two parts.

The first part ends before the output layer, so that logits are computed at the targets only. Masked language
modelling needs them at 15 % of the positions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

from trainers.config.architecture import Model


@dataclass
class Past:
    """The states that a model keeps of positions it has read, so that it reads each position only once.

    `cache` holds the keys and values of every layer, as `transformers` keeps them. `seen`, bool [rows,
    columns], says which of its columns hold text. For an encoder-decoder, there is also `encoded`, the states
    of the encoder, and `source`, bool [rows, length], which says which of them are text.
    """

    cache: Any
    seen: Any = None
    encoded: Any = None
    source: Any = None

    def trim(self) -> None:
        """Forget the columns after the longest row: they hold padding, and T5 counts distances over columns."""
        columns = int(self.seen.any(0).sum())
        own = self.cache if self.source is None else self.cache.self_attention_cache
        if columns < self.seen.shape[1]:
            own.crop(columns - self.seen.shape[1])  # a negative number is removed from the end
        self.seen = self.seen[:, :columns]

    def select(self, rows: Any) -> None:
        """Keep the rows with these numbers, int64 [n]."""
        self.cache.batch_select_indices(rows)
        for name in ("seen", "encoded", "source"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value[rows])


@dataclass
class LayerState:
    """The state in which a recurrent layer left every row: `hidden` and `cell`, [rows, units], without a gradient; None
    before the first window.
    """

    hidden: Any = None
    cell: Any = None


@dataclass
class Carried:
    """What a model carries from one window of rows to the next: the state of every layer of a recurrent one, or the `memories`
    of XLNet's layers, [columns, rows, width], which are the states that entered them in the window before, without a gradient.

    `columns` of the rows have been read. `positions`, int64 [rows], are those of the last of them: a sequence of the next window
    continues only where its first position follows. `segments`, int64 [rows, columns], are those of the memories. Every call
    replaces all of it.
    """

    columns: int = 0
    positions: Any = None
    layers: list[LayerState] = field(default_factory=list)
    memories: list[Any] = field(default_factory=list)
    segments: Any = None


@dataclass(frozen=True)
class Inputs:
    """Tensors that one stack reads: `ids` and `positions` (from 0 in every document), int64 [rows, length],
    and `mask`, bool [rows, 1, length, length], the positions each position attends to. For architectures with
    `unmasked`, `mask` is None if these are all positions of the row, or all up to itself in a decoder.

    `token_types`, int64 [rows, length], is BERT's segment A or B. In an encoder-decoder, `decoder` holds the inputs of the
    decoder, and `cross`, bool [rows, 1, target length, length], the encoder positions it attends to. `order`, int64
    [rows, targets], is `Batch.factorization`, and `covered` and `read` are those of `Batch`. An encoder has a `decoder` here if
    it predicts characters, with the columns of `order`. `past` keeps what earlier calls have read, and this call adds to it.
    Ids, positions and mask are then those of the new positions only, and the encoder runs only once. With `carried`, in
    architectures that carry a state, they are those of one window of the rows; if it has memories, `mask` is [rows, 1, length,
    columns + length], with the columns of these first.
    """

    ids: Any
    positions: Any
    mask: Any
    token_types: Any = None
    decoder: Optional["Inputs"] = None
    cross: Any = None
    past: Past | None = None
    order: Any = None
    covered: Any = None
    read: Any = None
    carried: Carried | None = None

    @property
    def cache(self) -> Any:
        """The keys and values of `past`."""
        return self.past.cache if self.past is not None else None


HeadKind = Literal["classify", "regress", "tag", "span", "choose"]
PER_POSITION = ("tag", "span")
"""Kinds of tasks that predict at every position. The others make one prediction per segment."""


@dataclass(frozen=True)
class HeadForm:
    """The layers of a task's head in the `transformers` class `stock` of an architecture. `stock` is None if
    there is no such class, or if it gives other results.

    A head is [dropout], dense layer, activation, [norm], dropout, output layer, or without `dense` only
    dropout and output layer. `dense`, `norm` and `output` are the names of the layers in the stock model. Our
    heads use the stock layout, so that they can begin with the layers of a published head. `drops` says
    whether there is dropout by default, and `drops_first` whether there is also dropout before the dense
    layer.
    """

    stock: str | None
    output: str
    dense: str | None = None
    norm: str | None = None
    activation: Literal["tanh", "gelu"] = "tanh"
    bias: bool = True
    drops: bool = True
    drops_first: bool = False


@dataclass(frozen=True)
class Architecture:
    """An architecture as functions on its `transformers` model. The two parts of the forward pass call the
    stock model's own modules and compute what it computes.

    `configuration` makes the `transformers` configuration from sizes and special ids. `create`, if the stock
    class of the family does not fit, makes the model from that configuration, the sizes and the special ids.
    `hidden` [rows, length, width] is the state of every position, of the decoder if there is one. `logits`
    maps states [..., width] to [..., vocabulary], `sentence` maps states [rows, length, width] to the two
    classes of sentence pairs [rows, 2]. `boundary` maps the states outside of the spans of n tokens [n, 2, width] and the
    tokens' places in these, int64 [n], to logits [n, vocabulary]. `backward` maps states like `logits`, to the token before
    each position, in an architecture whose `logits` are of the token after it. `neighbours` returns the states [rows, length,
    width] of the decoders of the next and of the previous sentence, which `logits` maps, given two vectors for each position
    [rows, length, width]: of the sentence before and of the sentence after its own.

    `tables` are its position embeddings, each with the row of position 0, and `attentions` its self-attention
    layers: the parts that other position schemes replace. `decoder_name` maps the name of an encoder
    parameter to the decoder's. `publish` changes a trained model, given the special ids, so that plain
    `transformers` computes the same.

    `sizes` is the inverse of `configuration`: it returns a Model with the sizes of a published configuration.
    Its dropout rate is that of the hidden states, the only rate that a Model has. `sizes` raises ConfigError for
    settings that a Model cannot express, unless `runs.published_model.check_configuration` compares them.

    `blocks` are the layers of the stack that `hidden` ends with, in order: each takes states as its first
    argument, and returns them, or a tuple that begins with them. `encoder_blocks` are those of the encoder of an
    encoder-decoder. `heads` gives the form of the head for each
    kind of task. `caches` says whether `hidden` takes `Inputs.past`, and `unmasked` whether it takes no mask. Without
    `branches`, `hidden` does not read the mask, and several continuations cannot share one context in a row. `register` makes
    the auto classes of `transformers` know an architecture that is ours. `own_class` returns the class of a network whose layers
    are in `transformers` and whose head is ours.

    `auto` is the auto class of `transformers` that loads it, if it is not that of its family. `layer_states` maps states as the
    blocks take and return them to states [rows, length, width], if they are not those. `queried` returns the number of
    parameters that a second stream of states multiplies for every target, in an architecture that has one.

    `spell` gives a network that reads characters those of its tokens: the bytes that each id stands for in a text, and the
    special tokens. Until then it takes id i for the character U+i. `repeats` returns the multiplications of a token beyond one
    for each parameter, negative where some parameters multiply no token, and `attended` the pairs of queries and keys of a token
    in a row of this length, over all layers, if not every token attends to the row alone.

    Of a network with a generator (`Model.generator_size`), `hidden` and `blocks` are those of the discriminator.
    `replaced` returns its logits, [rows, length], that a token was replaced. `parts` returns the stock models that share
    the network's parameters, by their directory in an export: the discriminator in the export itself, named "", and its
    `generator`. The generator, as `network.generator`, is a network of the same architecture by itself.
    """

    configuration: Callable[[Model, dict[str, int]], Any]
    sizes: Callable[[Any], Model]
    hidden: Callable[[Any, Inputs], Any]
    logits: Callable[[Any, Any], Any]
    blocks: Callable[[Any], list[Any]]
    heads: Mapping[HeadKind, HeadForm]
    create: Callable[[Any, Model, dict[str, int]], Any] | None = None
    sentence: Callable[[Any, Any], Any] | None = None
    backward: Callable[[Any, Any], Any] | None = None
    boundary: Callable[[Any, Any, Any], Any] | None = None
    neighbours: Callable[[Any, Inputs, tuple[Any, Any]], tuple[Any, Any]] | None = None
    tables: Callable[[Any], list[tuple[Any, int]]] | None = None
    attentions: Callable[[Any], list[Any]] | None = None
    decoder_name: Callable[[str], str] | None = None
    publish: Callable[[Any, dict[str, int]], None] | None = None
    attention: str = "sdpa"
    caches: bool = True
    unmasked: bool = False
    encoder_blocks: Callable[[Any], list[Any]] | None = None
    auto: str | None = None
    layer_states: Callable[[Any, Any], Any] | None = None
    queried: Callable[[Any], int] | None = None
    replaced: Callable[[Any, Inputs], Any] | None = None
    parts: Callable[[Any], dict[str, Any]] | None = None
    branches: bool = True
    register: Callable[[], None] | None = None
    own_class: Callable[[], Any] | None = None
    spell: Callable[[Any, Sequence[bytes], dict[str, int]], None] | None = None
    repeats: Callable[[Any], float] | None = None
    attended: Callable[[Any, int], float] | None = None


def encode_once(inputs: Inputs, encode: Callable[[], Any]) -> Any:
    """Return the states of the encoder [rows, length, width], from `inputs.past` if they are there. Otherwise
    compute them and store them there.
    """
    if inputs.past is None:
        return encode()
    if inputs.past.encoded is None:
        inputs.past.encoded = encode()
    return inputs.past.encoded


def special_ids(specials: dict[str, int]) -> dict[str, int | None]:
    """Return the ids of `<bos>`, `<eos>` and `<pad>`, named as in configurations of `transformers`. One that the tokenizer
    lacks is None, because the default would be that of the published model.

    The embedding of the padding token is 0 and not trained, so no other token may be declared as padding.
    """
    return {f"{name}_token_id": specials.get(f"<{name}>") for name in ("bos", "eos", "pad")}


def bert_arguments(model: Model, specials: dict[str, int]) -> dict[str, Any]:
    """Return the fields that the configurations of BERT and its successors share."""
    return {
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.positions,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "intermediate_size": model.feed_forward,
        "hidden_dropout_prob": model.dropout,
        "attention_probs_dropout_prob": model.dropout,
        "initializer_range": model.initializer_range,
        **special_ids(specials),
    }


def bert_sizes(architecture: str, configuration: Any) -> Model:
    """Return the sizes that `bert_arguments` writes to a configuration."""
    return Model(
        architecture,
        layers=configuration.num_hidden_layers,
        width=configuration.hidden_size,
        heads=configuration.num_attention_heads,
        positions=configuration.max_position_embeddings,
        feed_forward=configuration.intermediate_size,
        vocab_size=configuration.vocab_size,
        dropout=configuration.hidden_dropout_prob,
        initializer_range=configuration.initializer_range,
    )


def decoder_start_id(model: Model, specials: dict[str, int]) -> int:
    """Return the id that the decoder of an encoder-decoder reads first."""
    start = model.traits.decoder_start
    assert start is not None, f"{model.architecture} is not an encoder-decoder"
    return specials[start]
