"""Recurrent architectures by name, their networks as `transformers` models, and the sequences that their layers read."""
