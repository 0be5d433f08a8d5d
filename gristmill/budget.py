"""Account for the processor time of this process by purpose.

All processor time of the process, including that of other threads, is credited to the purpose of the
innermost `spend` block of the main thread. Outside all blocks, it is credited to `START` until the first call
of `take_account`, and to `IDLE` after it. The time of ended child processes is credited to `CHILDREN`.
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
    """The processor seconds of this process by purpose (`spent`). `since` is the total of the process at the
    last call of `settle`, and `children` that of its ended child processes at the last call of
    `take_account`.
    """

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.purposes: list[str] = [START]
        self.since = 0.0
        self.children = 0.0

    def settle(self) -> None:
        now = time.process_time()
        purpose = self.purposes[-1]
        self.spent[purpose] = self.spent.get(purpose, 0.0) + now - self.since
        self.since = now


_account = _Account()


@contextmanager
def spend(purpose: str) -> Iterator[None]:
    """While the block runs, credit the processor time of the process to `purpose`; a nested block takes
    precedence. Outside the main thread, this has no effect.
    """
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
    """Return the processor seconds credited to each purpose since the last call or, on the first call, since
    the process started. Outside the main thread, return an empty dictionary.
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
    """Add an account's seconds per purpose to `total`, in place."""
    for purpose, seconds in spent.items():
        total[purpose] = total.get(purpose, 0.0) + seconds
