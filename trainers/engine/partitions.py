"""Read and write full tensors of a model whose weights and optimizer state ZeRO has spread over the workers.

At stages 1 to 3 DeepSpeed keeps the state flat, by parameter group, and each worker has a part. Muon at
stages 1 and 2 is an exception: without offload, each worker that has a part of a matrix keeps the whole
momentum of that matrix.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from trainers.engine.optimizers import new_state, state_keys

_GATHERED = 2**24
"""The maximum number of elements gathered in one collective, 64 MiB in fp32; a larger tensor is gathered alone. With a
lower limit, a model of many small tensors would wait for more collectives; with a higher one, gathering would need more
memory.
"""


class Partitions:
    """Reads and writes the weights and optimizer state of a DeepSpeed engine as full tensors, at any ZeRO
    stage.
    """

    def __init__(self, model: Any, optimizer: Any, zero: Any, stage: int, offloads: bool) -> None:
        """`zero` is the optimizer that DeepSpeed returns for ZeRO stage `stage`, and `optimizer` is the torch
        optimizer that updates the weights.
        """
        self._model, self._optimizer, self._zero, self._stage = model, optimizer, zero, stage
        self._rank, self._world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._whole = self._whole_matrices() if stage in (1, 2) and not offloads else {}

    @property
    def inner(self) -> Any:
        """The torch optimizer that updates the weights."""
        return self._optimizer

    def keys(self, parameter: Any) -> tuple[str, ...]:
        """Return the names of the state tensors that the optimizer keeps for a parameter."""
        return state_keys(parameter, self._optimizer)

    def allocate(self, updates: int) -> None:
        """Create the initial state of all tensors of the inner optimizer. AdamW's step count starts at
        `updates`.

        If the optimizer created its state at the first step, DeepSpeed would link parameters only to the
        state of the first parameter group.
        """
        for tensor, parameter in self._optimizer_tensors():
            self._optimizer.state[tensor] = new_state(tensor, self.keys(parameter), updates)
        for group in {group for group, _, _ in self._whole.values()}:
            flat = self._zero.single_partition_of_fp32_groups[group]
            size = sum(parameter.numel() for parameter in self._zero.params_in_partition[group])
            self._optimizer.state[flat]["momentum_buffer"] = torch.zeros(size, dtype=flat.dtype, device=flat.device)
        if self._stage in (1, 2):
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()

    def _optimizer_tensors(self) -> Iterator[tuple[Any, Any]]:
        if self._stage == 0:
            trained = (parameter for parameter in self._model.parameters() if parameter.requires_grad)
            yield from ((parameter, parameter) for parameter in trained)
        elif self._stage == 3:
            groups = zip(self._zero.fp32_partitioned_groups_flat, self._zero.fp16_groups, strict=True)
            yield from ((flat, group[0]) for flat, group in groups)
        else:
            groups = zip(self._zero.single_partition_of_fp32_groups, self._zero.bit16_groups, strict=True)
            yield from ((flat, group[0]) for flat, group in groups)

    def _whole_matrices(self) -> dict[int, tuple[int, int, bool]]:
        """Return {id(parameter): (group, offset, is first)} for each parameter that Muon trains. `group` is
        the index of its parameter group. `offset` is the offset of its momentum in this worker's buffer, or
        -1 if this worker has no copy. `is first` says whether this worker has the lowest rank of those with a
        copy.
        """
        found = {}
        for group, parameters in enumerate(self._zero.bit16_groups):
            if not getattr(parameters[0], "use_muon", False):
                continue
            starts, place = {}, 0
            for parameter in self._zero.params_in_partition[group]:
                starts[id(parameter)], place = place, place + parameter.numel()
            owners = self._zero.param_to_partition_ids[group]
            for parameter in parameters:
                first = min(owners[self._zero.get_param_id(parameter)]) == self._rank
                found[id(parameter)] = group, starts.get(id(parameter), -1), first
        return found

    def _momentum(self, parameter: Any) -> torch.Tensor | None:
        group, start, _ = self._whole[id(parameter)]
        if start < 0:
            return None
        buffer = self._optimizer.state[self._zero.single_partition_of_fp32_groups[group]]["momentum_buffer"]
        view: torch.Tensor = buffer[start : start + parameter.numel()].view(parameter.shape)
        return view

    def read(self, wanted: Iterable[tuple[Any, str]]) -> Iterator[torch.Tensor]:
        """Yield the full tensor of each (parameter, key) of `wanted`: its weight if the key is `weight`,
        otherwise the optimizer state of this name. At stage 0 these are the tensors in use, not copies. Every
        worker must request the same tensors and iterate to the end.
        """
        together: list[tuple[Any, str]] = []
        size = 0
        for parameter, key in wanted:
            if together and size + self._size(parameter) > _GATHERED:
                yield from self._gather(together)
                together, size = [], 0
            together.append((parameter, key))
            size += self._size(parameter)
        if together:
            yield from self._gather(together)

    def _size(self, parameter: Any) -> int:
        return int(parameter.ds_numel if self._stage == 3 else parameter.numel())

    def _gather(self, wanted: Sequence[tuple[Any, str]]) -> Iterator[torch.Tensor]:
        if self._stage == 0:
            yield from (each.data if key == "weight" else self._optimizer.state[each][key] for each, key in wanted)
            return
        device = wanted[0][0].device
        if self._stage == 3:
            own = torch.cat([self._own_part(parameter, key) for parameter, key in wanted]).to(device)
            parts = torch.empty(self._world, len(own), dtype=own.dtype, device=device)
            torch.distributed.all_gather_into_tensor(parts.view(-1), own)
            for (parameter, _), part in zip(
                wanted, parts.split([each.ds_tensor.numel() for each, _ in wanted], 1), strict=True
            ):
                yield part.flatten()[: parameter.ds_numel].view(parameter.ds_shape)
            return
        sizes = [parameter.numel() for parameter, _ in wanted]
        whole = torch.zeros(sum(sizes), dtype=torch.float32, device=device)
        for (parameter, key), its in zip(wanted, whole.split(sizes), strict=True):
            self._put_own(parameter, key, its)
        torch.distributed.all_reduce(whole)
        for (parameter, _), its in zip(wanted, whole.split(sizes), strict=True):
            yield its.view(parameter.shape)

    def _own_part(self, parameter: Any, key: str) -> torch.Tensor:
        """Return this worker's part of a tensor at stage 3, padded so that the parts of all workers have the
        same length.
        """
        from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

        part: torch.Tensor = (
            safe_get_local_fp32_param(parameter) if key == "weight" else safe_get_local_optimizer_state(parameter, key)
        )
        return part.detach().flatten()

    def _put_own(self, parameter: Any, key: str, whole: torch.Tensor) -> None:
        if key != "weight" and id(parameter) in self._whole:
            own = self._momentum(parameter)
            if own is not None and self._whole[id(parameter)][2]:
                whole.copy_(own.flatten())
        elif parameter._hp_mapping is not None:
            place = parameter._hp_mapping.lp_fragment_address
            part = parameter._hp_mapping.get_hp_fragment(None if key == "weight" else key)
            whole[place.start : place.start + place.numel] = part.detach()

    def gradient(self, parameter: Any) -> torch.Tensor:
        """Return the full gradient of a trained parameter. Every worker must call this, before the
        optimizer's step.
        """
        from deepspeed.utils import safe_get_full_grad

        found: torch.Tensor = safe_get_full_grad(parameter)
        return found.detach()

    def write(self, parameter: Any, key: str, value: torch.Tensor) -> None:
        """Set a parameter's weight, if `key` is `weight`, or else its optimizer state named `key`. `value` is
        the full tensor.
        """
        from deepspeed.utils import safe_set_full_fp32_param, safe_set_full_optimizer_state

        value = value.to(parameter.device, torch.float32)
        if self._stage == 0:
            target = parameter.data if key == "weight" else self._optimizer.state[parameter][key]
            target.copy_(value)
        elif self._stage == 3:
            self._write_part(parameter, key, value)
        elif key == "weight":
            safe_set_full_fp32_param(parameter, value)
            parameter.data.copy_(value)
        elif id(parameter) in self._whole:
            own = self._momentum(parameter)
            if own is not None:
                own.copy_(value)
        else:
            safe_set_full_optimizer_state(parameter, value, key)

    def _write_part(self, parameter: Any, key: str, value: torch.Tensor) -> None:
        """Write this worker's part of a tensor at stage 3. DeepSpeed's own setter does not handle the padding
        of the last part.
        """
        from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

        size = parameter.ds_tensor.numel()
        part = torch.zeros(size, dtype=torch.float32, device=value.device)
        own = value.flatten()[size * self._rank : size * (self._rank + 1)]
        part[: own.numel()] = own
        if key == "weight":
            safe_set_local_fp32_param(parameter, part)
            parameter.ds_tensor.data.copy_(part)
            if parameter.numel() == value.numel():  # small parameters stay gathered between steps
                parameter.data.copy_(value)
        else:
            safe_set_local_optimizer_state(parameter, part, key)
