"""Tasks that allocate memory, or kill their process, on purpose."""

import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

MB = 1_000_000


class Meal(NamedTuple):
    """An order for `eat`.

    `how` names the way to allocate or die, `size` is in bytes, and `plates` is a directory that gets a file
    for each attempt.
    """

    how: str
    size: int
    plates: Path


def eat(meal: Meal) -> int:
    """Allocate memory (through Python, numpy, Arrow or Rust), sleep, or die of a signal."""
    (meal.plates / f"{meal.how}-{time.time_ns()}").touch()
    if meal.how in ("killed", "abort"):
        os.kill(os.getpid(), signal.SIGKILL if meal.how == "killed" else signal.SIGABRT)
    return _WAYS[meal.how](meal.size)


def _bytes(size: int) -> int:
    return len(b"\xff" * size)


def _pieces(size: int) -> int:
    return 1000 * len([bytes(1000 - 33) for _ in range(size // 1000)])


def _numpy(size: int) -> int:
    import numpy as np

    return np.ones(size, np.uint8).nbytes


def _arrow(size: int) -> int:
    import pyarrow as pa

    return pa.allocate_buffer(size).size


def _sleep(size: int) -> int:
    time.sleep(60)
    return size


def _rust(size: int) -> int:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"a": 0, "u": 1}, unk_token="u"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return len(words.encode("a " * (size // 100)).ids) * 100


_WAYS = {"bytes": _bytes, "pieces": _pieces, "numpy": _numpy, "arrow": _arrow, "rust": _rust, "sleep": _sleep}
