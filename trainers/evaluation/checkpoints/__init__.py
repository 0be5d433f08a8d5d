"""The scores of a run's checkpoints: what is missing is measured, and all of it becomes curves."""
