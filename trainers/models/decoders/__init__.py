"""Decoder architectures; each file is named after its architecture."""
