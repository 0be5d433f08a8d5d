"""Limit linear algebra to one thread while laws are fitted.

Their matrices are small: several threads gain little on an idle machine, and on a busy one they wait for each other in
a loop. A fit to 512 runs that takes a second then takes minutes.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def single_threaded() -> Iterator[None]:
    """Limit the BLAS of numpy and that of scipy to one thread; as a context or as a decorator."""
    import scipy.linalg  # noqa: F401  # loads its BLAS, which a limit set before would not reach
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, "blas"):
        yield
