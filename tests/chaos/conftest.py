"""What breaks builds and runs on purpose: `make chaos` runs all of it and writes docs/reliability.md; the ordinary tests run
a short version.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.outcome import Outcome


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Whether every fault is injected (`make chaos`), not a short sample of them."""
    return pytestconfig.getoption("--chaos") is not None


@pytest.fixture(scope="session")
def injected(pytestconfig: pytest.Config) -> Callable[[str, str, Outcome, float], None]:
    """`injected(group, fault, outcome, seconds)`: assert that a fault did no harm, and note it for docs/reliability.md.

    `group` is a section of the page, `fault` one row of its table: what was broken, and where, in words for its readers.
    Call it once for each injection. `seconds` from the fault (or from the next start, where that is what recovers) to the
    finished result.
    """
    file: Path | None = pytestconfig.getoption("--chaos")

    def note(group: str, fault: str, outcome: Outcome, seconds: float) -> None:
        if file is not None:
            row = {"group": group, "fault": fault, **outcome._asdict(), "seconds": round(seconds, 2)}
            with open(file, "a") as lines:
                lines.write(json.dumps(row) + "\n")
        assert outcome == Outcome(0, 0, True), f"{group}: {fault}: {outcome}"

    return note
