"""Objectives: from a model and a packed batch to the loss of every target. To add one: a file here and a line in
OBJECTIVES.
"""

from collections.abc import Callable
from typing import Any

from trainers.data import Batch
from trainers.objectives.causal import causal

# From a model (or engine) and a batch to nats [rows, length], 0 where there is no target.
OBJECTIVES: dict[str, Callable[[Any, Batch], Any]] = {"causal": causal}
