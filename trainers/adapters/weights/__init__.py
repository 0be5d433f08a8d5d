"""Methods of fine-tuning. They train the base's own weights, only the task's head, or matrices and vectors
that modify the base's weights.
"""
