"""Learning-rate schedules: pure functions of the step, so that resuming needs no state.

With a peak rate of 1, W warm-up steps, N steps in total and the final fraction f, the rate of step s (from 0)
is (s + 1) / (W + 1) while s < W. Afterwards, with t = (s - W) / (N - 1 - W), it is

- constant: 1
- linear: 1 - (1 - f) t
- cosine (Loshchilov and Hutter, 2017): f + (1 - f) (1 + cos(pi t)) / 2
- wsd (Hu et al., 2024), where d is the decay fraction: 1 while t < 1 - d, then 1 - (1 - f) (t - (1 - d)) / d
- inverse_sqrt (Vaswani et al., 2017): max(f, sqrt((W + 1) / (s + 1)))
"""

import math

from trainers.config.job import Schedule


def _constant(_: float, __: int, ___: Schedule) -> float:
    return 1.0


def _linear(progress: float, _: int, schedule: Schedule) -> float:
    return 1.0 - (1.0 - schedule.final_fraction) * progress


def _cosine(progress: float, _: int, schedule: Schedule) -> float:
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * (1.0 + math.cos(math.pi * progress)) / 2


def _wsd(progress: float, _: int, schedule: Schedule) -> float:
    into_decay = max(0.0, progress - (1.0 - schedule.decay_fraction)) / schedule.decay_fraction
    return 1.0 - (1.0 - schedule.final_fraction) * into_decay


def _inverse_sqrt(_: float, step: int, schedule: Schedule) -> float:
    return max(schedule.final_fraction, math.sqrt((schedule.warmup_steps + 1) / (step + 1)))


# Functions of the progress after warm-up (0 to 1), the step and the schedule; they return the fraction of the
# peak rate.
SCHEDULES = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,
    "inverse_sqrt": _inverse_sqrt,
}


def rate_fraction(schedule: Schedule, step: int, steps: int) -> float:
    """Return the learning rate at step `step` (from 0) of a run of `steps` steps, as a fraction of the peak
    rate.
    """
    if step < schedule.warmup_steps:
        return (step + 1) / (schedule.warmup_steps + 1)
    progress = (step - schedule.warmup_steps) / max(1, steps - 1 - schedule.warmup_steps)
    return SCHEDULES[schedule.kind](min(1.0, progress), step, schedule)
