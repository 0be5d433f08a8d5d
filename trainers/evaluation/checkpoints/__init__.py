"""Scores of the checkpoints of runs. Missing scores are measured. All scores are shown over steps, averaged
over the last checkpoints, and compared between runs.
"""
