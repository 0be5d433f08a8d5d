"""Recurrent models: our own, because `transformers` has none."""
