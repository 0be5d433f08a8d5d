"""Recurrent architectures, in files named after them, and their networks as `transformers` models."""
