"""DeBERTaV3's discriminator, which detects the tokens that a generator has replaced (He et al., 2023, section
3).
"""

from pathlib import Path
from typing import Any

import torch
from transformers import DebertaV2Model
from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2PreTrainedModel

from trainers.models.encoders.disentangled.disentangled_embedding import DisentangledEmbedding


class DetectionHead(torch.nn.Module):
    """A head that computes, for each token, the logit that the token was replaced. As in the authors' code,
    it reads the sum of the state of the token and the state of the first token of its document.
    """

    def __init__(self, configuration: Any) -> None:
        super().__init__()
        width = configuration.hidden_size
        self.norm = torch.nn.LayerNorm(width, eps=configuration.layer_norm_eps)
        self.dense, self.output = torch.nn.Linear(width, width), torch.nn.Linear(width, 1)

    def forward(self, states: Any, positions: Any) -> Any:
        """Return logits [rows, length] for states [rows, length, width]. `positions`, int64 [rows, length],
        count from 0 in every document.
        """
        first = torch.arange(positions.shape[1], device=positions.device) - positions
        leading = states.gather(1, first[..., None].expand_as(states))
        return self.output(torch.nn.functional.gelu(self.dense(self.norm(leading + states))))[..., 0]


class DebertaDiscriminator(DebertaV2PreTrainedModel):
    """A stock DeBERTa with a head that detects replaced tokens and, in training, the `generator` that
    replaces them.
    """

    generator: Any

    def __init__(self, configuration: Any) -> None:
        super().__init__(configuration)
        self.deberta = DebertaV2Model(configuration)
        self.mask_predictions = DetectionHead(configuration)  # transformers ignores a head of this name
        self.post_init()

    def add_generator(self, generator: Any, disentangled: bool) -> None:
        """Add the generator, a `DebertaV2ForMaskedLM` of the same width. The discriminator then uses the
        generator's token embeddings, through a `DisentangledEmbedding` if `disentangled`.
        """
        base = generator.deberta.embeddings.word_embeddings
        self.deberta.embeddings.word_embeddings = DisentangledEmbedding(base) if disentangled else base
        self.generator = generator

    def alone(self) -> "DebertaDiscriminator":
        """Return a copy of the discriminator without its generator, with its own table of token embeddings,
        in evaluation mode.
        """
        with torch.random.fork_rng(devices=[]):
            copied = DebertaDiscriminator._from_config(self.config)
        weights = {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("generator.")}
        words = self.deberta.embeddings.word_embeddings
        if isinstance(words, DisentangledEmbedding):
            prefix = "deberta.embeddings.word_embeddings"
            for part in ("base", "delta"):
                del weights[f"{prefix}.{part}.weight"]
            weights[f"{prefix}.weight"] = words.merged()
        copied.load_state_dict(weights)
        return copied.eval()

    def adopt(self, discriminator: "DebertaDiscriminator") -> None:
        """Load the weights of a discriminator returned by `alone`. The weights of the generator must already
        be loaded, because the token embeddings depend on them.
        """
        words, weights = self.deberta.embeddings.word_embeddings, discriminator.state_dict()
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if not name.startswith("generator.") and ".word_embeddings." not in name:
                    parameter.copy_(weights[name])
            if isinstance(words, DisentangledEmbedding):
                words.delta.weight.copy_(weights["deberta.embeddings.word_embeddings.weight"] - words.base.weight)

    def save_pretrained(self, directory: str | Path, **options: Any) -> None:
        """Write a model without a generator, as `alone` returns it, to a directory from which `transformers`
        loads its encoder as a `DebertaV2Model`.
        """
        super().save_pretrained(directory, **options)
        self.config.architectures = ["DebertaV2Model"]
        self.config.save_pretrained(directory)

    def get_input_embeddings(self) -> Any:
        """Return the token embeddings: the generator's, if there is a generator."""
        return (self.generator if hasattr(self, "generator") else self.deberta).get_input_embeddings()

    def get_output_embeddings(self) -> Any:
        """Return the generator's output layer, or None if there is no generator."""
        return self.generator.get_output_embeddings() if hasattr(self, "generator") else None
