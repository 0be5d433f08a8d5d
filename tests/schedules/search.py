"""A search in several processes. Each process explores its share of the seeds in rounds, and the search may
end after any round.
"""

import itertools
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context

from tests.schedules import registry
from tests.schedules.agents.small_corpora import choose_shape
from tests.schedules.explore import Tally, explore

_ROUND_SECONDS = 20.0


def explore_for(
    name: str, first: int, step: int, count: int | None, seconds: float, shape: str = "whole"
) -> tuple[Tally, int, str]:
    """Explore the share of one process; return its tally, the next seed, and the story of a failure or an
    empty string.
    """
    seeds = itertools.count(first, step) if count is None else iter(range(first, first + step * count, step))
    choose_shape(shape)
    tally = Tally()
    found = explore(registry.scenario(name), seeds, tally, time.perf_counter() + seconds)
    return tally, first + step * tally.schedules, found.story() if found else ""


def search(
    name: str, seed: int, count: int | None, seconds: float, processes: int, shape: str = "whole"
) -> tuple[Tally, str]:
    """Explore in `processes` processes, for at most `seconds` and about `count` schedules. Return the total
    tally and the story of a failure, or an empty string.
    """
    until, total = time.perf_counter() + seconds, Tally()
    share = None if count is None else -(-count // processes)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:

        def begin(first: int, left: int | None) -> Future[tuple[Tally, int, str]]:
            length = max(0.0, min(_ROUND_SECONDS, until - time.perf_counter()))
            return pool.submit(explore_for, name, first, processes, left, length, shape)

        running = {begin(seed + number, share): share for number in range(processes)}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED)[0]:
                left = running.pop(future)
                tally, following, story = future.result()
                total.merge(tally)
                if story:
                    return total, story
                left = None if left is None else left - tally.schedules
                if left != 0 and time.perf_counter() < until:
                    running[begin(following, left)] = left
    return total, ""
