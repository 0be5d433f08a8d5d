"""An adapter as a directory: the parameters that a method has trained, without the rest of the model.

If peft supports the method on this architecture, the tensors are in peft's layout, and
`PeftModel.from_pretrained(base, directory)` gives the same results. Otherwise they are stored under our
parameter names.

peft's file also contains the task's head, as part of `modules_to_save`, if the method uses peft's layers and
the stock `transformers` model for the task has the same head. In this case, `base` must be that stock model,
with a new head of the same size. Otherwise the head is in `task_head.safetensors`.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from gristmill.config import parse, plain
from gristmill.errors import ConfigError, UserError
from gristmill.host import host, lent
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import FileRecord
from gristmill.storage.store import read_json, write_json
from trainers.adapters import METHODS
from trainers.adapters.shared.blocks import BLOCKS, stack_modules
from trainers.adapters.shared.peft_layers import PeftMethod
from trainers.adapters.shared.training_method import TrainingMethod, set_tensors, trained_state

FORMAT = "gristmill-adapter/2"
_PREFIX, _OF_HEAD = "base_model.model.", "task_head."  # prefixes of parameter names: in peft, and of our head
_TENSORS, _HEAD, _RECORD, _PEFT = (
    "adapter_model.safetensors",
    "task_head.safetensors",
    "gristmill.json",
    "adapter_config.json",
)


def base_fingerprint(network: Any, architecture: str) -> str:
    """Return the xxh3_128 digest of the parameters in the network's stacks, embeddings included. Heads and
    the pooler are excluded, because they have random values if the base lacks them. Call this before a method
    is applied.
    """
    import torch
    import xxhash

    within = {id(p) for stack in stack_modules(network, architecture) for p in stack.parameters()}
    state = xxhash.xxh3_128()
    for name, parameter in sorted(network.named_parameters()):
        if id(parameter) in within and ".pooler." not in name:
            state.update(f"{name} {list(parameter.shape)} ".encode())
            state.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return state.hexdigest()


@dataclass(frozen=True)
class StockHead:
    """The head of a task in the stock model that peft wraps.

    `names` maps our names of the head's parameters to the stock names. `stacks` holds two prefixes: what the
    names of the stacks' parameters begin with in our model, and in the stock model. `task_type` is peft's
    name for the kind of task, or None if peft has none.
    """

    names: Mapping[str, str]
    stacks: tuple[str, str]
    task_type: str | None

    def modules(self, architecture: str) -> list[str]:
        """Return the names of the modules of the stock model that hold the head, for peft's
        `modules_to_save`.
        """
        found = []
        for name in self.names.values():
            first, *_ = name.split(".")
            found.append(name.rpartition(".")[0] if first in BLOCKS[architecture].stacks else first)
        return list(dict.fromkeys(found))

    def peft_names(self, own: Iterable[str]) -> dict[str, str]:
        """Map the trained parameters to the names that peft gives them in the stock model. The result is
        keyed by `own`, peft's names of the method's parameters in our model, and by our names of the head's
        parameters.
        """
        ours, theirs = (f"{_PREFIX}{beginning}" for beginning in self.stacks)
        return {name: theirs + name.removeprefix(ours) for name in own} | {
            name: f"{_PREFIX}{stock}" for name, stock in self.names.items()
        }


def save_adapter(
    directory: LocalPath,
    network: Any,
    method: TrainingMethod,
    architecture: str,
    family: str,
    base: str,
    path: str | None = None,
    head: StockHead | None = None,
) -> None:
    """Write an adapter, the parameters of `network` that `method` has trained, to a new directory.

    `base` is the fingerprint of the base. `path` is the path where peft looks for the base, or None to record
    no path. `head` describes the task's head in the stock model, or is None. The trained head is stored in
    peft's file if `head` is given and `method` is a `PeftMethod` that peft can load, otherwise in a separate
    file.
    """
    directory.mkdir(parents=True)
    config = method.peft_config(network, architecture, family)
    in_peft = head if config is not None and isinstance(method, PeftMethod) else None
    trained = trained_state(network)
    heads = {name: tensor for name, tensor in trained.items() if name.startswith(_OF_HEAD)}
    own = {name: tensor for name, tensor in trained.items() if name not in heads}
    if config is not None:
        own = method.peft_state(network, architecture)
        if in_peft is not None:
            names = in_peft.peft_names(own)
            own, heads = {names[name]: tensor for name, tensor in (own | heads).items()}, {}
            config = {**config, "modules_to_save": in_peft.modules(architecture), "task_type": in_peft.task_type}
        (directory / _PEFT).write_text(
            json.dumps({**config, "base_model_name_or_path": path}, indent=2) + "\n", encoding="utf-8"
        )
    _write_tensors(directory / _TENSORS, own)
    if heads:
        _write_tensors(directory / _HEAD, heads)
    record = {
        "format": FORMAT,
        "method": plain(method if config is None else method.deployed),
        "architecture": architecture,
        "base": base,
        "head": None if in_peft is None else asdict(in_peft),
        "files": [asdict(directory.record(each.name)) for each in sorted(directory.glob("*.safetensors"))],
    }
    write_json(directory / _RECORD, record)


def _write_tensors(path: LocalPath, tensors: Mapping[str, Any]) -> None:
    from safetensors.torch import save_file

    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    host().deliver(str(path), partial(save_file, contiguous, metadata={"format": "pt"}))


def read_method(directory: LocalPath) -> TrainingMethod:
    """Return the method of the adapter in `directory`, without applying it."""
    record = _record(directory)
    return parse(METHODS[record["method"]["kind"]], record["method"], str(directory / _RECORD))


def load_adapter(directory: LocalPath, network: Any, architecture: str, family: str) -> TrainingMethod:
    """Apply the adapter in `directory` to `network`, which must be its base, and return its method. If the
    task has a head, attach it beforehand.

    Raises UserError if the directory is not an adapter in the current format or holds pickled weights,
    CorruptFileError if a file of tensors is missing or damaged, and ConfigError if `network` is not the base
    that the adapter was trained on or a tensor does not fit.
    """
    from safetensors.torch import load_file

    record, method = _record(directory), read_method(directory)
    fingerprint = base_fingerprint(network, architecture)
    if (record["architecture"], record["base"]) != (architecture, fingerprint):
        raise ConfigError(
            f"{directory}: the adapter was trained on another base ({record['architecture']} {record['base'][:12]}, this is "
            f"{architecture} {fingerprint[:12]}); give model= the base it was trained on"
        )
    for entry in record["files"]:
        directory.verify(FileRecord(**entry))
    method.apply(network, architecture, family, 0)
    trained = trained_state(network)
    head = {name: tensor for name, tensor in trained.items() if name.startswith(_OF_HEAD)}
    state = load_file(lent(directory / _TENSORS))
    if record["head"] is not None:
        names = StockHead(**record["head"]).peft_names(method.peft_state(network, architecture))
        known = {stock: name for name, stock in names.items()}
        state = {known.get(name, name): tensor for name, tensor in state.items()}
        set_tensors(head, {name: state.pop(name) for name in list(state) if name.startswith(_OF_HEAD)})
    elif head and (directory / _HEAD).exists():
        set_tensors(head, load_file(lent(directory / _HEAD)))
    if (directory / _PEFT).exists():
        method.load_peft(network, architecture, state)
    else:
        set_tensors({name: tensor for name, tensor in trained.items() if name not in head}, state)
    return method


def _record(directory: LocalPath) -> dict[str, Any]:
    pickled = sorted(path.name for path in directory.glob("*.bin"))
    if pickled:
        raise UserError(
            f"{directory}: {pickled[0]} holds pickled weights, which can run code; convert them to safetensors"
        )
    try:
        record = read_json(directory / _RECORD, "export the adapter again")
    except FileNotFoundError:
        raise UserError(
            f"{directory}: is not an adapter of gristmill: it has no {_RECORD}; export one from a run"
        ) from None
    if record.get("format") != FORMAT:
        raise UserError(
            f"{directory}: format is {record.get('format')!r}, expected {FORMAT!r}; export the adapter again"
        )
    return record
