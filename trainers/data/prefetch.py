"""Make the batches of upcoming steps in threads. The number of threads changes neither the batches nor their
order.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def prefetch(items: Iterable[Item], make: Callable[[Item], Result], threads: int) -> Generator[Result]:
    """Yield `make(item)` for each of `items`, in order.

    With one or more threads, up to `threads` further results are made while the caller works on one; `make`
    must be thread-safe. `items` is read only in the caller's thread. Closing the iterator ends the threads.
    """
    if threads == 0:
        yield from map(make, items)
        return
    source, waiting = iter(items), deque[Future[Result]]()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="loader")
    failure: BaseException | None = None
    try:
        while True:
            while failure is None and len(waiting) <= threads:
                try:
                    waiting.append(pool.submit(make, next(source)))
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
            if not waiting:
                break
            yield waiting.popleft().result()
        if failure is not None:
            raise failure
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
