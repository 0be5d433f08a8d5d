"""The networks of recurrent architectures as `transformers` models, and the sequences that their layers read."""
