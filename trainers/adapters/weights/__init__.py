"""Methods that train weights of the base, only the task's head, or matrices and vectors that modify the
base's weights.
"""
