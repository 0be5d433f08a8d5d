"""Fixtures for tests that break builds and runs on purpose.

`make chaos` runs these tests in full and writes docs/reliability.md; the ordinary test suite runs a short
version.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.harness.faults import compiled, server
from tests.chaos.harness.outcome import Outcome
from tests.chaos.harness.small_corpus import Small, reference, write_config, write_sources


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Return whether every fault is injected (`make chaos`) or only a small sample."""
    return pytestconfig.getoption("--chaos") is not None


@pytest.fixture(scope="session")
def injected(pytestconfig: pytest.Config) -> Callable[[str, str, Outcome, float], None]:
    """Return `injected(group, fault, outcome, seconds)`, which asserts that a fault did no harm and records
    it.

    The record is for docs/reliability.md: `group` is a section of the page, and `fault` is one row of its
    table, which says for readers what was broken and where. Call it once for each injection. `seconds` are
    counted from the fault to the finished result, or from the restart if only a restart recovers.
    """
    file: Path | None = pytestconfig.getoption("--chaos")

    def note(group: str, fault: str, outcome: Outcome, seconds: float) -> None:
        if file is not None:
            row = {"group": group, "fault": fault, **outcome._asdict(), "seconds": round(seconds, 2)}
            with open(file, "a") as lines:
                lines.write(json.dumps(row) + "\n")
        assert outcome == Outcome(0, 0, True), f"{group}: {fault}: {outcome}"

    return note


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    """Yield a corpus file, its sources, a process that builds it with injected storage faults, and the
    undisturbed result.
    """
    place = tmp_path_factory.mktemp("small")
    (place / "server").mkdir()
    library = compiled(place / "server")
    if library is None:
        pytest.skip("calls of the system are made to fail by a library in C, and there is no compiler here")
    with server(place / "server", library) as found:
        write_sources(place / "raw")
        config = write_config(place / "small.yaml", str(place / "raw"))
        yield Small(found, config, place / "raw", reference(found, config, place / "reference"))
