"""ELECTRA's discriminator, together with the generator whose replacements it detects (Clark et al., 2020,
section 3).
"""

from typing import Any

from transformers import ElectraForPreTraining


class ReplacedTokensModel(ElectraForPreTraining):
    """ELECTRA's discriminator, with its smaller masked language model as `generator`.

    The two models share the embeddings of tokens, positions and token types, and the norm of the embeddings,
    as in the authors' code.
    """

    generator: Any

    def add_generator(self, generator: Any) -> None:
        """Add the generator, an `ElectraForMaskedLM`, and make it use the embeddings of this model."""
        generator.electra.embeddings = self.electra.embeddings
        generator.generator_lm_head.weight = self.electra.embeddings.word_embeddings.weight
        self.generator = generator

    def discriminator(self) -> Any:
        """Return the discriminator alone as a stock model that shares the parameters of this network."""
        import torch

        with torch.device("meta"):
            alone = ElectraForPreTraining._from_config(self.config)
        alone.electra, alone.discriminator_predictions = self.electra, self.discriminator_predictions
        return alone

    def get_output_embeddings(self) -> Any:
        """Return the generator's output layer, or None if there is no generator."""
        return self.generator.generator_lm_head if hasattr(self, "generator") else None
