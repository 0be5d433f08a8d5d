"""The settings that every run has: model, batch, budget, optimizer, schedule, checkpoints, execution.

Defaults < recipe < `a.b=value`. `resolved.yaml` holds every field.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal, Self

from trainers.config.architecture import Model, require
from trainers.objectives.shared.training_objective import TrainingObjective


@dataclass(frozen=True)
class Optimizer:
    """AdamW (Loshchilov and Hutter, 2019), weight decay decoupled and in groups; or Muon (Jordan et al., 2024) for the
    hidden matrices, with rate `muon_learning_rate` and momentum `muon_momentum`, and AdamW for all else.

    Both rates follow the schedule. DeepSpeed's Muon makes an update of norm sqrt(rank) of every matrix, whatever its
    gradient, and takes the gradient norm after that: it allows no clipping. It needs a C++ compiler.
    Norm gains and biases are never decayed; embeddings only with `decay_embeddings`. `gradient_clipping` is the largest
    global gradient norm, 0 for none. A step whose loss or gradient norm is not finite is skipped: weights and moments
    stay as they were and the data goes on; more than `max_skipped_in_row` of them in a row stop the run.
    """

    kind: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 6e-4
    weight_decay: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.95)
    epsilon: float = 1e-8
    gradient_clipping: float = 1.0
    decay_embeddings: bool = False
    muon_learning_rate: float = 0.02
    muon_momentum: float = 0.95
    max_skipped_in_row: int = 5

    def check(self) -> None:
        """Rates are in range."""
        require(self.learning_rate > 0, f"learning_rate: got {self.learning_rate}, allowed above 0")
        require(self.weight_decay >= 0, f"weight_decay: got {self.weight_decay}, allowed 0 and more")
        require(
            len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas),
            f"betas: got {list(self.betas)}, allowed two numbers from 0 to below 1",
        )
        require(
            self.gradient_clipping >= 0, f"gradient_clipping: got {self.gradient_clipping}, allowed 0 (none) and more"
        )
        require(
            self.kind == "adamw" or self.gradient_clipping == 0,
            f"gradient_clipping: got {self.gradient_clipping}, allowed 0 with kind muon: DeepSpeed would clip the updates, "
            f"whose norm is the same at every step, and so shrink the learning rate",
        )
        require(self.muon_learning_rate > 0, f"muon_learning_rate: got {self.muon_learning_rate}, allowed above 0")
        require(0 <= self.muon_momentum < 1, f"muon_momentum: got {self.muon_momentum}, allowed 0 to below 1")
        require(
            self.max_skipped_in_row >= 0,
            f"max_skipped_in_row: got {self.max_skipped_in_row}, allowed 0 (stop at the first) and more",
        )


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the run: linear warm-up, then `kind` down to `final_fraction` of the peak.

    `wsd` (warm-up, stable, decay; Hu et al., 2024) falls linearly over the last `decay_fraction` of the steps.
    `inverse_sqrt` (Vaswani et al., 2017) falls with the root of the step and stops at `final_fraction`. The formulas are
    in `trainers.engine.schedule`.
    """

    kind: Literal["constant", "linear", "cosine", "wsd", "inverse_sqrt"] = "cosine"
    warmup_steps: int = 0
    final_fraction: float = 0.1
    decay_fraction: float = 0.2

    def check(self) -> None:
        """Fractions are fractions."""
        require(self.warmup_steps >= 0, f"warmup_steps: got {self.warmup_steps}, allowed 0 and more")
        require(0 <= self.final_fraction <= 1, f"final_fraction: got {self.final_fraction}, allowed 0 to 1")
        require(0 < self.decay_fraction <= 1, f"decay_fraction: got {self.decay_fraction}, allowed above 0 to 1")


@dataclass(frozen=True)
class BatchSize:
    """One optimizer step's data over all workers: `tokens` or `sequences`; the other one is computed.

    All steps have as many sequences. Where a packing leaves padding, or an objective adds marks to each document, `tokens`
    is what these hold on average, without padding, at the final sequence length and weights; otherwise sequences times
    their length.
    """

    tokens: int | None = None
    sequences: int | None = None

    def check(self) -> None:
        """One of the two is given."""
        require(self.tokens is not None or self.sequences is not None, "tokens: give batch.tokens or batch.sequences")
        for name in ("tokens", "sequences"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}: got {value}, allowed 1 and more")


@dataclass(frozen=True)
class TrainingBudget:
    """How long to train: `steps` or `tokens`; the other one is computed, rounding steps down. Tokens are those read, as the
    ledger counts them: marks around documents are, padding is not.
    """

    tokens: int | None = None
    steps: int | None = None

    def check(self) -> None:
        """One of the two is given."""
        require(self.tokens is not None or self.steps is not None, "steps: give budget.steps or budget.tokens")
        for name in ("tokens", "steps"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"{name}: got {value}, allowed 1 and more")


@dataclass(frozen=True)
class Checkpoints:
    """A checkpoint every `every` steps and at the end; the newest `keep` are kept, and for good those of the steps that
    `keep_every` divides (0 for none).
    """

    every: int = 250
    keep: int = 2
    keep_every: int = 0

    def check(self) -> None:
        """Both are positive: one older checkpoint is what a corrupt newest one falls back to."""
        require(self.every >= 1, f"every: got {self.every}, allowed 1 and more")
        require(self.keep >= 1, f"keep: got {self.keep}, allowed 1 and more")
        require(
            self.keep_every >= 0 and self.keep_every % self.every == 0,
            f"keep_every: got {self.keep_every}, allowed 0 (none) and multiples of checkpoints.every ({self.every})",
        )


@dataclass(frozen=True)
class Init:
    """A new run begins from the weights at `path`, not from those that its seed draws: of a run, of an export, or of a Hugging
    Face directory (config.json, safetensors, tokenizer.json) of one of the architectures. The tokenizer must be the corpus's.

    Of a run it is the checkpoint of `step`, the newest where that is null. With `optimizer: keep` its optimizer state is taken
    as well. With `data: continue` steps, schedule and data go on from there: steps count from the beginning of the parent,
    and the samples are those that the parent would have read next. With `restart` the run begins at step 0 of its own
    schedule, and reads the corpus from the start in the order of its own seed.
    """

    path: str
    step: int | None = None
    optimizer: Literal["reset", "keep"] = "reset"
    data: Literal["restart", "continue"] = "restart"

    def check(self) -> None:
        """The step is positive."""
        require(
            self.step is None or self.step >= 1, f"step: got {self.step}, allowed 1 and more, or null for the newest"
        )


@dataclass(frozen=True)
class Execution:
    """How the same numbers are computed: none of this is part of a run's identity.

    `micro_batch` is the sequences per worker and backward pass; `zero_stage` DeepSpeed's ZeRO stage. With
    `offload_optimizer` fp32 weights and optimizer state stay in the memory of the CPU, which updates them. With
    `activation_checkpointing` the backward pass computes every block again, which saves memory and costs a third more
    time; `compile` has torch.compile work on the blocks, which needs a C++ compiler. `loader_threads` prepare the next
    steps' batches while a step is computed; 0 prepares each when it is needed. `peak_tflops` is what one worker's device
    can compute at most, for the model FLOPs utilisation in the log; known for some GPUs.
    """

    zero_stage: Literal[0, 1, 2, 3] = 2
    micro_batch: int = 8
    offload_optimizer: bool = False
    activation_checkpointing: bool = False
    compile: bool = False
    loader_threads: int = 1
    peak_tflops: float | None = None

    def check(self) -> None:
        """Numbers are in range; what is asked for works at the ZeRO stage."""
        require(
            self.peak_tflops is None or self.peak_tflops > 0,
            f"peak_tflops: got {self.peak_tflops}, allowed above 0, or null to look it up",
        )
        require(self.micro_batch >= 1, f"micro_batch: got {self.micro_batch}, allowed 1 and more")
        require(self.loader_threads >= 0, f"loader_threads: got {self.loader_threads}, allowed 0 (none) and more")
        require(
            not self.offload_optimizer or self.zero_stage >= 1,
            "offload_optimizer: got true, but without ZeRO there is nothing to offload; set zero_stage to 1 or more",
        )
        require(
            not self.compile or self.zero_stage <= 2,
            "compile: got true, but ZeRO 3 interrupts every layer to gather it, and nothing is left to compile; set "
            "zero_stage to 2 or less",
        )


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """A run that trains a model: what its kinds have in common. `kind` tells them apart (`trainers.config.job_kinds`).

    `seed` sets the initial weights, the order of the data and dropout. `precision` bf16 computes in bfloat16, adds up
    gradients over micro-batches and workers in fp32, and keeps weights and optimizer state in fp32. ZeRO stage 1 then runs as
    stage 2. `sinks` get the metrics of `log.jsonl` too; their own environment variables say where they store them
    (`trainers.runs.sinks`).
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
        """Validate ranges and the rules that span several sections."""
        require(self.log_every >= 1, f"log_every: got {self.log_every}, allowed 1 and more")
        require(len(set(self.sinks)) == len(self.sinks), f"sinks: got {list(self.sinks)}, which names one twice")
        require(
            self.precision == "fp32" or self.execution.zero_stage >= 1,
            "precision: bf16 keeps its fp32 weights in ZeRO's optimizer; set execution.zero_stage to 1 or more",
        )

    @property
    @abstractmethod
    def objective(self) -> TrainingObjective:
        """What the model learns from a batch."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[str, ...]:
        """The paths or URLs that it reads."""

    @property
    @abstractmethod
    def validation_interval(self) -> int:
        """Steps between two validations."""

    @property
    def isolates_documents(self) -> bool:
        """Whether the documents of one row do not see each other."""
        return True

    @abstractmethod
    def with_inputs(self, inputs: tuple[str, ...]) -> Self:
        """The same job with other `inputs`."""
