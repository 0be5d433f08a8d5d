"""The base class of methods that replace matrices of the model with peft's layers. Only this module imports
peft.
"""

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gristmill.errors import ConfigError, UserError
from gristmill.libraries.extras import install_extra
from trainers.adapters.shared.blocks import Part, part_modules, pattern, refuse_parts
from trainers.adapters.shared.training_method import Encode, TrainingMethod, set_tensors

_NAME = "default"  # peft's name for the only adapter; the names of its parameters contain it


class PeftMethod(TrainingMethod):
    """Base class of the methods that wrap matrices of the blocks in peft's layers."""

    mergeable: ClassVar[bool] = True
    config_name: ClassVar[str]
    """The name of peft's configuration class."""
    takes_conv1d: ClassVar[bool] = True
    """Whether peft's layer can wrap the transposed matrices of GPT and GPT-2."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """The kinds of matrices that are adapted in every block."""

    @abstractmethod
    def settings(self, architecture: str) -> Mapping[str, Any]:
        """Return the arguments of peft's configuration other than `target_modules`."""

    def refusal(self, architecture: str) -> str | None:
        return super().refusal(architecture) or refuse_parts(self.kind, architecture, self.parts)

    def check_modules(self, modules: Sequence[tuple[str, Any]]) -> None:
        """Raise ConfigError if a matrix is too small for the method. The base class accepts all matrices."""

    def insert(self, network: Any, architecture: str, family: str, encode: Encode | None) -> None:
        """Replace the modules of `parts` with peft's layers, and freeze all other parameters except those of
        the task's head.
        """
        peft = _peft()
        self.check_modules(part_modules(network, architecture, self.parts))
        head = [parameter for name, parameter in network.named_parameters() if name.startswith("task_head.")]
        trained = [parameter for parameter in head if parameter.requires_grad]
        if not self.takes_conv1d:
            _transpose(network, architecture, self.parts)
        config = getattr(peft, self.config_name)(
            target_modules=pattern(architecture, self.parts), **self.settings(architecture)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            peft.inject_adapter_in_model(config, network)
        del network.peft_config
        for parameter in trained:
            parameter.requires_grad_(True)

    def merge(self, network: Any) -> None:
        """Merge the trained layers into the matrices of the base and remove them. Raises ConfigError if
        several of them share a matrix.
        """
        import torch
        from transformers.pytorch_utils import Conv1D

        layer_class = _peft().tuners.tuners_utils.BaseTunerLayer
        layers = [(name, module) for name, module in network.named_modules() if isinstance(module, layer_class)]
        if len({id(layer.get_base_layer().weight) for _, layer in layers}) < len(layers):
            raise ConfigError(
                f"model.tied_stacks, model.shared_parts: {self.kind} has trained different updates for layers that share a "
                f"matrix, which cannot hold both; use the run without merging"
            )
        for name, layer in layers:
            layer.merge()
            merged = layer.get_base_layer()
            if hasattr(merged, "transposed"):
                back = Conv1D(merged.out_features, merged.in_features)
                back.weight, back.bias = torch.nn.Parameter(merged.weight.detach().T.contiguous()), merged.bias
                merged = back
            _replace(network, name, merged)

    def peft_config(self, network: Any, architecture: str, family: str) -> Mapping[str, Any] | None:
        if not self.takes_conv1d and architecture in ("gpt", "gpt2"):
            return None
        config = getattr(_peft(), self.config_name)(
            target_modules=pattern(architecture, self.parts), inference_mode=True, **self.settings(architecture)
        )
        return {key: sorted(value) if isinstance(value, set) else value for key, value in config.to_dict().items()}

    def peft_state(self, network: Any, architecture: str) -> dict[str, Any]:
        return {
            f"base_model.model.{name.replace(f'.{_NAME}', '')}": parameter.detach()
            for name, parameter in network.named_parameters()
            if parameter.requires_grad and not name.startswith("task_head.")
        }

    def load_peft(self, network: Any, architecture: str, state: Mapping[str, Any]) -> None:
        set_tensors(self.peft_state(network, architecture), state)


def _peft() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import peft
    except ImportError as error:
        raise UserError(
            f"method.kind: it uses layers of peft, which cannot be imported ({error}); run {install_extra('finetune')}"
        ) from error
    return peft


def _transpose(network: Any, architecture: str, parts: Sequence[Part]) -> None:
    import torch
    from transformers.pytorch_utils import Conv1D

    for name, module in part_modules(network, architecture, parts):
        if isinstance(module, Conv1D):
            linear = torch.nn.Linear(*module.weight.shape, device="meta")
            linear.weight, linear.bias = torch.nn.Parameter(module.weight.detach().T.contiguous()), module.bias
            linear.transposed = True
            _replace(network, name, linear)


def _replace(network: Any, name: str, module: Any) -> None:
    parent, _, last = name.rpartition(".")
    setattr(network.get_submodule(parent), last, module)
