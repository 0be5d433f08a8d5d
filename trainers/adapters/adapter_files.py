"""An adapter as a directory: the parameters that a method has trained, without its base.

`adapter_model.safetensors` has the tensors. If peft supports the method, they are in its layout and
`adapter_config.json` is its configuration, so that `PeftModel.from_pretrained(base, directory)` computes the
same. Otherwise the tensors have the names of our parameters. The head of the task is in
`task_head.safetensors`. `gristmill.json`, written last, has the method, the architecture and the fingerprint
of the base.
"""

import json
from dataclasses import asdict
from functools import partial
from typing import Any

from gristmill.config import parse, plain
from gristmill.errors import ConfigError, UserError
from gristmill.host import host, lent
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import FileRecord
from gristmill.storage.store import read_json, write_json
from trainers.adapters import METHODS
from trainers.adapters.shared.training_method import TrainingMethod, set_tensors, trained_state

FORMAT = "gristmill-adapter/1"
_TENSORS, _HEAD, _RECORD, _PEFT = (
    "adapter_model.safetensors",
    "task_head.safetensors",
    "gristmill.json",
    "adapter_config.json",
)


def base_fingerprint(network: Any) -> str:
    """Return the xxh3_128 digest of the names, shapes and fp32 values of all parameters except those of the
    task's head. Call it before a method is applied.
    """
    import torch
    import xxhash

    state = xxhash.xxh3_128()
    for name, parameter in sorted(network.named_parameters()):
        if not name.startswith("task_head."):
            state.update(f"{name} {list(parameter.shape)} ".encode())
            state.update(parameter.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return state.hexdigest()


def save_adapter(
    directory: LocalPath,
    network: Any,
    method: TrainingMethod,
    architecture: str,
    family: str,
    base: str,
    path: str | None = None,
) -> None:
    """Write the parameters of `network` that `method` has trained to a new directory.

    `base` is the fingerprint of the base. `path` is where peft finds the base; None records no path.
    """
    from safetensors.torch import save_file

    directory.mkdir(parents=True)
    config = method.peft_config(network, architecture, family)
    trained = trained_state(network)
    head = {name: tensor for name, tensor in trained.items() if name.startswith("task_head.")}
    own = {name: tensor for name, tensor in trained.items() if name not in head}
    if config is not None:
        own = method.peft_state(network, architecture)
        (directory / _PEFT).write_text(
            json.dumps({**config, "base_model_name_or_path": path}, indent=2) + "\n", encoding="utf-8"
        )
    tensors = {name: tensor.contiguous() for name, tensor in own.items()}
    host().deliver(str(directory / _TENSORS), partial(save_file, tensors, metadata={"format": "pt"}))
    if head:
        tensors = {name: tensor.contiguous() for name, tensor in head.items()}
        host().deliver(str(directory / _HEAD), partial(save_file, tensors))
    record = {
        "format": FORMAT,
        "method": plain(method if config is None else method.deployed),
        "architecture": architecture,
        "base": base,
        "files": [asdict(directory.record(each.name)) for each in sorted(directory.glob("*.safetensors"))],
    }
    write_json(directory / _RECORD, record)


def read_method(directory: LocalPath) -> TrainingMethod:
    """Return the method of the adapter in `directory`, which `load_adapter` would apply."""
    record = _record(directory)
    return parse(METHODS[record["method"]["kind"]], record["method"], str(directory / _RECORD))


def load_adapter(directory: LocalPath, network: Any, architecture: str, family: str) -> TrainingMethod:
    """Apply an adapter to the network of its base and return its method. If the task has a head, it must be
    attached beforehand.

    Raises UserError if the directory has pickled weights or was not written by us, ConfigError if `network`
    is not the base that the adapter was trained on.
    """
    from safetensors.torch import load_file

    record, method = _record(directory), read_method(directory)
    found = base_fingerprint(network)
    if (record["architecture"], record["base"]) != (architecture, found):
        raise ConfigError(
            f"{directory}: the adapter was trained on another base ({record['architecture']} {record['base'][:12]}, this is "
            f"{architecture} {found[:12]}); give model= the base it was trained on"
        )
    for entry in record["files"]:
        directory.verify(FileRecord(**entry))
    head = {name: parameter for name, parameter in network.named_parameters() if name.startswith("task_head.")}
    method.apply(network, architecture, family, 0)
    state = load_file(lent(directory / _TENSORS))
    if (directory / _PEFT).exists():
        method.load_peft(network, architecture, state)
    else:
        ours = {name: tensor for name, tensor in trained_state(network).items() if name not in head}
        set_tensors(ours, state)
    if head and (directory / _HEAD).exists():
        set_tensors({name: parameter.detach() for name, parameter in head.items()}, load_file(lent(directory / _HEAD)))
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
            f"{directory}: is no adapter of gristmill: it has no {_RECORD}; export one from a run"
        ) from None
    if record.get("format") != FORMAT:
        raise UserError(
            f"{directory}: format is {record.get('format')!r}, expected {FORMAT!r}; export the adapter again"
        )
    return record
