"""Methods of fine-tuning: what is trained of a base, and what is added to it.

To add one: a file with its dataclass in one of the folders, and its name in Method.
"""

from trainers.adapters.weights.full import Full

Method = Full

__all__ = ["Full", "Method"]
