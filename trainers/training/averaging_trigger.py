"""Decide when averaged SGD begins to average the weights (`optimizer.kind: asgd`)."""

import math
import sys
from collections.abc import Sequence

from trainers.engine.engine import Engine
from trainers.runs.checkpoint import Averaging


def is_non_monotone(losses: Sequence[float], loss: float, interval: int) -> bool:
    """Return whether the validation loss `loss` exceeds the lowest of the earlier `losses` (oldest first),
    ignoring the last `interval` of them (Merity et al., 2017, algorithm 1). False if there are at most
    `interval` earlier losses.
    """
    return len(losses) > interval and loss > min(losses[:-interval])


class AveragingTrigger:
    """Begins averaging the weights at the first validation for which `is_non_monotone` is true."""

    def __init__(self, interval: int, engine: Engine) -> None:
        self._interval, self._engine = interval, engine
        self._losses: tuple[float, ...] = ()

    @property
    def state(self) -> Averaging:
        """The state that a checkpoint records."""
        return Averaging(self._losses, self._engine.averaged)

    def resume(self, state: Averaging | None) -> None:
        """Continue from the state that a checkpoint records. The engine must have restored its averages
        before.
        """
        state = state or Averaging()
        self._losses = state.losses
        if state.averaged is not None:
            self._engine.begin_averaging(state.averaged)

    def observe(self, loss: float) -> bool:
        """Take a validation loss, and begin averaging if it is due. Returns whether averaging begins. Every
        worker must call this.
        """
        if self._engine.averaged is not None:
            return False
        loss = float(loss) if math.isfinite(loss) else sys.float_info.max
        begins = bool(self._engine.broadcast(int(is_non_monotone(self._losses, loss, self._interval))))
        self._losses = (*self._losses, loss)
        if begins:
            self._engine.begin_averaging()
        return begins
