"""A discriminator with the generator whose tokens it tells from those of the text (Clark et al., 2020, section 3)."""

from typing import Any

from transformers import ElectraForPreTraining


class ReplacedTokensModel(ElectraForPreTraining):
    """ELECTRA's discriminator, and as `generator` its smaller masked language model.

    Both have the same embeddings: of tokens, positions and token types, and their norm, as in the authors' code. A matrix
    of each maps them to its own width.
    """

    generator: Any

    def add_generator(self, generator: Any) -> None:
        """Add the generator, an `ElectraForMaskedLM`, and make it use the embeddings of this model."""
        generator.electra.embeddings = self.electra.embeddings
        generator.generator_lm_head.weight = self.electra.embeddings.word_embeddings.weight
        self.generator = generator

    def discriminator(self) -> Any:
        """Return the discriminator alone as a stock model, which shares its parameters."""
        import torch

        with torch.device("meta"):
            alone = ElectraForPreTraining._from_config(self.config)
        alone.electra, alone.discriminator_predictions = self.electra, self.discriminator_predictions
        return alone

    def get_output_embeddings(self) -> Any:
        """Return the output layer, which is the generator's."""
        return self.generator.generator_lm_head if hasattr(self, "generator") else None
