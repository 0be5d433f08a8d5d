"""Methods that train weights of the base, the task's head alone, or matrices and vectors that modify the
base's weights.
"""
