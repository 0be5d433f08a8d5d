"""Learning-rate schedules: pure functions of the step, so that resuming needs no state."""

import math
from collections.abc import Callable

from trainers.config import Schedule


def _constant(_: float, __: Schedule) -> float:
    return 1.0


def _linear(progress: float, schedule: Schedule) -> float:
    return 1.0 - (1.0 - schedule.final_fraction) * progress


def _cosine(progress: float, schedule: Schedule) -> float:
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * (1.0 + math.cos(math.pi * progress)) / 2


def _wsd(progress: float, schedule: Schedule) -> float:
    into_decay = max(0.0, progress - (1.0 - schedule.decay_fraction)) / schedule.decay_fraction
    return 1.0 - (1.0 - schedule.final_fraction) * into_decay


# From the progress after warm-up (0 to 1) to the fraction of the peak learning rate.
SCHEDULES: dict[str, Callable[[float, Schedule], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,
}


def rate_fraction(schedule: Schedule, step: int, steps: int) -> float:
    """The fraction of the peak learning rate at step `step` (the first is 0) of `steps`.

    Warm-up rises from 1 / (warmup_steps + 1); the last step is at `final_fraction` for all kinds that fall.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    progress = (step - schedule.warmup_steps) / max(1, steps - 1 - schedule.warmup_steps)
    return SCHEDULES[schedule.kind](min(1.0, progress), schedule)
