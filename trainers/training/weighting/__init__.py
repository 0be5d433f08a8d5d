"""Weights of domains in the loss that change from step to step, one method per file."""
