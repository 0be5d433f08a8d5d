"""A fixture that records what all loggers log, for tests which check that nothing sensitive is logged."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    lines: list[str] = []
    monkeypatch.setattr(
        logging.Logger, "callHandlers", lambda _, record: lines.append(logging.Formatter().format(record))
    )
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.DEBUG)
    yield lines
    root.setLevel(level)
