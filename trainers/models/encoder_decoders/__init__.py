"""Encoder-decoder architectures; each file is named after its architecture."""
