"""The engine: a model under DeepSpeed ZeRO. The only file here that imports deepspeed.

The loss is weighted by tokens: the nats of all targets of a step, over all workers and micro-batches, divided by their
number. So ZeRO stage, world size, micro-batch and accumulation change nothing but rounding.
"""

import logging
import math
import os
import socket
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from trainers.batch import IGNORED, Batch
from trainers.config import Optimizer, Pretraining
from trainers.forward import Forward, tensors
from trainers.measure import no_sums, sums_by_source

MOMENTS = ("exp_avg", "exp_avg_sq")


def start_group() -> tuple[int, int]:
    """Join the workers of this run, and return (rank, world size). One worker alone needs no launcher.

    torchrun's variables, or the group that Ray Train has made, are used as they are.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if "RANK" not in os.environ and not torch.distributed.is_initialized():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        alone = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        os.environ.update(alone)
    deepspeed = _deepspeed()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _deepspeed() -> Any:
    """DeepSpeed without its banner, and without the C++ build of its shared-memory collectives (30 to 180 s)."""
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed 0.19.8 calls collectives under names that torch 2.13 has renamed, once per step.
    warnings.filterwarnings("ignore", message=".*is deprecated. Please use `torch.distributed", category=FutureWarning)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import deepspeed
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


@dataclass(frozen=True)
class Totals:
    """Sums over all workers: `sums` as `trainers.measure` has them, and how many workers asked to stop."""

    sums: np.ndarray
    stops: int

    @property
    def targets(self) -> int:
        """Tokens predicted."""
        return int(self.sums[1].sum())

    @property
    def loss(self) -> float:
        """Nats per target, and nats per sentence pair on top of that where there are any."""
        nats, targets, pair_nats, pairs = self.sums.sum(axis=1)
        return float(nats / max(1.0, targets) + pair_nats / max(1.0, pairs))


class Engine:
    """A model with its optimizer state, spread over the workers as the ZeRO stage says."""

    def __init__(self, model: Any, config: Pretraining, micro_batch: int, accumulation: int) -> None:
        """`model` holds the initial weights in fp32, the same on every worker; a step takes `accumulation`
        micro-batches.
        """
        self.rank, self.world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._config, self._model = config, model
        optimizer = torch.optim.AdamW(
            parameter_groups(model, config.optimizer),
            lr=config.optimizer.learning_rate,
            betas=(config.optimizer.betas[0], config.optimizer.betas[1]),
            eps=config.optimizer.epsilon,
        )
        optimizer.register_step_pre_hook(self._drop_gradients_of_a_skipped_step)
        self._skip = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._engine, *_ = _deepspeed().initialize(
                model=Forward(model, config.model.architecture, config.data.isolation),
                optimizer=optimizer,
                config=_settings(config, micro_batch, accumulation, self.world),
            )
        self._adam = optimizer
        self._stage = config.execution.zero_stage
        self._allocate_moments(0)

    def train_step(
        self, batches: Sequence[Batch], step: int, rate: float, sources: int, stop: bool
    ) -> tuple[Totals, float]:
        """One optimizer step over this worker's micro-batches at learning rate `rate`: (sums over all workers, gradient
        norm).

        Where the loss or the norm is not finite, weights and optimizer state stay as they were, on every worker.
        """
        if self._config.model.dropout > 0:
            torch.manual_seed(hash((self._config.seed, step, self.rank)))
        targets, pairs = self._sum(
            [
                float(sum((batch.targets != IGNORED).sum() for batch in batches)),
                float(sum((batch.labels != IGNORED).sum() for batch in batches if batch.labels is not None)),
            ]
        )
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        self._engine.train()
        sums, totals, norm = no_sums(sources), None, None
        for number, batch in enumerate(batches):
            nats = self._nats(batch)
            loss = nats[0].sum() / max(1.0, targets)
            if nats[1] is not None:
                loss = loss + nats[1].sum() / max(1.0, pairs)
            # DeepSpeed averages gradients over the workers; the loss is a mean over the targets of all of them.
            self._engine.backward(loss * self.world, scale_wrt_gas=False)
            sums += sums_by_source(nats, batch, sources)
            if number == len(batches) - 1:
                totals, self._skip = self._totals(sums, stop), False
                if self._stage == 0:
                    gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
                    norm = torch.nn.utils.get_total_norm(gradients)
                    self._skip = not math.isfinite(norm)  # the other stages see to that themselves
                self._skip |= not math.isfinite(totals.loss)
            self._engine.step()
        assert totals is not None
        norm = self._engine.get_global_grad_norm() if norm is None else norm
        return totals, float(norm)

    def _nats(self, batch: Batch) -> tuple[Any, Any]:
        return self._engine(**tensors(batch, next(self._model.parameters()).device))

    def _drop_gradients_of_a_skipped_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """AdamW passes over parameters without a gradient: neither they nor their moments and step counts change."""
        if self._skip:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def evaluate(self, batches: Iterable[Batch], sources: int) -> Totals:
        """Sums over all workers' batches, without a step."""
        self._engine.eval()
        sums = no_sums(sources)
        with torch.no_grad():
            for batch in batches:
                sums += sums_by_source(self._nats(batch), batch, sources)
        return self._totals(sums, False)

    def agree(self, value: int) -> int:
        """Rank 0's `value`, on every worker; also a barrier."""
        return int(self._sum([float(value) if self.rank == 0 else 0.0])[0])

    def state(self) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """(parameter name, {"weight" and each of MOMENTS: full fp32 tensor on the CPU}); every worker must go through
        all.
        """
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        for name, parameter in self._model.named_parameters():
            if self._stage == 0:
                tensors = {"weight": parameter.data} | {key: self._adam.state[parameter][key] for key in MOMENTS}
            else:
                tensors = {"weight": safe_get_full_fp32_param(parameter)}
                tensors |= {key: safe_get_full_optimizer_state(parameter, key) for key in MOMENTS}
            yield name, {key: tensor.detach().to("cpu", torch.float32, copy=True) for key, tensor in tensors.items()}

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]], updates: int) -> None:
        """Set weights and optimizer moments from full tensors, after `updates` steps that were not skipped; any ZeRO
        stage, any world size.
        """
        self._allocate_moments(updates)
        for name, parameter in self._model.named_parameters():
            for key in ("weight", *MOMENTS):
                self._set(parameter, key, state[name][key])

    def _allocate_moments(self, updates: int) -> None:
        """Zero moments for all that the inner optimizer steps: parameters (stage 0) or this worker's flat partitions.

        AdamW would make them at the first step; then DeepSpeed links those of the first parameter group alone to the
        parameters, and `state` could not read the others.
        """
        stepped = list(self._model.parameters())
        if self._stage in (1, 2):
            stepped = list(self._engine.optimizer.single_partition_of_fp32_groups)
        elif self._stage == 3:
            stepped = list(self._engine.optimizer.fp32_partitioned_groups_flat)
        for tensor in stepped:
            moments = {key: torch.zeros_like(tensor) for key in MOMENTS}
            self._adam.state[tensor] = {"step": torch.tensor(float(updates)), **moments}
        if self._stage in (1, 2):
            self._engine.optimizer._hp_optimizer_states_linked = False
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _set(self, parameter: Any, key: str, value: torch.Tensor) -> None:
        from deepspeed.utils import (
            safe_set_full_fp32_param,
            safe_set_full_optimizer_state,
            safe_set_local_fp32_param,
            safe_set_local_optimizer_state,
        )

        value = value.to(parameter.device, torch.float32)
        if self._stage == 0:
            target = parameter.data if key == "weight" else self._adam.state[parameter][key]
            target.copy_(value)
        elif self._stage == 3:
            # The last partition is padded; DeepSpeed's setter for full tensors does not know.
            size = parameter.ds_tensor.numel()
            padded = torch.zeros(size * self.world, dtype=torch.float32, device=value.device)
            padded[: value.numel()] = value.flatten()
            local = padded[size * self.rank : size * (self.rank + 1)]
            if key == "weight":
                safe_set_local_fp32_param(parameter, local)
                parameter.ds_tensor.data.copy_(local)
            else:
                safe_set_local_optimizer_state(parameter, local, key)
        elif key == "weight":
            safe_set_full_fp32_param(parameter, value)
            parameter.data.copy_(value)
        else:
            safe_set_full_optimizer_state(parameter, value, key)

    def _totals(self, sums: np.ndarray, stop: bool) -> Totals:
        flat = self._sum([*sums.flatten().tolist(), float(stop)])
        return Totals(np.array(flat[:-1]).reshape(sums.shape), int(flat[-1]))

    def _sum(self, values: list[float]) -> list[float]:
        """The sums of these numbers over all workers."""
        tensor = torch.tensor(values, dtype=torch.float64, device=next(self._model.parameters()).device)
        torch.distributed.all_reduce(tensor)
        return list(tensor.tolist())

    def close(self) -> None:
        """Release DeepSpeed's hooks, so that another engine can be made in this process."""
        self._engine.destroy()


def parameter_groups(model: Any, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Decayed and not decayed parameters: vectors (norm gains, biases) never decay, embeddings only where that is asked
    for.
    """
    embeddings = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    decayed: list[Any] = []
    kept: list[Any] = []
    for parameter in model.parameters():
        skip = parameter.ndim < 2 or (id(parameter) in embeddings and not optimizer.decay_embeddings)
        (kept if skip else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": optimizer.weight_decay}, {"params": kept, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def _settings(config: Pretraining, micro_batch: int, accumulation: int, world: int) -> dict[str, Any]:
    """DeepSpeed's configuration. Clipping is set explicitly: its default has changed between releases."""
    return {
        "train_batch_size": micro_batch * accumulation * world,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": config.optimizer.gradient_clipping,
        "zero_optimization": {"stage": config.execution.zero_stage},
        "bf16": {"enabled": config.precision == "bf16"},
        "steps_per_print": None,
    }
