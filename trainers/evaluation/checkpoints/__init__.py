"""Scores of the checkpoints of a run. Missing scores are measured, and all scores are shown as curves over
steps.
"""
