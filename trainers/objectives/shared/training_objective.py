"""The protocol of objectives, which is all that the rest of `trainers` knows about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.prompt_format import PromptFormat
from trainers.rows.batch import Batch, Frame, Room


@dataclass(frozen=True)
class Contrast:
    """How the vectors of the segments of a row are compared with one another. A vector is the state of the `first` token of a
    segment, or the `mean` of those between its marks.
    """

    pooling: Literal["first", "mean"]


@dataclass(frozen=True)
class CopyContrast(Contrast):
    """Segments 2i and 2i + 1 are two copies of one text. The copy of a text is found among those of all texts of the row, by
    cosines that are divided by `temperature`.
    """

    temperature: float


@dataclass(frozen=True)
class NeighbourContrast(Contrast):
    """Segments are the sentences of documents. The neighbours of a sentence in its document are found among all other sentences
    of the row, by inner products that are divided by `temperature`.
    """

    temperature: float


class TrainingObjective(Protocol):
    """An objective, which turns batches of packed documents into inputs and targets.

    An objective is a frozen dataclass; its fields are the keys of `objective:` in a recipe. It inherits the
    defaults given here and overrides those that differ.
    """

    @property
    def kind(self) -> str:
        """The name of the objective in a recipe."""
        ...

    @property
    def frame(self) -> Frame:
        """The specials around every document of the stream."""
        ...

    @property
    def families(self) -> tuple[str, ...]:
        """The families of models that it can train."""
        ...

    def apply(self, batch: Batch, context: Context) -> Batch:
        """Make the inputs and targets of a model; a pure function of batch and context."""
        ...

    @property
    def losses(self) -> Mapping[str, float]:
        """Weight of each loss that training minimises, by its name in `trainers.engine.losses`; `loss` comes
        first.
        """
        return {"loss": 1.0}

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of measures in `trainers.engine.losses` that are logged beside the losses."""
        return ()

    @property
    def contrast(self) -> Contrast | None:
        """How the vectors of segments are compared; `loss` is then one of `trainers.engine.vectors.contrastive_losses`. None for
        objectives that predict tokens.
        """
        return None

    @property
    def needs_generator(self) -> bool:
        """Whether a generator replaces tokens, which the model tells from those of the text (`Model.generator_size`)."""
        return False

    @property
    def needs_boundary(self) -> bool:
        """Whether tokens are predicted from the two outside of their span (`Model.boundary_head`)."""
        return False

    @property
    def permutes(self) -> bool:
        """Whether tokens are predicted in a random order, from those before them (`Batch.factorization`)."""
        return False

    @property
    def bidirectional_lm(self) -> bool:
        """Whether a forward and a backward language model are trained, whose states know one side of a token each."""
        return False

    @property
    def decodes_neighbours(self) -> bool:
        """Whether the sentences before and after a sentence are written from its vector."""
        return False

    @property
    def predicts_characters(self) -> bool:
        """Whether characters are predicted, one after another (`Model.character_buckets`). `apply` then needs the context's
        `spelled`.
        """
        return False

    @property
    def exported(self) -> "TrainingObjective":
        """The objective of an exported model, which may lack heads that only pretraining uses."""
        return self

    @property
    def predicts_text(self) -> bool:
        """Whether every token of the text is a target exactly once; only then can the loss be given in bits
        per byte.
        """
        return False

    @property
    def gives_likelihood(self) -> bool:
        """Whether a model learns the likelihood of a text given the text before it."""
        return False

    @property
    def sees_prefix(self) -> bool:
        """Whether, in a decoder, the positions of a prefix see one another in both directions."""
        return False

    @property
    def rewrites_rows(self) -> bool:
        """Whether the objective writes new rows, an input and a target per document, instead of keeping those
        of the stream.
        """
        return False

    @property
    def sentence_pairs(self) -> bool:
        """Whether rows are pairs of sentences that the model classifies."""
        return False

    @property
    def exchanges(self) -> int:
        """The number of exchanges of the second parts of sentence pairs to prepare; 0 for none."""
        return 0

    @property
    def needs_sentences(self) -> bool:
        """Whether `apply` needs the batch's `sentence_starts`."""
        return False

    @property
    def least_sentences(self) -> int:
        """The number of sentences that a document must have to give a target."""
        return 1

    @property
    def least_tokens(self) -> int:
        """The number of tokens that a document must have to give a target."""
        return 1

    @property
    def span_types(self) -> tuple[str, ...]:
        """The types of spans that `apply` chooses from; it needs the batch's `spans` if there are any."""
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
        """Whether `apply` needs the context's `character_counts`, and the model reads the characters of tokens."""
        return False

    def stream_length(self, sequence_length: int, family: str) -> int:
        """Return the number of tokens of the stream that a row takes in a model of the family."""
        return sequence_length

    def room(self, sequence_length: int, family: str, lead: int = 0) -> Room | None:
        """Return the room of a row, with `lead` tokens before every input; None if the rows of the stream are
        kept.
        """
        return None

    def members(self) -> Sequence[tuple["TrainingObjective", str | None]]:
        """Return the objectives that rows are assigned to, each with the special that precedes its inputs, or
        None. Only a mixture has several.
        """
        return ((self, None),)

    def text_frame(self, family: str) -> Frame:
        """Return the specials around a single text, as a model of the family reads it."""
        if family == "encoder":
            return Frame(CLS, SEP)
        return Frame("<bos>", None) if family == "decoder" else Frame(None, "<eos>")

    @property
    def prompt_format(self) -> PromptFormat:
        """The format of prompts: how to write one, and how to read the model's answer."""
        return PromptFormat()
