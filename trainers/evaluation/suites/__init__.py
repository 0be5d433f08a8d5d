"""Evaluate language models on tasks and suites without training on them."""
