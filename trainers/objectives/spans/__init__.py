"""Objectives that replace spans of tokens, for encoder-decoders."""
