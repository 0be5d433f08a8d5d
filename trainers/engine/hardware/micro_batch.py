"""Choose `execution.micro_batch` and `execution.threads` according to a worker's memory and cores."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch

from gristmill.errors import ConfigError
from gristmill.machine import free_memory, usable_cores
from trainers.config.job import Job
from trainers.engine.forward import Forward, tensors
from trainers.rows.batch import PADDING, Batch

# Share of the free memory that a step may use. On a laptop other programs need memory too, and torch
# fragments the memory of a GPU.
_SHARE = {"cpu": 0.5, "cuda": 0.85}
_NO_MEMORY = ("DefaultCPUAllocator", "ALLOC_FAILED")  # of the CPU, of CUDA's libraries
# Memory needed in addition to what is kept for the backward pass, as a share of that: gradients of
# activations, and temporary tensors of operations.
_TRANSIENT = 0.5


def choose_micro_batch(forward: Forward, config: Job, row: Batch, longest: int, world: int) -> int:
    """Return the number of rows that a worker processes per pass: `execution.micro_batch`, or the worker's
    share of a batch if that is smaller. With `auto`, the share is processed in the fewest passes that are
    estimated to fit into every worker's memory.

    `row` is a batch of one row of the training data, and `longest` the maximum length of a row.
    """
    share = -(-(config.batch.sequences or 1) // world)
    if config.execution.micro_batch != "auto":
        return min(config.execution.micro_batch, share)
    largest = max(row.inputs.shape[1], 0 if row.decoder is None else row.decoder.inputs.shape[1])
    scale = max(1.0, longest / largest) * (1 + _TRANSIENT)
    each = bytes_kept(forward, row, config.precision) * scale
    fitting = torch.tensor(max(1, int(_free_bytes(forward, config, world) // max(1.0, each))))
    if world > 1:  # workers may have different memory
        fitting = fitting.to("cuda" if torch.cuda.is_available() else "cpu")
        torch.distributed.all_reduce(fitting, op=torch.distributed.ReduceOp.MIN)
    passes = -(-share // int(fitting))
    return -(-share // passes)


def bytes_kept(forward: Forward, batch: Batch, precision: str) -> int:
    """Return the size in bytes of the activations that a forward pass over `batch` keeps for its backward
    pass, not counting those of a task head. The pass runs on the `meta` device.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    module = _Kept(forward)
    state = [*module.parameters(), *module.buffers()]
    shadows = {
        id(tensor): torch.empty_like(
            tensor,
            device="meta",
            dtype=dtype if tensor.is_floating_point() else None,
            requires_grad=tensor.requires_grad,
        )
        for tensor in state
    }
    own = {tensor.untyped_storage()._cdata for tensor in shadows.values()}
    kept: dict[int, Any] = {}  # storages by address, kept alive so that no address is reused

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.random.fork_rng(devices=[]), _replaced(module, shadows):
        # The pass uses a mask, which other rows may need. On `meta`, attention without one keeps less than on a device.
        arrays = {**tensors(batch, "meta"), "segment_range": (PADDING, 0)}
        module(**arrays)
    return sum(storage.nbytes() for storage in kept.values())


@contextmanager
def _replaced(module: Any, others: Mapping[int, Any]) -> Iterator[None]:
    """Replace a module's parameters and buffers within the context. `others` maps the id() of each to its
    replacement.

    `torch.func.functional_call` would not restore the parameters of a submodule that the module contains
    twice.
    """
    places = [
        (table, name, tensor)
        for each in module.modules()
        for table in (each._parameters, each._buffers)
        for name, tensor in table.items()
        if tensor is not None
    ]
    try:
        for table, name, tensor in places:
            table[name] = others[id(tensor)]
        yield
    finally:
        for table, name, tensor in places:
            table[name] = tensor


class _Kept(torch.nn.Module):
    """The forward pass of a model without its task head, for use on the `meta` device: the head looks up
    positions by value, and tensors on `meta` have no values.
    """

    def __init__(self, inner: Forward) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **arrays: Any) -> Any:
        return self.inner.states(**arrays) if hasattr(self.inner.model, "task_head") else self.inner(**arrays)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether this error means that the CPU or the GPU ran out of memory."""
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or (isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY))


def _free_bytes(forward: Forward, config: Job, world: int) -> float:
    """Return the number of bytes that activations may take on this worker's device."""
    stage = config.execution.zero_stage
    everything = sum(parameter.numel() for parameter in forward.parameters())
    trained = sum(parameter.numel() for parameter in forward.parameters() if parameter.requires_grad)
    # fp32 gradients and two moments; in bf16 also the fp32 weights. ZeRO spreads them over the workers.
    to_come = trained * (16 if config.precision == "bf16" else 12) / (world if stage else 1)
    if torch.cuda.is_available():
        weights = 4 * everything / (world if stage == 3 else 1)
        return _SHARE["cuda"] * (torch.cuda.mem_get_info()[0] - to_come - weights)
    return _SHARE["cpu"] * (free_memory() / int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - to_come)


def set_threads(threads: int | Literal["auto"]) -> int:
    """Set the number of CPU threads that this worker computes with, and return it. With `auto`, it is torch's
    own number, limited to the worker's share of the cores unless OMP_NUM_THREADS is set.

    Raises ConfigError if `threads` is more than the number of available cores.
    """
    cores = usable_cores()
    if threads == "auto":
        if "OMP_NUM_THREADS" not in os.environ:
            workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            torch.set_num_threads(max(1, min(torch.get_num_threads(), cores // workers)))
    elif threads > cores:
        raise ConfigError(
            f"execution.threads: got {threads}, this process may use {cores} cores; allowed 1 to {cores}, or auto"
        )
    else:
        torch.set_num_threads(threads)
    return torch.get_num_threads()
