"""The interface between models and the code that uses them: the architecture (`Architecture`), the inputs of
its forward pass, the state kept between passes, and the forms of task heads. The forward pass has two parts.
The first ends before the output layer, so that logits are computed only at the targets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

from trainers.config.architecture import Model


@dataclass
class Past:
    """The states that a model keeps for positions it has already read.

    `cache` contains the keys and values of every layer, as `transformers` keeps them. `seen`, bool [rows,
    columns], says which columns of the cache are text. An encoder-decoder also has `encoded`, the states of
    the encoder, and `source`, bool [rows, length], which is false at the padding of the encoder's rows.
    """

    cache: Any
    seen: Any = None
    encoded: Any = None
    source: Any = None

    def trim(self) -> None:
        """Drop the columns of the cache after the end of the longest row. They contain only padding, but T5
        would count them in its distances.
        """
        columns = int(self.seen.any(0).sum())
        own = self.cache if self.source is None else self.cache.self_attention_cache
        if columns < self.seen.shape[1]:
            own.crop(columns - self.seen.shape[1])  # a negative number is removed from the end
        self.seen = self.seen[:, :columns]

    def select(self, rows: Any) -> None:
        """Keep only the rows with the indices `rows`, int64 [n], in this order."""
        self.cache.batch_select_indices(rows)
        for name in ("seen", "encoded", "source"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value[rows])


@dataclass
class LayerState:
    """The state of a recurrent layer at the end of each row of the window: `hidden` and `cell`, [rows,
    units]; both are None before the first window.
    """

    hidden: Any = None
    cell: Any = None


@dataclass
class Carried:
    """The state that a model carries from one window of rows to the next. Every forward pass updates it.

    - `columns`: the number of columns of the rows read so far.
    - `positions`, int64 [rows]: in a recurrent model, the positions in the last column read. A sequence
      continues in the next window only if its first position there is one higher.
    - `layers`: the state of every layer of a recurrent model.
    - `memories`: the states that entered each of XLNet's layers in the previous window, [window length,
      rows, width], without gradients.
    - `segments`, int64 [rows, window length]: the segments of the previous window.
    """

    columns: int = 0
    positions: Any = None
    layers: list[LayerState] = field(default_factory=list)
    memories: list[Any] = field(default_factory=list)
    segments: Any = None


@dataclass(frozen=True)
class Inputs:
    """The tensors that an encoder or a decoder reads.

    - `ids` and `positions`, int64 [rows, length]: positions usually count from 0 in every document.
    - `mask`, bool [rows, 1, length, length]: which positions each position attends to. For architectures
      with `unmasked`, it may be None if every position attends to its whole row or, in a decoder, to all
      positions up to itself.
    - `token_types`, int64 [rows, length]: BERT's segment A or B.
    - `decoder`: in an encoder-decoder, the inputs of the decoder. An encoder that predicts characters
      also has a `decoder`; its columns are those of `order`.
    - `cross`, bool [rows, 1, target length, length]: which encoder positions each decoder position
      attends to.
    - `past`: what earlier calls have read; this call adds to it. `ids` and `positions` then hold only the
      new positions, and `mask` is [rows, 1, length, columns read before + length].
    - `order`, int64 [rows, targets]: `Batch.factorization`.
    - `covered` and `read`: those of `Batch`.
    - `carried`: the state of an architecture that carries one. `ids`, `positions` and `mask` are then those
      of one window of the rows. If `carried` has memories, `mask` is [rows, 1, length, memory length +
      length], with the columns of the memories first.
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
        """The keys and values of `past`, or None without `past`."""
        return self.past.cache if self.past is not None else None


HeadKind = Literal["classify", "regress", "tag", "span", "choose"]
PER_POSITION = ("tag", "span")
"""Kinds of tasks that predict at every position. The others make one prediction per segment."""


@dataclass(frozen=True)
class HeadForm:
    """The form of a task's head. `stock` is the `transformers` class that has the same head, or None if there
    is no such class or its results differ from ours.

    With `dense`, a head consists of [dropout], dense layer, activation, [norm], dropout and output layer;
    otherwise, only of dropout and output layer. `dense`, `norm` and `output` are the names of the layers,
    which are those of the stock model if there is one. `bias` says whether the output layer has a bias,
    `drops` whether there is dropout by default, and `drops_first` whether there is also dropout before the
    dense layer.
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
    """An architecture, as functions on its `transformers` model. `hidden` and `logits`, the two parts of the
    forward pass, call the modules of the stock model, where there is one, and compute the same results.

    Fields that create and load models:

    - `configuration` makes the `transformers` configuration from sizes and special ids.
    - `sizes`, its inverse, returns a Model with the sizes of a published configuration. If a
      transformer's configuration has several dropout rates, the Model takes the one for hidden states.
      Raises ConfigError for settings that a Model cannot express, except for those that
      `runs.published_model.check_configuration` compares.
    - `create`, given if the stock class of the family does not fit, makes the model from its
      configuration, sizes and special ids.
    - `attention` is the name of the attention implementation that the stock model uses.
    - `auto` is the name of the auto class of `transformers` that loads the model, if it differs from the
      family's.
    - `register` registers an architecture of our own with the auto classes.
    - `own_class` returns the class of a network whose layers are those of `transformers` but whose head
      is ours.
    - `spell` tells a network that reads characters how its tokens are spelled. It is given the bytes of
      each id's text, and the special tokens. Until then, id i is spelled as the character with code point i.
    - `publish` changes a trained model, given the special ids, so that plain `transformers` computes the
      same results.

    Fields that compute:

    - `hidden` returns the state of every position, [rows, length, width]; in an encoder-decoder, of every
      position of the decoder; in CANINE with characters to predict, of every target.
    - `caches` says, for architectures that generate text, whether `hidden` accepts `Inputs.past`;
      encoders ignore it.
    - `unmasked` says whether `hidden` accepts None as mask.
    - `branches` says whether several continuations can share one context in a row. They cannot if
      `hidden` divides the row into separate documents instead of applying the mask.
    - `logits` maps states [..., width] to logits [..., target classes].
    - `backward` maps states to the logits of the token before each position, in an architecture whose
      `logits` are of the token after it.
    - `sentence` maps states [rows, length, width] to the logits of the two classes of sentence pairs,
      [rows, 2].
    - `boundary` predicts n tokens from the boundaries of their spans. It maps the states just before and
      after each token's span, [n, 2, width], and the token's place in it, int64 [n], to logits
      [n, vocabulary].
    - `neighbours` is given the vectors of the sentences before and after the sentence at each position,
      both [rows, length, width]. It returns the states [rows, length, width] of the decoders that write
      the next and the previous sentence; `logits` maps these states.
    - `heads` gives the form of the head for each kind of task.

    Fields that describe the layers:

    - `blocks` are the layers of the last stack that `hidden` runs, in order; in CANINE, those of the deep
      stack, which a layer of characters follows. Each takes states as its first argument, and returns
      states or a tuple that begins with them.
    - `encoder_blocks` are the layers of the encoder of an encoder-decoder.
    - `layer_states` converts the states that the blocks take and return to [rows, length, width], if they
      have another shape.
    - `decoder_name` maps the name of an encoder parameter to the decoder's.
    - `tables` are the position embeddings, each with the row of position 0, and `attentions` are the
      self-attention layers. Other position schemes replace these parts.

    Fields that count operations:

    - `queried` returns the number of parameters by which a second stream of states is multiplied for
      every target, in an architecture that has such a stream.
    - `repeats` returns the number of multiplications per token beyond one per parameter, negative if some
      parameters multiply no token.
    - `attended` returns the number of pairs of queries and keys per token in a row of the given length,
      over all layers. A Transformer needs it if this number differs from the length times the number of
      layers.

    In a network with a generator (`Model.generator_size`), `hidden` and `blocks` are those of the
    discriminator. The generator, `network.generator`, is itself a network of the same architecture.

    - `replaced` returns the discriminator's logits, [rows, length], that a token was replaced.
    - `parts` returns the network as stock models, keyed by their directory in an export: the
      discriminator, whose key is "" for the export's own directory, and its `generator`.
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
    """Return the states of the encoder [rows, length, width]. With `inputs.past`, they are computed once and
    stored there.
    """
    if inputs.past is None:
        return encode()
    if inputs.past.encoded is None:
        inputs.past.encoded = encode()
    return inputs.past.encoded


def special_ids(specials: dict[str, int]) -> dict[str, int | None]:
    """Return the ids of `<bos>`, `<eos>` and `<pad>`, keyed by their names in `transformers` configurations,
    with None for a token that the tokenizer lacks.

    Do not pass another token in place of a missing `<pad>`: in many models, the embedding of the padding
    token is 0 and is not trained.
    """
    return {f"{name}_token_id": specials.get(f"<{name}>") for name in ("bos", "eos", "pad")}


def bert_arguments(model: Model, specials: dict[str, int]) -> dict[str, Any]:
    """Return the keyword arguments that the configurations of BERT and its successors share, from the
    settings of `model` and the ids of the special tokens.
    """
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
    """Return the sizes in a configuration of BERT or one of its successors; the inverse of `bert_arguments`."""
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
