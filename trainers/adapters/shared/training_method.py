"""The protocol of methods: everything the rest of trainers needs to know about one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gristmill.errors import ConfigError

Encode = Callable[[str], list[int]]
"""From a text to its ids, without specials."""


class TrainingMethod(ABC):
    """Which parameters of a pretrained model are trained, and which are added.

    A method is a frozen dataclass; its fields are the keys of `method:`. It is applied after the weights of the base
    are loaded and after the head of the task is in its place (`network.task_head`), before the engine is made.
    """

    kind: str
    freezes: ClassVar[bool] = True
    """Whether weights of the base stay as they are, so that checkpoints need the base."""
    mergeable: ClassVar[bool] = False
    """Whether `merge` can turn the model into one of the base's architecture with equal results."""

    def check(self) -> None:  # noqa: B027
        """Validate ranges; ValueError `field: got X, allowed Y`."""

    def refusal(self, architecture: str) -> str | None:
        """Why this method and an architecture do not go together; None if they do."""
        return None

    @property
    def virtual_tokens(self) -> int:
        """How many virtual tokens precede every segment (of the encoder, in an encoder-decoder).

        Their ids are V to V + n - 1, V the rows of the embedding table; `first_virtual` says where they begin.
        """
        return 0

    @property
    def prefix_length(self) -> int:
        """Keys and values that precede those of every segment; positions of text begin after them."""
        return 0

    def first_virtual(self, rows: int, task: int) -> int:
        """The id of the first virtual token of task number `task`, given the rows of the embedding table."""
        return rows

    def apply(self, network: Any, architecture: str, family: str, seed: int, encode: Encode | None = None) -> None:
        """Freeze the base and add what is trained, initialised from `seed`; the head of the task stays trained.

        `encode` is for methods that begin from a text. Raises ConfigError if the model has no room for the method.
        """
        import torch

        refusal = self.refusal(architecture)
        if refusal:
            raise ConfigError(f"method.kind: {refusal}")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.insert(network, architecture, family, encode)

    @abstractmethod
    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """`apply`, with torch's generator seeded."""

    def merge(self, network: Any) -> None:
        """Compute what was added into the weights of the base and remove it."""
        raise ConfigError(
            f"method.kind: got {self.kind}, which adds what no weight of the base can hold; export without --merge"
        )

    @property
    def deployed(self) -> "TrainingMethod":
        """The method that `peft_state` belongs to: without what is needed for training only."""
        return self

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        """`adapter_config.json` of peft 0.21; None if peft does not know this method on this architecture."""
        return None

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        """What peft stores as `adapter_model.safetensors`: {name: tensor}."""
        raise NotImplementedError

    def load_peft(self, network: Any, architecture: str, state: Mapping[str, Any]) -> None:
        """Set what was added from a `peft_state`, after `apply` of the deployed method."""
        raise NotImplementedError


def freeze(network: Any) -> None:
    """Freeze all parameters but those of the head of the task."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name.startswith("task_head."))


def trained_state(network: Any) -> dict[str, Any]:
    """{name: tensor} of the trained parameters."""
    return {name: parameter.detach() for name, parameter in network.named_parameters() if parameter.requires_grad}


def load_state(network: Any, state: Mapping[str, Any]) -> None:
    """Set the trained parameters, as `set_tensors`."""
    set_tensors(trained_state(network), state)


def set_tensors(ours: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Copy tensors into those of the same names; ConfigError names the first that is missing or has another shape."""
    import torch

    for name in [*ours, *(name for name in state if name not in ours)]:
        shapes = [list(each[name].shape) if name in each else "none" for each in (state, ours)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"tensor {name}: the adapter has {shapes[0]}, the model {shapes[1]}; use the base and the method that "
                f"it was trained with"
            )
    with torch.no_grad():
        for name, parameter in ours.items():
            parameter.copy_(state[name])
