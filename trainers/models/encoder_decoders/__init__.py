"""Encoder-decoders by name."""
