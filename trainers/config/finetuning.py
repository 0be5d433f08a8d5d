"""The configuration of a fine-tuning run. Null fields that depend on the tasks and the base are computed
later (`trainers.runs.resolve_finetuning`).
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self, get_args

from trainers.adapters import Method
from trainers.adapters.weights.feature_extraction import FeatureExtraction
from trainers.adapters.weights.full import Full
from trainers.config.architecture import require
from trainers.config.job import Job
from trainers.objectives.shared.context import Context
from trainers.objectives.shared.training_objective import TrainingObjective
from trainers.rows.batch import Batch, Frame
from trainers.tasks.schema.task import Task, TaskKind

Pooling = Literal["first", "last", "mean", "max", "last_max_mean"]


@dataclass(frozen=True)
class HeadSettings:
    """The pooling and the dropout of a task's head.

    `pooling` chooses the state that represents a text: the state of its first or last token, the mean or the
    maximum over its tokens, or the last, maximum and mean concatenated (ULMFiT; Howard and Ruder, 2018,
    section 3.3). Null means `mean` for recurrent encoders, `first` for other encoders, and `last` for all
    other models. `first` and `last` are allowed only where they are the default.

    `dropout` is applied before the output layer of the head and, in some architectures, also before its dense
    layer. Null means the model's rate, or 0 if the head in `transformers` has no dropout.

    Which layers the head reads is set by `method.layers`, in methods that have it.
    """

    pooling: Pooling | None = None
    dropout: float | None = None

    def check(self) -> None:
        """Validate ranges."""
        require(self.dropout is None or 0 <= self.dropout < 1, f"dropout: got {self.dropout}, allowed 0 to below 1")


@dataclass(frozen=True)
class Encoding:
    """How texts become rows of tokens, and whether the model answers in text.

    An input has at most `max_length` tokens, special and virtual tokens included. In multiple choice, the
    limit applies to the input together with one candidate; in an encoder-decoder, to each side; in text to
    text with a decoder, to source and target together. Null means the model's number of positions, which
    `max_length` may exceed only in T5.

    In text to text, sources and targets that are too long are truncated. In other tasks, a long passage (span
    tasks) or a long sentence (tagging tasks) is cut into windows. Neighbouring windows share `stride` tokens,
    but no more than half a window. Other long texts are truncated, the longer one of a pair first. With
    `packed`, a row holds several inputs that do not attend to each other, which saves padding and leaves the
    loss the same.

    With `text_to_text`, the model solves any task by writing the answer, as the task's templates define it.
    An answer ends after `answer_tokens` tokens at the latest; null means the longest target of the training
    split.
    """

    max_length: int | None = None
    stride: int = 128
    packed: bool = True
    text_to_text: bool = False
    answer_tokens: int | None = None

    def check(self) -> None:
        """Validate ranges."""
        require(
            self.max_length is None or self.max_length >= 8, f"max_length: got {self.max_length}, allowed 8 or more"
        )
        require(self.stride >= 1, f"stride: got {self.stride}, allowed 1 or more")
        require(
            self.answer_tokens is None or self.answer_tokens >= 1,
            f"answer_tokens: got {self.answer_tokens}, allowed 1 or more, or null",
        )


@dataclass(frozen=True)
class Mixing:
    """How often each of several tasks is sampled (Raffel et al., 2020, section 3.5.2).

    With `kind: proportional`, a task's rate is proportional to its number of inputs, counted up to `limit`.
    An example is one input, except that a long text of a span or tagging task is cut into several. With
    `kind: temperature`, the number, also counted up to `limit`, is raised to the power 1 / `temperature`.
    With `kind: equal`, all tasks have the same rate.
    """

    kind: Literal["proportional", "temperature", "equal"] = "proportional"
    temperature: float = 2.0
    limit: int = 1 << 21

    def check(self) -> None:
        """Validate ranges."""
        require(self.temperature > 0, f"temperature: got {self.temperature}, allowed above 0")
        require(self.limit >= 1, f"limit: got {self.limit}, allowed 1 or more")


@dataclass(frozen=True)
class TaskValidation:
    """When the dev split is scored and when the run stops early. The split is scored after the last step and
    every `every` steps; null means at the end of every epoch.

    The checkpoint with the best value of the task's first metric, or with the lowest loss if the model
    answers in text, is kept, exported and used for predictions. The run stops early after `patience`
    consecutive validations without a better value; null disables early stopping.
    """

    every: int | None = None
    patience: int | None = None

    def check(self) -> None:
        """Validate ranges."""
        for name in ("every", "patience"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}: got {value}, allowed 1 or more, or null")


@dataclass(frozen=True)
class TaskObjective(TrainingObjective):
    """The placeholder objective of a fine-tuning run, whose inputs and targets come from its tasks."""

    kind: str = "task"

    frame: ClassVar[Frame] = Frame()
    families: ClassVar[tuple[str, ...]] = ("decoder", "encoder", "encoder_decoder")

    def apply(self, batch: Batch, context: Context) -> Batch:
        return batch


@dataclass(frozen=True, kw_only=True)
class Finetuning(Job):
    """A run that fine-tunes a base on tasks with `method`, such as full fine-tuning or LoRA.

    `init.path` is the base: a run, an export or a Hugging Face directory; `model` is taken from it. Without
    `init`, the weights are random (a control without pretraining) and `tokenizer` names the tokenizer.json to
    use. `files` is the directory with the tasks' files; null means the directory that $GRISTMILL_TASKS names.
    Several tasks need `encoding.text_to_text`, unless all are of kind generate.

    `label_smoothing` (Szegedy et al., 2016, section 7) spreads that share of the target probability evenly
    over all classes. With `class_weights: balanced`, each class is weighted in proportion to the inverse of
    its share of the training examples; a mapping gives the weight of every class. Both apply only to a
    classifier: a task of kind classify without `text_to_text`. The learning rate of a layer at distance d
    from the head is multiplied by `layer_decay`^d and, with `unfreeze_every`, is 0 before step d x
    `unfreeze_every` (Howard and Ruder, 2018, sections 3.2 and 3.3).

    At the end, the best checkpoint predicts all splits that have files, except `train`. With `final_splits:
    dev` it predicts only the split that the run validates on; the runs of a sweep use this.
    """

    kind: Literal["finetuning"] = "finetuning"
    tasks: tuple[Task, ...]
    files: str | None = None
    tokenizer: str | None = None
    method: Method = field(default_factory=Full)
    head: HeadSettings = field(default_factory=HeadSettings)
    encoding: Encoding = field(default_factory=Encoding)
    mixing: Mixing = field(default_factory=Mixing)
    validation: TaskValidation = field(default_factory=TaskValidation)
    label_smoothing: float = 0.0
    class_weights: Literal["balanced"] | dict[str, float] | None = None
    layer_decay: float = 1.0
    unfreeze_every: int | None = None
    final_splits: Literal["all", "dev"] = "all"

    @property
    def objective(self) -> TrainingObjective:
        return TaskObjective()

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.files,) if self.files else ()

    @property
    def drops(self) -> bool:
        return super().drops or max(self.head.dropout or 0.0, getattr(self.method, "dropout", 0.0)) > 0

    @property
    def validation_interval(self) -> int:
        assert self.validation.every is not None
        return self.validation.every

    @property
    def layers(self) -> Literal["last", "last_four", "scalar_mix"]:
        """The layers whose states the head reads."""
        return self.method.layers if isinstance(self.method, FeatureExtraction) else "last"

    @property
    def writes_text(self) -> bool:
        """Whether the model writes its answers instead of predicting them with a head."""
        return self.encoding.text_to_text or self.tasks[0].kind == "generate"

    @property
    def head_kind(self) -> Literal["classify", "regress", "tag", "span", "choose"] | None:
        """The kind of the head that is trained, or None if the model writes its answers."""
        kind = self.tasks[0].kind
        assert kind != "minimal_pairs"
        assert kind != "facts"
        assert kind != "text"
        return None if self.writes_text or kind == "generate" else kind

    def with_inputs(self, inputs: tuple[str, ...]) -> Self:
        return replace(self, files=inputs[0] if inputs else None)

    def check(self) -> None:
        super().check()
        require(
            self.init is None or (self.init.optimizer, self.init.data) == ("reset", "restart"),
            "init: a task begins with an optimizer and data of its own; leave out init.optimizer and init.data",
        )
        require(
            self.init is None or self.init.vocabulary == "same",
            "init.vocabulary: got transfer, but a task is encoded with the tokenizer of its base; leave it out",
        )
        require(len(self.tasks) >= 1, "tasks: names no task; give at least one")
        names = [task.name for task in self.tasks]
        for task in self.tasks:
            trainable = task.kind in get_args(TaskKind)
            require(trainable, f"tasks: {task.name} is of kind {task.kind}, which only `trainers evaluate` takes")
        require(len(set(names)) == len(names), f"tasks: got {', '.join(names)}, each allowed only once")
        require(
            len(self.tasks) == 1 or all(self.encoding.text_to_text or task.kind == "generate" for task in self.tasks),
            f"tasks: got {', '.join(names)}, which one model solves together only as text; set encoding.text_to_text=true",
        )
        require(0 <= self.label_smoothing < 1, f"label_smoothing: got {self.label_smoothing}, allowed 0 to below 1")
        require(
            self.label_smoothing == 0 or self.head_kind == "classify",
            f"label_smoothing: got {self.label_smoothing}, allowed above 0 only for a task of kind classify without "
            f"encoding.text_to_text; leave it out",
        )
        wanted = f"tasks: {names[0]} is of kind generate"
        if self.encoding.text_to_text:
            wanted = "encoding.text_to_text: got true"
        require(
            not self.writes_text or self.model.family != "encoder",
            f"{wanted}, {self.model.architecture} is an encoder and writes no text; use a decoder or an encoder-decoder",
        )
        require(
            self.model.generator_size is None,
            f"model.generator_size: got {self.model.generator_size}, a task trains the discriminator alone; leave it out",
        )
        require(
            not self.model.boundary_head,
            "model.boundary_head: got true, a task does not train the head of span boundaries; leave it out",
        )
        require(
            not self.model.mask_decoder,
            "model.mask_decoder: got true, a task does not use the enhanced mask decoder; leave it out",
        )
        require(
            self.model.character_buckets is None,
            f"model.character_buckets: got {self.model.character_buckets}, a task does not train the decoder of characters; "
            f"leave it out",
        )
        require(0 < self.layer_decay <= 1, f"layer_decay: got {self.layer_decay}, allowed above 0 and at most 1")
        require(
            self.unfreeze_every is None or self.unfreeze_every >= 1,
            f"unfreeze_every: got {self.unfreeze_every}, allowed 1 or more, or null",
        )
        require(
            self.optimizer.kind != "asgd",
            "optimizer.kind: got asgd, whose averaging begins by the losses of pretraining; allowed adamw, muon",
        )
        require(
            self.optimizer.kind == "adamw" or (self.layer_decay == 1 and self.unfreeze_every is None),
            "optimizer.kind: got muon, whose updates have one size; layer_decay and unfreeze_every need adamw",
        )
        self._check_head()

    def _check_head(self) -> None:
        kind, pooling = self.tasks[0].kind, self.head.pooling
        require(
            pooling is None or kind not in ("tag", "span"),
            f"head.pooling: got {pooling}, a task of kind {kind} predicts at every position; leave it out",
        )
        architecture, family = self.model.architecture, self.model.family
        require(
            pooling not in ("first", "last") or family != "encoder" or not self.model.traits.recurrent,
            f"head.pooling: got {pooling}, {architecture} pools the states of all tokens; allowed mean, max, last_max_mean",
        )
        other, usual = ("last", "first") if family == "encoder" else ("first", "last")
        require(
            pooling != other,
            f"head.pooling: got {other}, {architecture} reads the {usual} token; allowed {usual}, mean, max, last_max_mean",
        )
        depth = self.model.decoder_layers or self.model.layers
        require(
            self.layers != "last_four" or depth >= 4,
            f"method.layers: got last_four, the model has {depth} layers; use scalar_mix or last",
        )
