"""Work for coming steps in the background: what is made and in which order does not depend on it."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Drawn = TypeVar("Drawn")
Made = TypeVar("Made")


def ahead(drawn: Iterable[Drawn], make: Callable[[Drawn], Made], threads: int) -> Generator[Made]:
    """`make(d)` for every d of `drawn`, in their order. With `threads` the next ones (one more than threads) are made while
    the caller works on one; `drawn` is only read in the caller's thread. With 0 each is made when it is asked for.

    An exception of `make` or of `drawn` is raised where the result would have come. Closing the iterator ends the threads.
    """
    if threads == 0:
        yield from map(make, drawn)
        return
    source, waiting = iter(drawn), deque[Future[Made]]()
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
