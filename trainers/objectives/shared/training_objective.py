"""The protocol through which training, evaluation and inference use an objective, and the classes that
describe how an objective compares vectors (`Contrast`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.rows.batch import Batch, Frame, Room


@dataclass(frozen=True)
class Contrast:
    """How the vectors of a row's segments are compared. `pooling` says what the vector of a segment is: the
    state of its `first` token, or the `mean` of the states between its marks.
    """

    pooling: Literal["first", "mean"]


@dataclass(frozen=True)
class CopyContrast(Contrast):
    """A contrast of copies: segments 2i and 2i + 1 are two copies of one text. From the first copy, the model
    has to find the second among the second copies of all texts of the row, by cosines divided by
    `temperature`.
    """

    temperature: float


@dataclass(frozen=True)
class NeighbourContrast(Contrast):
    """A contrast of neighbours: each segment is a sentence of a document. For each sentence, the model has to
    find the sentences before and after it in the document, among all other sentences of the row, by inner
    products divided by `temperature`.
    """

    temperature: float


class TrainingObjective(Protocol):
    """The protocol of an objective, which turns batches of packed documents into inputs and targets. An
    objective is a frozen dataclass; its fields are the keys of `objective:` in a recipe.
    """

    @property
    def kind(self) -> str:
        """The name of the objective in a recipe."""
        ...

    @property
    def frame(self) -> Frame:
        """The special tokens around every document of the stream."""
        ...

    @property
    def families(self) -> tuple[str, ...]:
        """The families of models that the objective can train."""
        ...

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Return the batch with the inputs that the model reads and the targets that it predicts. The result
        depends only on the objective, the batch and the context.
        """
        ...

    @property
    def losses(self) -> Mapping[str, float]:
        """The weights of the losses that training minimises, keyed by their names in
        `trainers.engine.losses`; `loss` comes first.
        """
        return {"loss": 1.0}

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures in `trainers.engine.losses` that are logged in addition to the losses."""
        return ()

    @property
    def contrast(self) -> Contrast | None:
        """How the vectors of segments are compared, or None if the objective does not compare vectors."""
        return None

    @property
    def needs_generator(self) -> bool:
        """Whether a generator replaces tokens and the model detects the replaced tokens
        (`Model.generator_size`).
        """
        return False

    @property
    def needs_boundary(self) -> bool:
        """Whether the tokens of a span are also predicted from the token before the span and the token after
        it (`Model.boundary_head`).
        """
        return False

    @property
    def permutes(self) -> bool:
        """Whether tokens are predicted in a random order, each from the tokens before it in this order
        (`Batch.factorization`).
        """
        return False

    @property
    def bidirectional_lm(self) -> bool:
        """Whether two language models are trained: one predicts each token from the tokens before it, the
        other from the tokens after it.
        """
        return False

    @property
    def decodes_neighbours(self) -> bool:
        """Whether two decoders predict the sentences before and after a sentence from its vector."""
        return False

    @property
    def predicts_characters(self) -> bool:
        """Whether characters are predicted one after another (`Model.character_buckets`). `apply` then needs
        the context's `spelled`.
        """
        return False

    @property
    def exported(self) -> "TrainingObjective":
        """The objective to use with an exported model: this one, or a replacement without the heads that
        exports lack.
        """
        return self

    @property
    def predicts_text(self) -> bool:
        """Whether every token of the text is a target exactly once. Only then can the loss be given in bits
        per byte.
        """
        return False

    @property
    def gives_likelihood(self) -> bool:
        """Whether the model learns the likelihood of a text given the text before it."""
        return False

    @property
    def sees_prefix(self) -> bool:
        """Whether a decoder's attention is bidirectional within a prefix."""
        return False

    @property
    def rewrites_rows(self) -> bool:
        """Whether `apply` writes the documents to new rows, with additional marks."""
        return False

    @property
    def sentence_pairs(self) -> bool:
        """Whether rows are sentence pairs: two parts of text whose relation the model classifies."""
        return False

    @property
    def exchanges(self) -> int:
        """The number of different pairings of first and second parts that packing prepares for sentence
        pairs. If 0, every first part keeps its own second part.
        """
        return 0

    @property
    def needs_sentences(self) -> bool:
        """Whether `apply` needs the batch's `sentence_starts`."""
        return False

    @property
    def least_sentences(self) -> int:
        """The minimum number of sentences that a document needs to have a target."""
        return 1

    @property
    def least_tokens(self) -> int:
        """The minimum number of tokens that a document needs to have a target."""
        return 1

    @property
    def span_types(self) -> tuple[str, ...]:
        """The types of spans that `apply` chooses from. If there are any, `apply` needs the batch's `spans`."""
        return ()

    @property
    def needs_pairs(self) -> bool:
        """Whether `apply` needs the batch's `in_target`."""
        return False

    @property
    def needs_words(self) -> bool:
        """Whether `apply` needs the context's `word_marks`."""
        return False

    @property
    def needs_texts(self) -> bool:
        """Whether `apply` needs the context's `texts`."""
        return False

    @property
    def needs_character_counts(self) -> bool:
        """Whether `apply` needs the context's `character_counts` or `spelled`. The model must then read the
        characters of tokens.
        """
        return False

    def stream_length(self, sequence_length: int, family: str) -> int:
        """Return the number of stream tokens that fit in a row of a model of this family. Objectives raise
        ConfigError if they do not suit the family or the length.
        """
        return sequence_length

    def room(self, sequence_length: int, family: str, lead: int = 0) -> Room | None:
        """Return the capacity of a row in which `lead` tokens precede every input, or None if packing need
        not reserve positions.
        """
        return None

    def members(self) -> Sequence[tuple["TrainingObjective", str | None]]:
        """Return the objectives to which rows are assigned, each with the name of the special token that
        precedes its inputs (None for no token). Only a mixture has several.
        """
        return ((self, None),)

    def text_frame(self, family: str) -> Frame:
        """Return the special tokens that surround a single text in the input of a model of this family."""
        if family == "encoder":
            return Frame(CLS, SEP)
        return Frame("<bos>", None) if family == "decoder" else Frame(None, "<eos>")

    @property
    def prompt_format(self) -> PromptFormat:
        """How to write a prompt for a model of this objective, and how to read the model's answer."""
        return PromptFormat()
