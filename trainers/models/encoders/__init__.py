"""Encoder architectures, in files named after them, and the parts of their models that only pretraining uses."""
