"""Evaluate language models on tasks and suites without fine-tuning."""
