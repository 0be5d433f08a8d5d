"""Scores of the checkpoints of a run. Missing scores are measured, and all are shown as curves over steps."""
