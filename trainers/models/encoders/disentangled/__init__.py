"""The layers, the enhanced mask decoder and the discriminator of the versions of DeBERTa."""
