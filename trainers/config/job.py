"""The settings that all kinds of jobs share.

A recipe overrides the defaults, and `a.b=value` on the command line overrides both.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, Self

from gristmill.config import ADDED
from trainers.config.architecture import RECURRENT_RATES, Model, require
from trainers.objectives.shared.training_objective import TrainingObjective


@dataclass(frozen=True)
class Optimizer:
    """The optimizer. `adamw` is AdamW with decoupled weight decay (Loshchilov and Hutter, 2019) for all
    parameters. `muon` is Muon (Jordan et al., 2024) for the hidden matrices, with rate `muon_learning_rate`
    and momentum `muon_momentum`, and AdamW for all other parameters. `asgd` is NT-ASGD, the averaged SGD of
    AWD-LSTM (Merity et al., 2017, section 3), for all parameters; it is only for pretraining.

    With `asgd`, averaging of the weights begins at the first validation whose loss is higher than that of an
    earlier one; the `non_monotone_interval` validations directly before it do not count. From then on, the
    average is validated, evaluated, exported and fine-tuned, while training continues from the latest,
    unaveraged weights. Weight decay is added to the gradient after clipping, as in torch.optim.SGD. The
    authors use `learning_rate` 30, `weight_decay` 1.2e-6, `gradient_clipping` 0.25, `decay_embeddings` and a
    constant schedule.

    All rates follow the schedule. Weight decay applies to matrices, never to norm gains and biases, and to
    embeddings only with `decay_embeddings`. `gradient_clipping` is the maximum global gradient norm, 0 for no
    clipping. Muon allows no clipping: its update of a matrix has norm sqrt(rank) for any gradient, and
    DeepSpeed would clip by the norm of these updates. Muon needs a C++ compiler. A step whose loss or
    gradient norm is not finite is skipped: weights and moments keep their values and training continues with
    the next batch. More than `max_skipped_in_row` skipped steps in a row stop the run.
    """

    kind: Literal["adamw", "muon", "asgd"] = "adamw"
    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.95)
    epsilon: float = 1e-8
    gradient_clipping: float = 1.0
    decay_embeddings: bool = False
    muon_learning_rate: float = 0.02
    muon_momentum: float = 0.95
    max_skipped_in_row: int = 5
    non_monotone_interval: int = field(default=5, metadata=ADDED)

    def check(self) -> None:
        """Validate ranges. Muon allows no clipping, and the weight decay of ASGD must not reverse the sign of
        weights.
        """
        require(self.learning_rate > 0, f"learning_rate: got {self.learning_rate}, allowed above 0")
        require(self.weight_decay >= 0, f"weight_decay: got {self.weight_decay}, allowed 0 or more")
        require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            f"betas: got {list(self.betas)}, allowed two numbers, each 0 or more and below 1",
        )
        require(self.epsilon > 0, f"epsilon: got {self.epsilon}, allowed above 0")
        require(
            self.gradient_clipping >= 0, f"gradient_clipping: got {self.gradient_clipping}, allowed 0 (none) or more"
        )
        require(
            self.kind != "muon" or self.gradient_clipping == 0,
            f"gradient_clipping: got {self.gradient_clipping}, allowed 0 with kind muon: DeepSpeed would clip the updates, "
            f"whose norm is the same at every step, and so shrink the learning rate",
        )
        require(self.muon_learning_rate > 0, f"muon_learning_rate: got {self.muon_learning_rate}, allowed above 0")
        require(0 <= self.muon_momentum < 1, f"muon_momentum: got {self.muon_momentum}, allowed 0 or more and below 1")
        require(
            self.kind != "asgd" or self.learning_rate * self.weight_decay < 1,
            f"weight_decay: got {self.weight_decay}, allowed below 1 / learning_rate ({1 / self.learning_rate:g}) with kind "
            f"asgd, which subtracts their product times the weights at every step; the paper of AWD-LSTM has 1.2e-6",
        )
        require(
            self.non_monotone_interval >= 1,
            f"non_monotone_interval: got {self.non_monotone_interval}, allowed 1 or more",
        )
        require(
            self.max_skipped_in_row >= 0,
            f"max_skipped_in_row: got {self.max_skipped_in_row}, allowed 0 (stop at the first) or more",
        )


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the run: a linear warm-up to the peak, then a curve of the given `kind`.
    `linear`, `cosine` and `wsd` decay to `final_fraction` of the peak.

    `wsd` (warm-up, stable, decay; Hu et al., 2024) decays linearly over the last `decay_fraction` of the
    steps after the warm-up. `inverse_sqrt` (Vaswani et al., 2017) decays with the inverse square root of the
    step, but not below `final_fraction` of the peak. The formulas are in `trainers.engine.schedule`. With
    `warmup_fraction`, `warmup_steps` is computed as that share of the steps.
    """

    kind: Literal["constant", "linear", "cosine", "wsd", "inverse_sqrt"] = "cosine"
    warmup_steps: int = 0
    final_fraction: float = 0.1
    decay_fraction: float = 0.2
    warmup_fraction: float | None = None

    def check(self) -> None:
        """Validate ranges."""
        require(
            self.warmup_fraction is None or 0 <= self.warmup_fraction < 1,
            f"warmup_fraction: got {self.warmup_fraction}, allowed 0 to below 1, or null",
        )
        require(self.warmup_steps >= 0, f"warmup_steps: got {self.warmup_steps}, allowed 0 or more")
        require(0 <= self.final_fraction <= 1, f"final_fraction: got {self.final_fraction}, allowed 0 to 1")
        require(
            0 < self.decay_fraction <= 1, f"decay_fraction: got {self.decay_fraction}, allowed above 0 and at most 1"
        )


@dataclass(frozen=True)
class BatchSize:
    """The size of the batch of one optimizer step, over all workers. Give `sequences` or, in pretraining,
    `tokens`; the other is computed.

    All steps have the same number of sequences. `tokens` is normally the number of sequences times their
    length. Where packing leaves padding, or the objective adds marks to each document, it is the average
    number of tokens without padding, at the final sequence length and mixture weights. In fine-tuning, a
    sequence is an input, and `tokens` is the average over the run.
    """

    tokens: int | None = None
    sequences: int | None = None

    def check(self) -> None:
        """Check that `tokens` or `sequences` is given, and that neither is below 1."""
        require(self.tokens is not None or self.sequences is not None, "tokens: give batch.tokens or batch.sequences")
        for name in ("tokens", "sequences"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}: got {value}, allowed 1 or more")


@dataclass(frozen=True)
class TrainingBudget:
    """How long to train. Give `steps`, or `tokens` in pretraining, or `epochs` in fine-tuning; the missing
    number of steps or tokens is computed. Tokens are rounded down to whole steps, epochs up. Tokens are
    counted as in the ledger: marks around documents count, padding does not.
    """

    tokens: int | None = None
    steps: int | None = None
    epochs: float | None = None

    def check(self) -> None:
        """Check that at least one field is given, and validate ranges."""
        given = [value for value in (self.tokens, self.steps, self.epochs) if value is not None]
        require(bool(given), "steps: give budget.steps or budget.tokens")
        for name in ("tokens", "steps"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}: got {value}, allowed 1 or more")
        require(self.epochs is None or self.epochs > 0, f"epochs: got {self.epochs}, allowed above 0")


@dataclass(frozen=True)
class Checkpoints:
    """When checkpoints are written, and which are kept.

    A checkpoint is written every `every` steps, at every step that is evaluated (`evaluation`), and when the
    run ends or is stopped. In fine-tuning, one is also written after every validation that is the best so
    far.

    The newest `keep` checkpoints are kept and, unless `keep_every` is 0, those at multiples of `keep_every`
    steps. A fine-tuning run also keeps its best checkpoint, which does not count towards `keep`, and the
    checkpoint that was the best when each of the others was written.
    """

    every: int = 250
    keep: int = 2
    keep_every: int = 0

    def check(self) -> None:
        """Validate ranges, and check that `keep_every` is a multiple of `every`."""
        require(self.every >= 1, f"every: got {self.every}, allowed 1 or more")
        require(self.keep >= 1, f"keep: got {self.keep}, allowed 1 or more")
        require(
            self.keep_every >= 0 and self.keep_every % self.every == 0,
            f"keep_every: got {self.keep_every}, allowed 0 (none) and multiples of checkpoints.every ({self.every})",
        )


@dataclass(frozen=True)
class Init:
    """The weights from which a new run starts, instead of random weights. `path` names the parent: a run, an
    export, or a Hugging Face directory (config.json, safetensors, tokenizer.json) of one of the
    architectures. Its tokenizer must be the corpus's, unless `vocabulary` is `transfer`.

    With `vocabulary: transfer`, the run uses the tokenizer of its corpus, even if the parent has a different
    one. In the embeddings and the output layer, a token that the parent also has keeps its row. The initial
    row of a new token is the mean of the rows of its parts, the tokens into which the parent's tokenizer
    splits it (fast vocabulary transfer; Gee et al., 2022). Both tokenizers must be byte-level BPE and keep
    every byte.

    If the parent is a run, `step` selects the checkpoint; null means the best of a fine-tuning run, otherwise
    the newest. `optimizer: keep` also loads the optimizer state of the checkpoint. With `data: continue`,
    steps, schedule and data continue from the checkpoint: the step count goes on from the parent's, and the
    run reads the samples that the parent would have read next. With `data: restart`, the run begins at step 0
    of its own schedule and reads the corpus from the start, in the order of its own seed.

    In fine-tuning, only `path` and `step` can be set: a task is encoded with the tokenizer of its base and
    has its own optimizer state and data.
    """

    path: str
    step: int | None = None
    optimizer: Literal["reset", "keep"] = "reset"
    data: Literal["restart", "continue"] = "restart"
    vocabulary: Literal["same", "transfer"] = field(default="same", metadata=ADDED)

    def check(self) -> None:
        """Validate `step`. `vocabulary: transfer` requires `optimizer: reset` and `data: restart`."""
        require(
            self.step is None or self.step >= 1, f"step: got {self.step}, allowed 1 or more, or null for the newest"
        )
        require(
            self.vocabulary == "same" or (self.optimizer, self.data) == ("reset", "restart"),
            "vocabulary: got transfer, so the parent's optimizer state and samples do not fit; set optimizer to reset and "
            "data to restart",
        )


@dataclass(frozen=True)
class Execution:
    """How a run is executed. Apart from rounding and the random draws of dropout, these settings do not
    change what is computed, so they are not part of a run's identity.

    - `micro_batch`: the number of sequences per worker and backward pass; `auto` takes all of a worker's
      share of the batch in one pass, or in as few passes as its memory allows
    - `threads`: the number of CPU threads per worker; `auto` divides the cores of a machine among its
      workers, or takes `OMP_NUM_THREADS` if that is set
    - `zero_stage`: DeepSpeed's ZeRO stage for several workers; a single worker uses DeepSpeed only for
      offload or Muon
    - `offload_optimizer`: keep the fp32 weights and the optimizer state in CPU memory, where the CPU
      updates them
    - `activation_checkpointing`: recompute every block in the backward pass, which saves memory and makes
      a step a third slower
    - `compile`: run torch.compile on the blocks, which needs a C++ compiler
    - `loader_threads`: the number of threads that prepare the batches of the next steps in the background;
      with 0, each batch is prepared when it is needed
    - `peak_tflops`: the peak throughput of one worker's device, from which the log computes the model FLOPs
      utilisation; null looks it up in a table of common GPUs
    """

    zero_stage: Literal[0, 1, 2, 3] = 2
    micro_batch: int | Literal["auto"] = "auto"
    threads: int | Literal["auto"] = "auto"
    offload_optimizer: bool = False
    activation_checkpointing: bool = False
    compile: bool = False
    loader_threads: int = 1
    peak_tflops: float | None = None

    def check(self) -> None:
        """Validate ranges, and check that the options work at this ZeRO stage."""
        require(
            self.peak_tflops is None or self.peak_tflops > 0,
            f"peak_tflops: got {self.peak_tflops}, allowed above 0, or null to look it up",
        )
        for name in ("micro_batch", "threads"):
            value = getattr(self, name)
            require(value == "auto" or value >= 1, f"{name}: got {value}, allowed 1 or more, or auto")
        require(self.loader_threads >= 0, f"loader_threads: got {self.loader_threads}, allowed 0 (none) or more")
        require(
            not self.offload_optimizer or self.zero_stage >= 1,
            "offload_optimizer: got true, but without ZeRO there is nothing to offload; set zero_stage to 1 or more",
        )
        require(
            not self.compile or self.zero_stage <= 2,
            "compile: got true, but ZeRO 3 interrupts every layer to gather its weights, which leaves nothing to compile; "
            "set zero_stage to 2 or less",
        )

    def rows(self, auto: int) -> int:
        """Return the number of sequences per pass in a command that does not train: `micro_batch`, or the
        argument `auto` if `micro_batch` is `auto`.
        """
        return auto if self.micro_batch == "auto" else self.micro_batch


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """A run that trains a model: the fields that all kinds share. `kind` selects the kind
    (`trainers.config.job_kinds`).

    `seed` determines the initial weights, the order of the data and dropout. With `precision: bf16`,
    computation is in bfloat16; gradients are summed over micro-batches and workers in fp32, and weights and
    optimizer state are kept in fp32. With bf16, ZeRO stage 1 runs as stage 2. `sinks` also receive the
    metrics of `log.jsonl`: TensorBoard's files are in the run's directory, and the environment variables of
    W&B and MLflow say where their metrics are stored (`trainers.runs.sinks`).
    """

    kind: str
    name: str
    model: Model
    batch: BatchSize
    budget: TrainingBudget
    seed: int = 0
    init: Init | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    log_every: int = 10
    sinks: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    execution: Execution = field(default_factory=Execution)

    def check(self) -> None:
        """Validate ranges, and check the rules that span several sections."""
        require(self.log_every >= 1, f"log_every: got {self.log_every}, allowed 1 or more")
        require(len(set(self.sinks)) == len(self.sinks), f"sinks: got {list(self.sinks)}, each allowed only once")
        require(
            self.precision == "fp32" or self.execution.zero_stage >= 1,
            "precision: bf16 keeps its fp32 weights in ZeRO's optimizer; set execution.zero_stage to 1 or more",
        )

    @property
    @abstractmethod
    def objective(self) -> TrainingObjective:
        """The objective that turns batches into inputs and targets."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The paths or URLs of the data that the job names."""

    @property
    @abstractmethod
    def validation_interval(self) -> int:
        """The number of steps from one validation to the next."""

    def validates_at(self, step: int) -> bool:
        """Return whether a regular validation is due after `step` steps. A run is also validated after its
        last step.
        """
        return step % self.validation_interval == 0

    @property
    def drops(self) -> bool:
        """Whether the settings include dropout. If so, losses depend on how batches are divided among
        workers.
        """
        return any(getattr(self.model, name) > 0 for name in ("dropout", *RECURRENT_RATES))

    @property
    def isolates_documents(self) -> bool:
        """Whether tokens attend only to tokens of their own document when a row contains several."""
        return True

    @property
    def bptt(self) -> int | None:
        """The number of tokens in each window, if the rows of a batch are trained window by window with an
        optimizer update after each; otherwise None.
        """
        return None

    @abstractmethod
    def with_inputs(self, inputs: tuple[str, ...]) -> Self:
        """Return a copy of the job with `inputs` in place of its own."""
