"""Recurrent architectures, in files named after them, their networks as `transformers` models, and the
sequences that their layers read.
"""
