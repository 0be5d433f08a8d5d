"""The configuration of a pretraining run. Null fields that depend on the corpus are computed later
(`trainers.runs.resolve`).
"""

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from gristmill.config import ADDED
from trainers.config.architecture import ARCHITECTURES, require
from trainers.config.job import Job
from trainers.config.loss_weighting import OnlineWeighting
from trainers.objectives import Objective
from trainers.objectives.causal import Causal
from trainers.objectives.shared.training_objective import CopyContrast
from trainers.rows.sentence_pairs import PAIR_PACKINGS

_SHORTEST_PAIR = 8
_CAUSAL = Causal()


@dataclass(frozen=True)
class MixtureStage:
    """A stage of the mixture, during which `weights` (as in Data) apply. It ends when the run has read
    `until_tokens` tokens, counted from the start of the run.
    """

    until_tokens: int
    weights: str | dict[str, float]

    def check(self) -> None:
        """Validate ranges."""
        require(self.until_tokens >= 1, f"until_tokens: got {self.until_tokens}, allowed 1 or more")
        _check_weights(self.weights)


def _check_weights(weights: str | dict[str, float]) -> None:
    if isinstance(weights, dict):
        for source, weight in weights.items():
            require(0.0 <= weight < float("inf"), f"weights.{source}: got {weight}, allowed 0 or more")
        total = sum(weights.values())
        require(total > 0, "weights: all are 0; give at least one source a weight above 0")
        require(total < float("inf"), f"weights: sum to {total}, allowed up to 1e308; only their proportions count")


@dataclass(frozen=True)
class LengthPhase:
    """A phase of the run, during which rows have `sequence_length` tokens. It ends when the run has taken
    `until_step` steps, counted from the start of the run.
    """

    until_step: int
    sequence_length: int

    def check(self) -> None:
        """Validate ranges."""
        require(self.until_step >= 1, f"until_step: got {self.until_step}, allowed 1 or more")
        require(self.sequence_length >= 2, f"sequence_length: got {self.sequence_length}, allowed 2 or more")


@dataclass(frozen=True)
class Data:
    """The corpora to read, which share a tokenizer, and how their documents become rows of `sequence_length`
    tokens.

    `packing: concatenate` joins documents and cuts where a row is full. `best_fit` places documents where
    they fit best, with padding. `documents` gives each document its own row. Both cut only documents that are
    longer than a row. `full_sentences` and `doc_sentences` fill rows with whole sentences
    (`trainers.rows.sequences`). `segment_pairs` and `sentence_pairs` fill them with two pieces of text
    (`trainers.rows.sentence_pairs`). Marks that an objective adds to each document count towards
    `sequence_length`.

    `weights` are shares of the training tokens: a mapping over sources, a rule, or, if there is only one
    corpus, the name of a mixture that its manifest suggests. The rules are `proportional` (to the sources'
    tokens), `uniform`, `tokens**0.7` (proportional to a power of the tokens, with an exponent from 0 to 1),
    `temperature` (`tokens**0.3`) and `unimax` (UniMax over the tokens that the weights apply to; see
    `pipelines.contracts.mixtures`). `trainers pretrain` also takes the path of a YAML file with a mapping
    `weights`. `max_epochs`, one number or one per source, limits how often a source is read over the whole
    run. Once a source reaches its limit, the others share its weight.

    If the `shards` step splits sources into domains (docs/domains.md), each domain is read as a separate
    source, and mappings given as `weights` or `max_epochs` may name any level. A name covers all domains
    below it, except those that a longer name covers: in `{web: 0.6, "web:science": 0.3}`, `web` is the source
    `web` without its science. Its weight is shared among these domains in proportion to their tokens.

    With `subset` below 1, only that share of each source's sequences is read, always the same ones: a random
    choice, which the run's seed determines. A run shortened to the same share then repeats data as often as
    the full run on the whole corpus. `max_epochs` and the ledger count epochs of the sequences that are read.
    If a source's stream is simply cut into sequences of equal length, a shorter last sequence is left out,
    unless it is the only one.

    `phases` and `stages` apply first, in order; `sequence_length` applies after the last phase, `weights`
    after the last stage. Every phase cuts new sequences, so each source begins a new epoch in it. The tokens
    counted for `stages` and the epochs counted for `max_epochs` continue across phases.

    With `bptt`, a row is trained in consecutive windows of that many tokens, with an optimizer update for
    each window: truncated back-propagation through time. A window begins with the state at the end of the
    row's previous window (in xlnet, with a memory of that window's states in every layer), and gradients stop
    at the beginning of the window. `bptt` must divide the length of a row; steps, their learning rate and
    `batch` count whole rows. The gradient norm of a step is the largest norm of its windows. If the loss or
    gradient of a window is not finite, the step ends there, and its earlier updates remain. Only awd_lstm
    with objective causal and xlnet with objective permutation support it, both with packing concatenate. Null
    trains rows whole.

    `shard_set` selects one of the shard sets of a corpus. With `isolation`, the documents of a row do not
    attend to each other. Without it they do, and positions continue across documents.
    """

    corpora: tuple[str, ...] = ()
    shard_set: str | None = None
    sequence_length: int = 1024
    phases: tuple[LengthPhase, ...] = ()
    packing: Literal[
        "concatenate", "best_fit", "documents", "full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs"
    ] = "concatenate"
    isolation: bool = True
    weights: str | dict[str, float] = "proportional"
    stages: tuple[MixtureStage, ...] = ()
    max_epochs: float | dict[str, float] | None = None
    subset: float = field(default=1.0, metadata=ADDED)
    bptt: int | None = field(default=None, metadata=ADDED)

    def check(self) -> None:
        """Validate ranges, and check that phases and stages end in ascending order and that `bptt` divides
        every row length.
        """
        require(self.sequence_length >= 2, f"sequence_length: got {self.sequence_length}, allowed 2 or more")
        _check_weights(self.weights)
        require(0 < self.subset <= 1, f"subset: got {self.subset}, allowed above 0 and at most 1")
        steps = [phase.until_step for phase in self.phases]
        for number in range(1, len(steps)):
            require(
                steps[number] > steps[number - 1],
                f"phases[{number}].until_step: got {steps[number]}, the phase before ends at {steps[number - 1]}; "
                f"all count from the start of the run",
            )
        ends = [stage.until_tokens for stage in self.stages]
        for number in range(1, len(ends)):
            require(
                ends[number] > ends[number - 1],
                f"stages[{number}].until_tokens: got {ends[number]}, the stage before ends at {ends[number - 1]}; "
                f"all count from the start of the run",
            )
        lengths = [self.sequence_length, *(phase.sequence_length for phase in self.phases)]
        require(
            self.bptt is None or (self.bptt >= 1 and all(length % self.bptt == 0 for length in lengths)),
            f"bptt: got {self.bptt}, allowed null and divisors of the length of a row ({', '.join(map(str, lengths))})",
        )
        caps = self.max_epochs if isinstance(self.max_epochs, dict) else {"": self.max_epochs}
        for source, epochs in caps.items():
            name = f"max_epochs.{source}" if source else "max_epochs"
            require(epochs is None or epochs > 0, f"{name}: got {epochs}, allowed above 0")


@dataclass(frozen=True)
class Validation:
    """When the validation loss is measured, and on how much text. It is measured at each step that is a
    multiple of `every` and not before `from_step`, and after the last step. At least `tokens` tokens are
    taken from each source, or all that it has, spread evenly over its validation split.

    The rows are made like training rows, so `loss` and `bits_per_byte` are comparable only between runs on
    the same corpus with the same objective, packing and sequence length. Both weight the sources by
    `data.weights`, so these must be the same too. `uniform_loss` weights all sources equally.

    `document_bits_per_byte` is comparable between runs on the same corpus even if their objectives, packings
    or sequence lengths differ. It is measured on whole documents, in windows of 256 positions, or fewer if
    the model has fewer (`trainers.data.document_loss`). Only runs whose objective learns the likelihood of
    text have this metric: causal, fill_in_the_middle, prefix_lm, or a mixture with one of these. `documents:
    false` omits the metric, which saves much of the time of a validation.
    """

    every: int = 250
    tokens: int = 65536
    from_step: int = field(default=0, metadata=ADDED)
    documents: bool = field(default=True, metadata=ADDED)

    def check(self) -> None:
        """Validate ranges."""
        require(self.from_step >= 0, f"from_step: got {self.from_step}, allowed 0 or more")
        for name in ("every", "tokens"):
            require(getattr(self, name) >= 1, f"{name}: got {getattr(self, name)}, allowed 1 or more")


@dataclass(frozen=True)
class PeriodicEvaluation:
    """Settings for evaluating checkpoints with `suite`: every `every` steps, and after the last step
    (docs/evaluation.md). A checkpoint is saved at each of these steps.

    A separate process evaluates the checkpoints while training goes on, with `threads` CPU threads and low
    priority. The results are in `RUN/evaluations`, in the log and in the report. If an evaluation takes
    longer than `every` steps, some checkpoints are skipped. Before a run ends, it waits for the evaluation of
    its last checkpoint.

    `data` is the directory of the tasks' files; null means `$GRISTMILL_TASKS`. `limit` and `shots` mean the
    same as in `trainers evaluate`.
    """

    suite: str
    every: int = 1000
    data: str | None = None
    limit: int | None = None
    shots: int = 0
    threads: int = 1

    def check(self) -> None:
        """Validate ranges."""
        for name, least in (("every", 1), ("limit", 1), ("shots", 0), ("threads", 1)):
            value = getattr(self, name)
            require(value is None or value >= least, f"{name}: got {value}, allowed {least} or more")

    @property
    def settings(self) -> dict[str, int]:
        """`limit` and `shots`, by name, where they differ from the defaults of `trainers evaluate`."""
        given = {"limit": self.limit, "shots": self.shots or None}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Pretraining(Job):
    """A run that trains on the token shards of corpora with a self-supervised objective.

    With `online_weights`, the weights of domains in the training loss change from step to step. The log
    reports `loss` and the loss of each source without these weights.
    """

    kind: Literal["pretraining"] = "pretraining"
    objective: Objective = _CAUSAL
    data: Data = field(default_factory=Data)
    validation: Validation = field(default_factory=Validation)
    evaluation: PeriodicEvaluation | None = field(default=None, metadata=ADDED)
    online_weights: OnlineWeighting | None = field(default=None, metadata=ADDED)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.data.corpora

    @property
    def validation_interval(self) -> int:
        return self.validation.every

    def validates_at(self, step: int) -> bool:
        return super().validates_at(step) and step >= self.validation.from_step

    @property
    def isolates_documents(self) -> bool:
        return self.data.isolation

    @property
    def bptt(self) -> int | None:
        return self.data.bptt

    def with_inputs(self, inputs: tuple[str, ...]) -> Self:
        return replace(self, data=replace(self.data, corpora=inputs))

    def check(self) -> None:
        super().check()
        require(
            self.data.sequence_length <= self.model.positions,
            f"data.sequence_length: got {self.data.sequence_length}, the model has {self.model.positions} positions; "
            f"shorten the sequences or raise model.positions",
        )
        self._check_pairs()
        self._check_generator()
        self._check_boundary()
        self._check_order()
        self._check_directions()
        self._check_characters()
        self._check_decoders()
        self._check_contrast()
        self._check_isolation()
        self._check_bptt()
        for number, phase in enumerate(self.data.phases):
            require(
                phase.sequence_length <= self.model.positions,
                f"data.phases[{number}].sequence_length: got {phase.sequence_length}, the model has "
                f"{self.model.positions} positions; shorten the sequences or raise model.positions",
            )

    def _check_generator(self) -> None:
        size = self.model.generator_size
        require(
            self.objective.needs_generator == (size is not None),
            f"model.generator_size: got {'null' if size is None else size} with objective {self.objective.kind}; set the "
            f"generator's share of the width (1/4 to 1/2, in deberta_v2 1) with replaced_tokens, null with other objectives",
        )

    def _check_boundary(self) -> None:
        head = self.model.boundary_head
        require(
            self.objective.needs_boundary == head,
            f"model.boundary_head: got {str(head).lower()} with objective {self.objective.kind}; set true with span_boundary "
            f"and bert, false with other objectives",
        )

    def _check_order(self) -> None:
        require(
            self.objective.permutes == self.model.traits.permutes,
            f"objective: got {self.objective.kind} with model.architecture {self.model.architecture}; permutation is "
            f"trained with xlnet, and xlnet with permutation",
        )

    def _check_directions(self) -> None:
        require(
            self.objective.bidirectional_lm == self.model.traits.bidirectional_lm,
            f"objective: got {self.objective.kind} with model.architecture {self.model.architecture}; bidirectional_lm is "
            f"trained with elmo, and elmo with bidirectional_lm",
        )

    def _check_characters(self) -> None:
        require(
            self.model.traits.characters or not self.objective.needs_character_counts,
            f"model.architecture: got {self.model.architecture} with objective {self.objective.kind}, which masks the characters "
            f"of tokens; use canine, or objective masked",
        )
        buckets = self.model.character_buckets
        require(
            self.objective.predicts_characters == (buckets is not None),
            f"model.character_buckets: got {'null' if buckets is None else buckets} with objective {self.objective.kind}; set "
            f"the number of classes of characters (such as 1024) with masked_characters, null with other objectives",
        )

    def _check_decoders(self) -> None:
        decodes = self.objective.decodes_neighbours
        require(
            decodes == self.model.traits.decodes_neighbours,
            f"objective: got {self.objective.kind} with model.architecture {self.model.architecture}; skip_thought is "
            f"trained with gru, and gru with skip_thought",
        )
        require(
            self.data.isolation or not decodes,
            f"data.isolation: got false with objective {self.objective.kind}, whose sentences are read alone; set it to true",
        )

    def _check_contrast(self) -> None:
        contrast = self.objective.contrast
        if contrast is None:
            return
        kind = self.objective.kind
        require(
            self.model.dropout > 0 or not isinstance(contrast, CopyContrast),
            f"model.dropout: got {self.model.dropout} with objective {kind}, whose two copies of a sentence are then equal; set "
            f"it above 0, such as 0.1",
        )
        require(
            self.data.isolation,
            f"data.isolation: got false with objective {kind}, whose sentences must not see one another; set it to true",
        )
        alone = self.data.packing == "documents" and not self.objective.needs_sentences
        require(
            not alone,
            f"data.packing: got documents with objective {kind} and objective.unit documents, where a row has one text and no "
            f"other to compare it with; use best_fit",
        )
        require(
            not self.model.mask_decoder,
            f"model.mask_decoder: got true with objective {kind}, which predicts no masked tokens; set it to false",
        )

    def _check_isolation(self) -> None:
        require(
            self.data.isolation or not self.objective.rewrites_rows or self.model.scheme in ("rope", "t5_bias"),
            f"data.isolation: got false with objective {self.objective.kind}, whose rows may be longer than the "
            f"{self.model.positions} {self.model.scheme} positions; set it to true, or use llama or t5 as model.architecture",
        )

    def _check_bptt(self) -> None:
        if self.data.bptt is None:
            return
        windows = {
            name: its.window_objective for name, its in ARCHITECTURES.items() if its.window_objective is not None
        }
        for name, value, allowed in (
            ("model.architecture", self.model.architecture, tuple(windows)),
            ("objective", self.objective.kind, (windows.get(self.model.architecture, ""),)),
            ("data.packing", self.data.packing, ("concatenate",)),
        ):
            require(
                value in allowed,
                f"data.bptt: got {self.data.bptt} with {name} {value}; allowed with {' and '.join(allowed)}, otherwise null",
            )

    def _check_pairs(self) -> None:
        paired, packing = self.objective.sentence_pairs, self.data.packing
        require(
            paired == (packing in PAIR_PACKINGS),
            f"data.packing: got {packing} with objective {self.objective.kind}; use {' or '.join(PAIR_PACKINGS)} with "
            f"next_sentence and sentence_order, and other packings with other objectives",
        )
        require(
            paired == self.model.sentence_head,
            f"model.sentence_head: got {str(self.model.sentence_head).lower()} with objective {self.objective.kind}; sentence "
            f"pairs need it, other objectives do not train it",
        )
        require(
            not (paired and self.data.isolation),
            "data.isolation: got true, but the two parts of a sentence pair must see each other; set it to false",
        )
        lengths = [self.data.sequence_length, *(phase.sequence_length for phase in self.data.phases)]
        require(
            not paired or min(lengths) >= _SHORTEST_PAIR,
            f"data.sequence_length: got {min(lengths)}, allowed {_SHORTEST_PAIR} or more for sentence pairs",
        )
