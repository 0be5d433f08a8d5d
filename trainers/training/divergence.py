"""Divergence: the error that ends a run whose loss or gradients are not finite for too many steps in a row,
and advice for the user.
"""

from pathlib import Path

from gristmill.errors import UserError


class DivergedError(UserError):
    """Raised when the loss or gradients were not finite in more than `optimizer.max_skipped_in_row`
    consecutive steps.
    """


def remedy(run: Path, step: int, fine_tunes: bool) -> str:
    """Return advice for the user of a run that diverged at step `step`."""
    if fine_tunes:
        return "Begin another run with a lower optimizer.learning_rate or a longer schedule.warmup_fraction"
    return (
        f"`python -m trainers blame {run} --step {step}` names its documents, "
        f"`pretrain --exclude-documents FILE` continues without the loss of some; if the documents are not the "
        f"cause, begin another run with a lower optimizer.learning_rate"
    )
