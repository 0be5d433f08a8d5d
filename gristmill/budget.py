"""The processor time of a process, by purpose.

All processor time, including that of other threads, is credited to the innermost `spend` block of the main
thread, so the times by purpose sum to the processor time of the process. Outside all blocks, it is credited
to `START` until the process takes its first account, and to `IDLE` from then on.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

START, IDLE = "start and imports", "between tasks"
READING, COMPOSING, WRITING, HASHING = "reading tables", "composing edits", "writing", "hashing"
MODELS, CHILDREN = "loading models", "extracting pages"


class _Account:
    """The account of this process. `since` is the processor time up to which it is settled, in seconds."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.purposes: list[str] = [START]
        self.since = 0.0
        self.children = 0.0

    def settle(self) -> None:
        """Credit the time since the last call to the current purpose."""
        now = time.process_time()
        purpose = self.purposes[-1]
        self.spent[purpose] = self.spent.get(purpose, 0.0) + now - self.since
        self.since = now


_account = _Account()


@contextmanager
def spend(purpose: str) -> Iterator[None]:
    """Credit the processor time of the block to a purpose, except that of blocks inside it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _account.settle()
    _account.purposes.append(purpose)
    try:
        yield
    finally:
        _account.settle()
        _account.purposes.pop()


def take_account() -> dict[str, float]:
    """Return the processor seconds since the last call, by purpose: those of this process, and those of its
    children that have ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    _account.settle()
    times = os.times()
    children = times.children_user + times.children_system
    spent = _account.spent
    if children > _account.children:
        spent[CHILDREN] = spent.get(CHILDREN, 0.0) + children - _account.children
    _account.spent, _account.children = {}, children
    _account.purposes[0] = IDLE
    return spent


def add_account(total: dict[str, float], spent: Mapping[str, float]) -> None:
    """Add an account to a total."""
    for purpose, seconds in spent.items():
        total[purpose] = total.get(purpose, 0.0) + seconds
