"""Train a model with DeepSpeed ZeRO. Used by runs with several workers, and by runs of a single worker with
Muon or an offloaded optimizer.
"""

import logging
import math
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from types import FunctionType
from typing import Any

import torch

from gristmill.libraries.loading import loading
from trainers.config.job import Job
from trainers.engine.optimizers import AveragedSGD, SkippingAdamW, clipping_divisor, job_groups
from trainers.engine.partitions import Partitions


def join_group() -> None:
    """Join the process group of this run's workers, which torchrun describes in environment variables.
    Without a launcher, this process is the only worker.
    """
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
    # On CPUs, DeepSpeed would start `numactl` for every bucket of gradients at stage 3.
    os.environ["LOCAL_SIZE"] = os.environ.get("LOCAL_WORLD_SIZE", "1")
    deepspeed = _deepspeed()
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if restarts != "0" and not torch.distributed.is_initialized():
        # torchrun keeps the store of the earlier workers, where torch 2.13 would find their addresses.
        store, rank, world = next(iter(torch.distributed.rendezvous("env://")))
        own = torch.distributed.PrefixStore(f"restart-{restarts}", store)
        torch.distributed.init_process_group(backend, store=own, rank=rank, world_size=world)
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


def _deepspeed() -> Any:
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # DeepSpeed 0.19.8 calls collectives by names that torch 2.13 has deprecated, once per step.
    warnings.filterwarnings("ignore", message=".*is deprecated. Please use `torch.distributed", category=FutureWarning)
    with warnings.catch_warnings(), loading("deepspeed"):
        warnings.simplefilter("ignore")
        import deepspeed
    log = logging.getLogger("DeepSpeed")
    log.setLevel(logging.WARNING)
    log.addFilter(_is_news)
    # No optional operators: DeepSpeed would run a compiler to see which it could build.
    deepspeed.ops.__compatible_ops__ = {}
    if not torch.cuda.is_available():  # ranges for Nvidia's profiler, several thousand empty calls a step at stage 3
        deepspeed.utils.nvtx.enable_nvtx = False
    return deepspeed


@contextmanager
def compiled_when_called() -> Iterator[None]:
    """Within the block, make functions decorated with `torch.compile` compile only when they are first
    called.

    DeepSpeed's Muon module decorates functions in this way. Compiling them at import would load torch's
    compiler and start processes.
    """
    compile_now = torch.compile

    def compile_later(model: Any = None, **options: Any) -> Any:
        if not isinstance(model, FunctionType):
            return compile_now(model, **options)
        compiled: list[Any] = []

        @wraps(model)
        def call(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling():  # as a part of another function, into which the compiler takes it
                return model(*arguments, **named)
            if not compiled:
                compiled.append(compile_now(model, **options))
            return compiled[0](*arguments, **named)

        return call

    torch.compile = compile_later
    try:
        yield
    finally:
        torch.compile = compile_now


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for DeepSpeed's warning that an optimizer is untested with ZeRO."""
    return "untested optimizer" not in record.getMessage()


class ZeroWorkers(Partitions):
    """One worker's part of a model and its optimizer state, which DeepSpeed spreads over all workers. Has the
    interface of `engine.single.SingleWorker`, except `discard`.
    """

    def __init__(self, forward: Any, config: Job, micro_batch: int, accumulation: int) -> None:
        """Join the run's workers and set up DeepSpeed to train the model of `forward` on them."""
        join_group()
        stage, offloads = config.execution.zero_stage, config.execution.offload_optimizer
        world = torch.distributed.get_world_size()
        self._config = config
        self._inner = _optimizer(forward.model, config)
        with warnings.catch_warnings(), compiled_when_called():
            warnings.simplefilter("ignore")
            self.forward, *_ = _deepspeed().initialize(
                model=forward,
                optimizer=self._inner,
                config=_settings(config, micro_batch, accumulation, world),
            )
        # DeepSpeed would copy all gradients to one buffer and back even for one worker without ZeRO.
        self.forward.enable_backward_allreduce = stage > 0 or world > 1
        super().__init__(forward.model, self._inner, self.forward.optimizer, stage, offloads)
        self.allocate(0)

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage at which DeepSpeed runs."""
        return int(self.forward.zero_optimization_stage())

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer."""
        groups: list[dict[str, Any]] = self.forward.optimizer.param_groups
        return groups

    def backward(self, loss: Any, is_last: bool) -> None:
        """Compute the gradients of one micro-batch's part of the loss and add them to those of the step.
        `is_last` marks the last micro-batch of an update.
        """
        # DeepSpeed averages gradients over the workers; the loss is a mean over the targets of all of them.
        self.forward.backward(loss * torch.distributed.get_world_size(), scale_wrt_gas=False)
        if not is_last:
            self.forward.step()

    def update(self) -> float:
        """Take a step if the gradient is finite. Returns the gradient's norm before clipping. With Muon at
        ZeRO stages 1 to 3, the norm counts its updates in place of the gradients of its matrices.
        """
        norm = None
        if self._stage == 0:  # DeepSpeed does this at the other stages
            gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.get_total_norm(gradients))
            self._inner.skip = not math.isfinite(norm)
            self._inner.grad_scale = clipping_divisor(norm, self._config.optimizer.gradient_clipping)
        self.forward.step()
        return float(self.forward.get_global_grad_norm() if norm is None else norm)

    def close(self) -> None:
        """Release DeepSpeed's hooks, so that another engine can be created in this process."""
        self.forward.destroy()


def _optimizer(model: Any, config: Job) -> Any:
    groups = job_groups(model, config)
    if config.optimizer.kind == "asgd":
        return AveragedSGD(groups)
    if config.optimizer.kind == "adamw":
        return SkippingAdamW(groups, fused=True)
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

    class SkippingMuon(MuonWithAuxAdam):  # DeepSpeed looks for `muon` in the name
        skip = False

        def step(self, closure: Any = None, step_id: Any = None) -> Any:
            return None if self.skip else super().step(closure, step_id)

    return SkippingMuon(groups, adam_optimizer=torch.optim.AdamW, adam_optimizer_kwargs={"fused": True})


def _settings(config: Job, micro_batch: int, accumulation: int, world: int) -> dict[str, Any]:
    """Return DeepSpeed's configuration. At ZeRO stage 0, DeepSpeed does not clip gradients;
    `ZeroWorkers.update` does. With bf16, stage 2 replaces stage 1, because the optimizer that DeepSpeed
    0.19.8 uses for stage 1 cannot skip steps.
    """
    half = config.precision == "bf16"
    zero: dict[str, Any] = {"stage": 2 if half and config.execution.zero_stage == 1 else config.execution.zero_stage}
    if config.execution.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": torch.cuda.is_available()}
    if config.optimizer.kind == "muon":
        zero["reduce_scatter"] = False  # Muon needs whole matrices
    return {
        "train_batch_size": micro_batch * accumulation * world,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": config.optimizer.gradient_clipping if config.execution.zero_stage else 0.0,
        "zero_optimization": zero,
        # Offload would require DeepSpeed's own AdamW, which needs a C++ build; our subclasses are not on its list.
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": half},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "steps_per_print": None,
    }
