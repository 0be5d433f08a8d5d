"""The base class of all fine-tuning methods, which defines how the rest of `trainers` uses them, and helpers
that freeze, collect and set parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gristmill.errors import ConfigError
from trainers.adapters.shared.blocks import BLOCKS

Encode = Callable[[str], list[int]]
"""A function that returns the token ids of a text, without special tokens."""


class TrainingMethod(ABC):
    """Base class of the methods of fine-tuning. Its fields are the keys of `method:`. A method is applied
    after the weights of the base are loaded and the task's head is attached (`network.task_head`), and before
    the engine is created.
    """

    kind: str
    freezes: ClassVar[bool] = True
    """Whether weights of the base are frozen, so that a checkpoint is incomplete without the base."""
    mergeable: ClassVar[bool] = False
    """Whether `merge` can turn the model into a model of the base's architecture that gives the same results."""
    needs_transformer: ClassVar[bool] = True
    """Whether the method adds parameters to the layers or the input of a transformer, and therefore needs one."""

    def check(self) -> None:  # noqa: B027
        """Validate ranges. Raises ValueError with the message `field: got X, allowed Y`."""

    def refusal(self, architecture: str) -> str | None:
        """Return the reason why this method does not work with an architecture, or None if it does."""
        if self.needs_transformer and BLOCKS[architecture].attention is None:
            return f"got {self.kind}, which adapts a transformer, and {architecture} is none; use full, head or bitfit"
        if self.virtual_tokens and not BLOCKS[architecture].embeds:
            return f"got {self.kind}, which adds embeddings of virtual tokens, and {architecture} reads characters; use lora"
        return None

    @property
    def virtual_tokens(self) -> int:
        """The number of virtual tokens before every segment; in an encoder-decoder, before the segments of
        the encoder's input only. The ids of the virtual tokens are consecutive, start at `first_virtual` and
        lie beyond the rows of the embedding table.
        """
        return 0

    @property
    def prefix_length(self) -> int:
        """The number of prefix positions; 0 for a method without a prefix. The prefix's keys and values
        precede those of every segment, and the positions of the text continue after the prefix.
        """
        return 0

    def first_virtual(self, rows: int, task: int) -> int:
        """Return the id of the first virtual token of the task with index `task`, given the number of rows of
        the embedding table.
        """
        return rows

    def apply(self, network: Any, architecture: str, family: str, seed: int, encode: Encode | None = None) -> None:
        """Add the method's parameters, initialised from `seed`, and freeze the parameters that the method
        does not train. The task's head stays trainable.

        `encode` returns the token ids of a text, for methods that initialise their parameters from one.
        Raises ConfigError if the method cannot be applied to this model.
        """
        import torch

        refusal = self.refusal(architecture)
        if refusal:
            raise ConfigError(f"method.kind: {refusal}")
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.insert(network, architecture, family, encode)

    @abstractmethod
    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Add the method's parameters, and freeze the parameters that it does not train. Called by `apply`."""

    def merge(self, network: Any) -> None:
        """Merge the added parameters into the weights of the base and remove them. Raises ConfigError if this
        is impossible.
        """
        raise ConfigError(
            f"method.kind: got {self.kind}, whose parameters cannot be merged into weights of the base; export without --merge"
        )

    @property
    def deployed(self) -> "TrainingMethod":
        """The method to apply when the trained model is used: it has no parameters that only training needs.
        Its `load_peft` reads what `peft_state` of the trained method returns.
        """
        return self

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        """Return the content of `adapter_config.json` for peft 0.21, or None if peft does not support this
        method on this architecture.
        """
        return None

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        """Return the tensors for `adapter_model.safetensors`, keyed by the names that peft would give them if
        it wrapped our model. Called only if `peft_config` does not return None.
        """
        raise NotImplementedError

    def load_peft(self, network: Any, architecture: str, state: Mapping[str, Any]) -> None:
        """Copy the tensors of a `peft_state` into the added parameters. Call this on the `deployed` method,
        after `apply`.
        """
        raise NotImplementedError


def freeze(network: Any) -> None:
    """Freeze all parameters except those of the task's head."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name.startswith("task_head."))


def trained_state(network: Any) -> dict[str, Any]:
    """Return the trained parameters by name, detached."""
    return {name: parameter.detach() for name, parameter in network.named_parameters() if parameter.requires_grad}


def set_tensors(ours: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Copy the tensors of `state` into the tensors of `ours` with the same names. Raises ConfigError if names
    or shapes differ.
    """
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
