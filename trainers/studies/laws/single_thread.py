"""Limit linear algebra to one thread while laws are fitted.

On a busy machine, several threads spin while they wait for each other: a fit to 512 runs that takes a second
with one thread then takes minutes.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit the BLAS of numpy and scipy to one thread. Use it as a context manager or as a decorator."""
    import scipy.linalg  # noqa: F401  # loads its BLAS, which a limit set before would not reach
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield
