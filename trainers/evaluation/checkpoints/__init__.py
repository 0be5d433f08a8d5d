"""Scores of the checkpoints of runs: over steps, averaged over the last checkpoints, and compared between
runs.
"""
