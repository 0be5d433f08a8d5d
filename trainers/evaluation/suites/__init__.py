"""Evaluation of language models on tasks and suites without training them on these."""
