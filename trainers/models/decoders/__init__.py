"""Decoders by name."""
