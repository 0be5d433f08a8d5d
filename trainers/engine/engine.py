"""The engine: a model with its optimizer. A single worker uses torch alone, except with Muon or an offloaded
optimizer; several workers use DeepSpeed ZeRO.

If neither dropout nor Muon is used, the ZeRO stage, world size, micro-batch and accumulation change nothing
but rounding.
"""

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np
import torch
import xxhash

from gristmill.errors import ConfigError
from trainers.adapters.weights.rank_updates import RankUpdates
from trainers.config.job import Execution, Job
from trainers.engine.embeddings import sum_in_fp32
from trainers.engine.forward import Forward, tensors
from trainers.engine.loss_metrics import no_sums, sums_by_source
from trainers.engine.optimizers import AVERAGE, AveragedSGD
from trainers.engine.single import SingleWorker
from trainers.engine.zero import ZeroWorkers, join_group
from trainers.models.interface import Carried
from trainers.rows.batch import PADDING, Batch
from trainers.rows.row_windows import columns_read, window
from trainers.rows.task_outputs import TaskOutputs, join_outputs, outputs_of

# How long `Engine.broadcast` waits for the first worker: longer than writing or hashing terabytes takes. The
# death of a worker is noticed at once, because its connections close.
_WRITING = timedelta(days=30)
Scale = Callable[[np.ndarray], np.ndarray]
"""A function that returns the factors by which an update multiplies the nats of each loss and source, given the number
of targets of each: both float64 [losses, sources].
"""


def start_group() -> tuple[int, int]:
    """Join the group of workers that torchrun's environment variables describe, if there are several, and
    return (rank, world size).
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # also where transformers imports DeepSpeed by itself
    if not torch.distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return 0, 1
        if torch.cuda.is_available():
            # Before anything is put on a GPU: DeepSpeed chooses one only when it gets the model.
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        join_group()
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def hard_exit(status: int) -> NoReturn:
    """End this process with exit status `status`. If it has joined a group of workers, skip Python's own
    shutdown, which may abort while a gloo thread still holds tensors.
    """
    if not torch.distributed.is_initialized():
        sys.exit(status)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass(frozen=True)
class Totals:
    """The results of a step or an evaluation over all workers.

    `sums` is the array that `loss_metrics.sums_by_source` describes. `loss` is weight x nats per target,
    summed over all losses. `stops` is the number of workers that requested a stop.

    `decoded` is the number of tokens that the decoder of an encoder-decoder was given, and `read` the number
    of all other tokens. `updates` is the number of optimizer updates in the step. All three are 0 after an
    evaluation.
    """

    sums: np.ndarray
    loss: float
    stops: int
    read: int = 0
    decoded: int = 0
    updates: int = 0

    @property
    def targets(self) -> int:
        """The number of targets of the first loss."""
        return int(self.sums[0, 1].sum())


class Engine:
    """Trains and evaluates a model. The model and its optimizer state are spread over the workers according
    to the ZeRO stage.
    """

    def __init__(self, forward: Forward, config: Job, micro_batch: int, accumulation: int) -> None:
        """Prepare the model of `forward`, whose initial weights must be in fp32 and the same on every worker.
        In each step, a worker takes `accumulation` batches of `micro_batch` rows.
        """
        self.rank, self.world = start_group()
        model = forward.model
        self.losses, self.names, self._measures = forward.losses, forward.names, forward.measures
        self._config, self._model = config, model
        self.updates = 0  # of the optimizer, those before a restored checkpoint included
        self._repeatable = True
        if self.world > 1:
            # This group uses gloo on the CPU under any launcher, so that no kernel waits on a device and NCCL's
            # watchdog cannot end the wait.
            self._waiting = torch.distributed.new_group(backend="gloo", timeout=_WRITING)
        prepare_blocks(model, config.execution)
        _spare_embedding_gradients(model, config)
        self._workers: SingleWorker | ZeroWorkers = (
            ZeroWorkers(forward, config, micro_batch, accumulation)
            if self.world > 1 or _needs_deepspeed(config)
            else SingleWorker(forward, config)
        )
        self._device = next(model.parameters()).device
        self._ranks = RankUpdates(model, self._workers, config.budget.steps)

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage in use, or 0 for none."""
        return self._workers.zero_stage

    @property
    def device(self) -> Any:
        """The device of this worker's model."""
        return self._device

    def train_step(
        self, batches: Sequence[Batch], step: int, rate: float, sources: int, stop: bool, scale: Scale | None = None
    ) -> tuple[Totals, float]:
        """Take one optimizer step over this worker's micro-batches. Returns (totals over all workers,
        gradient norm). Every worker must call this with `accumulation` batches.

        `step` counts from 0. `rate` is the learning rate of AdamW or SGD, before any decay by layer; Muon's
        rate changes in proportion. `sources` is the number of sources; `stop` says whether this worker
        requests a stop. If the loss or the norm is not finite, no worker changes weights or optimizer state.

        With `data.bptt`, the optimizer updates the weights after every window of the rows, and the norm
        returned is the largest of all updates. If an update's loss or norm is not finite, the step ends there
        and returns the norm of that update; earlier updates remain.
        """
        for group in self._workers.groups:
            peak = group["peak"] if step >= group.get("from_step", 0) else 0.0
            group["lr"] = rate * peak / self._config.optimizer.learning_rate
        if not self._workers.forward.training:  # visiting every module takes 2 % of a small model's step
            self._workers.forward.train()
        self._ranks.begin(len(batches))
        self._repeatable, length = True, self._config.bptt
        if length is None:
            return self._update(batches, [None] * len(batches), step, 0, sources, stop, scale)
        carried, made, norms = [Carried() for _ in batches], [], []
        for number in range(-(-self._most(columns_read(batches)) // length)):
            windows = [window(batch, number * length, length) for batch in batches]
            totals, norm = self._update(windows, carried, step, number, sources, stop, scale)
            made.append(totals)
            norms.append(norm)
            if not (math.isfinite(totals.loss) and math.isfinite(norm)):
                return self._join(made), norm
        return self._join(made), max(norms)

    def _update(
        self,
        batches: Sequence[Batch],
        carried: Sequence[Carried | None],
        step: int,
        number: int,
        sources: int,
        stop: bool,
        scale: Scale | None,
    ) -> tuple[Totals, float]:
        *targets, read, decoded = self._sum(self._amounts(batches))
        scales = None if scale is None else scale(self._targets(batches, sources))
        sums = no_sums(len(self.names), sources)
        for place, (batch, its) in enumerate(zip(batches, carried, strict=True)):
            self._seed(dropout_seed(self._config.seed, step, self.rank, place, number))
            nats = self._nats(batch, carried=its)
            if scales is None:
                loss = self._loss([nats[loss.name].sum() for loss in self.losses], targets)
            else:
                loss = self._scaled_loss(nats, batch, scales)
            if place < len(batches) - 1:
                self._workers.backward(loss, is_last=False)
                sums += self._by_source(nats, batch, sources)
        totals = self._totals(sums + self._by_source(nats, batch, sources), stop)
        # A loss that is not finite on one worker makes the gradients of all not finite, so that all skip the step.
        self._workers.backward(loss if math.isfinite(totals.loss) else loss * math.nan, is_last=True)
        gradients = self._ranks.gradients()
        norm, self._repeatable = self._workers.update(), False
        updated = math.isfinite(norm)
        if updated:
            self.updates += 1
            self._ranks.update(step + 1, gradients)
        return replace(totals, read=int(read), decoded=int(decoded), updates=int(updated)), norm

    def _join(self, windows: Sequence[Totals]) -> Totals:
        sums = np.sum([each.sums for each in windows], axis=0)
        counts = {name: sum(getattr(each, name) for each in windows) for name in ("read", "decoded", "updates")}
        return Totals(sums, self._loss_of(sums), windows[0].stops, **counts)

    def _seed(self, seed: int) -> None:
        if self._device.type == "cpu":
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` also records a stack trace for the GPU
        else:
            torch.manual_seed(seed)

    def _nats(self, batch: Batch, predicts: bool = False, carried: Carried | None = None) -> dict[str, Any]:
        return self._workers.forward(predicts=predicts, carried=carried, **tensors(batch, self._device))

    def _by_source(self, found: Mapping[str, Any], batch: Batch, sources: int) -> np.ndarray:
        return sums_by_source(found, batch, self.losses, sources, self._measures)

    def _loss(self, nats: Sequence[Any], targets: Sequence[float]) -> Any:
        sums = zip(self.losses, nats, targets, strict=True)
        return sum(loss.weight * its_nats / max(1.0, its_targets) for loss, its_nats, its_targets in sums)

    def _scaled_loss(self, nats: Mapping[str, Any], batch: Batch, scales: np.ndarray) -> Any:
        source, total = torch.from_numpy(batch.source).to(self._device), 0.0
        for loss, its in zip(self.losses, scales, strict=True):
            rows = nats[loss.name].reshape(len(batch.source), -1).sum(dim=1)
            total = total + loss.weight * (rows * torch.from_numpy(its).to(rows)[source]).sum()
        return total

    def excess(self, batches: Sequence[Batch], reference: Forward, sources: int) -> np.ndarray:
        """Return float64 [2, sources]: for each source, the sum of the excess losses over `reference`, and
        the number of targets. Both cover only the first loss, in the batches of all workers. The excess loss
        of a target is max(0, nats of this model - nats of `reference`). `reference` must be in eval mode and
        on `device`.
        """
        self._repeatable = True
        self._workers.forward.eval()
        first, sums = self.losses[:1], no_sums(1, sources)
        with torch.no_grad():
            for batch in batches:
                ours, theirs = self._nats(batch), reference(**tensors(batch, self._device))
                name = first[0].name
                sums += sums_by_source({name: (ours[name] - theirs[name]).clamp(min=0)}, batch, first, sources)
        return np.array(self._sum(sums.flatten().tolist())).reshape(2, sources)

    def evaluate(self, batches: Iterable[Batch], sources: int) -> Totals:
        """Evaluate the model on `batches`, and return the totals over all workers. All workers must pass the
        same number of batches. `sources` is the number of sources.
        """
        self._workers.forward.eval()
        sums = no_sums(len(self.names), sources)
        with torch.no_grad():
            for batch in batches:
                sums += self._by_source(self._nats(batch), batch, sources)
        return self._totals(sums, False)

    def predict(self, batches: Iterable[Batch], sources: int) -> tuple[Totals, TaskOutputs | None]:
        """Return the totals that `evaluate` returns, and the outputs of the model's head for the batches of
        all workers. The outputs are None on all workers but the first.

        All workers must pass the same number of batches, at least one.
        """
        kind = self._model.task_head.kind
        self._workers.forward.eval()
        sums, parts = no_sums(len(self.names), sources), []
        with torch.no_grad():
            for batch in batches:
                made = self._nats(batch, predicts=True)
                sums += self._by_source(made, batch, sources)
                parts.append(outputs_of(kind, made["predictions"].cpu().numpy(), batch))
        gathered: list[Any] = [join_outputs(parts)] * self.world
        if self.world > 1:
            torch.distributed.gather_object(gathered[0], gathered if self.rank == 0 else None, group=self._waiting)
        return self._totals(sums, False), join_outputs(gathered) if self.rank == 0 else None

    @property
    def averaged(self) -> int | None:
        """The number of updates since averaging began, or None if the weights are not averaged."""
        inner = self._workers.inner
        return inner.averaged if isinstance(inner, AveragedSGD) else None

    def begin_averaging(self, averaged: int = 0) -> None:
        """Average the weights from the next update on; the optimizer must be `asgd`. When a run is resumed,
        `averaged` is the number of updates already in the averages.
        """
        self._workers.inner.begin_averaging(averaged)

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Give the model its averaged weights inside a `with` block, if the weights are averaged. All workers
        must take part.
        """
        self._swap_averages()
        try:
            yield
        finally:
            self._swap_averages()

    def _swap_averages(self) -> None:
        if self.averaged is None:
            return
        for _, parameter in self._trained():
            keys = ("weight", *AVERAGE)
            weight, average = (tensor.clone() for tensor in self._workers.read([(parameter, key) for key in keys]))
            self._workers.write(parameter, "weight", average)
            self._workers.write(parameter, *AVERAGE, weight)

    def discard(self) -> bool:
        """Discard the gradients of a step that failed, so that the step can be repeated. Returns False if
        that is impossible.
        """
        if isinstance(self._workers, ZeroWorkers) or not self._repeatable:
            return False
        self._workers.discard()
        return True

    def broadcast(self, value: int) -> int:
        """Send rank 0's `value` to every worker and return it. This is also a barrier, at which workers wait
        for up to 30 days.
        """
        if self.world == 1:
            return value
        tensor = torch.tensor([value if self.rank == 0 else 0])
        torch.distributed.all_reduce(tensor, group=self._waiting)
        return int(tensor)

    def state(self) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """Yield (parameter name, tensors) for every trained parameter. `tensors` holds "weight", the
        optimizer state and any statistics of `RankUpdates` by name, as full fp32 tensors on the CPU. With
        `asgd`, "weight" is the average, and "iterate" the weight that training continues from. Every worker
        must iterate to the end.
        """
        trained = [(name, parameter, self._stored(parameter)) for name, parameter in self._trained()]
        tensors = self._workers.read((parameter, key) for _, parameter, keys in trained for key in keys.values())
        for name, _, keys in trained:
            found = {stored: next(tensors) for stored in keys} | self._ranks.scores(name)
            yield name, {key: tensor.detach().to("cpu", torch.float32, copy=True) for key, tensor in found.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the full shape of every parameter, by name, even where ZeRO divides the parameter among
        workers.
        """
        return {
            name: tuple(getattr(parameter, "ds_shape", parameter.shape))
            for name, parameter in self._model.named_parameters()
        }

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]], updates: int) -> None:
        """Set the trained weights and the optimizer state. `state` maps each trained parameter's name to its
        full tensors, as the method `state` yields them; the ZeRO stage and the world size may have changed
        since. `updates` is the number of optimizer updates made so far, not counting skipped updates.
        """
        self.updates = updates
        self._workers.allocate(updates)
        for name, parameter in self._trained():
            tensors = state[name]
            for stored, key in self._stored(parameter).items():
                self._workers.write(parameter, key, tensors[stored])
            self._ranks.restore(name, tensors)

    def _stored(self, parameter: Any) -> dict[str, str]:
        """Return {name in `state`: name in `self._workers`} for a parameter's weight and optimizer state."""
        keys = self._workers.keys(parameter)
        return (
            {"weight": "average", "iterate": "weight"} if keys == AVERAGE else {key: key for key in ("weight", *keys)}
        )

    def _trained(self) -> Iterator[tuple[str, Any]]:
        return ((name, parameter) for name, parameter in self._model.named_parameters() if parameter.requires_grad)

    def _totals(self, sums: np.ndarray, stop: bool) -> Totals:
        *flat, stops = self._sum([*sums.flatten().tolist(), float(stop)])
        sums = np.array(flat).reshape(sums.shape)
        return Totals(sums, self._loss_of(sums), int(stops))

    def _loss_of(self, sums: np.ndarray) -> float:
        return float(self._loss(*sums[: len(self.losses)].sum(axis=2).T))

    def _amounts(self, batches: Sequence[Batch]) -> list[float]:
        """Return the number of targets of each loss, then what `Totals` calls `read` and `decoded`, for this
        worker's batches.
        """
        amounts = np.zeros(len(self.losses) + 2)
        for batch in batches:
            decoded = 0 if batch.decoder is None else (batch.decoder.segments != PADDING).sum()
            targets = (loss.targets(batch).sum() for loss in self.losses)
            amounts += [*targets, (batch.segments != PADDING).sum(), decoded]
        return list(amounts.tolist())

    def _targets(self, batches: Sequence[Batch], sources: int) -> np.ndarray:
        """Return the number of targets of each loss by source, over all workers: float64 [losses, sources]."""
        counts = np.zeros((len(self.losses), sources))
        for batch in batches:
            for loss, its in zip(self.losses, counts, strict=True):
                np.add.at(its, batch.source, loss.targets(batch).reshape(len(batch.source), -1).sum(axis=1))
        return np.array(self._sum(counts.flatten().tolist())).reshape(counts.shape)

    def _sum(self, values: list[float]) -> list[float]:
        if self.world == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        torch.distributed.all_reduce(tensor)
        return list(tensor.tolist())

    def _most(self, value: int) -> int:
        if self.world == 1:
            return value
        tensor = torch.tensor(value, device=self._device)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
        return int(tensor)

    def close(self) -> None:
        """Remove the engine's hooks and process group, so that another engine can be created in this process."""
        self._workers.close()
        if self.world > 1:
            torch.distributed.destroy_process_group(self._waiting)


def dropout_seed(seed: int, step: int, rank: int, micro_batch: int, window: int = 0) -> int:
    """Return the seed of dropout for one pass, a 63-bit integer."""
    later = f"/{window}" if window else ""
    return xxhash.xxh3_64_intdigest(f"dropout/{seed}/{step}/{rank}/{micro_batch}{later}".encode()) >> 1


def prepare_blocks(model: Any, execution: Execution) -> None:
    """Set up activation checkpointing and compilation of the model's blocks, according to `execution`.

    Raises ConfigError if the model does not support them.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    blocks = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for field in ("activation_checkpointing", "compile"):
        if getattr(execution, field) and not blocks:
            raise ConfigError(f"execution.{field}: got true, {type(model).__name__} does not allow it")
    if execution.activation_checkpointing:
        # Not reentrant: this keeps the hooks of ZeRO 3, and repeats dropout from the same generator state.
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    if execution.compile:
        for block in blocks:
            block.compile()


def _spare_embedding_gradients(model: Any, config: Job) -> None:
    """On the CPU, sum the gradients of bf16 embeddings in fp32, and make the gradients of tied input
    embeddings sparse. A GPU would add the rows of sparse gradients in no fixed order.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    predicts = not hasattr(model, "task_head") and config.objective.contrast is None
    table = getattr(embedding, "weight", None)  # ELMo that reads characters has none
    if predicts and head is not None and head.weight is table:
        embedding.sparse = not torch.cuda.is_available()
    if config.precision == "bf16" and not torch.cuda.is_available():
        sum_in_fp32(model)


def _needs_deepspeed(config: Job) -> bool:
    return config.optimizer.kind == "muon" or config.execution.offload_optimizer
