"""What a log line reports about the steps since the previous log line."""

import time

import numpy as np

from trainers.engine.engine import Totals


class Interval:
    """The values for the next log line: losses, tokens, operations and seconds summed over the steps since
    the last line, and the gradient norm and learning rate of the latest step.
    """

    def __init__(self, sums: np.ndarray) -> None:
        self.sums = sums
        self.norm, self.rate = 0.0, 0.0
        self.tokens, self.flops = 0, np.zeros(3)  # operations by term (`engine.hardware.mfu`)
        self.waited = 0.0  # seconds spent waiting for data
        self.seconds, self._began = 1e-9, time.perf_counter()

    def add(self, totals: Totals, norm: float, rate: float, tokens: int, flops: np.ndarray) -> None:
        """Add a step: its sums, tokens and operations by term, and the time since the previous step. Its
        gradient norm and learning rate replace those of the previous step.
        """
        self.norm, self.rate = norm, rate
        self.sums += totals.sums
        self.tokens, self.flops = self.tokens + tokens, self.flops + flops
        now = time.perf_counter()
        self.seconds, self._began = self.seconds + now - self._began, now

    def restart_clock(self) -> None:
        """Restart the clock, so that the time since the last step does not count."""
        self._began = time.perf_counter()
