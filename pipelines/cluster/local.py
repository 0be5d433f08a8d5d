"""Run tasks in this process, with the same interface as on Ray."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gristmill.budget import add_account
from gristmill.errors import UserError
from gristmill.host import host
from pipelines.cluster.memory import Measured, measured
from pipelines.cluster.tasks import (
    ATTEMPTS,
    PAUSE_SECONDS,
    Progress,
    Usage,
    is_broken,
    no_progress,
    task_failure,
    title_of,
)

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class LocalCluster:
    """A cluster that runs every task in this process, one after another, for tests, debugging and use without
    Ray.

    `memory` is the memory limit of a task in bytes; None sets no limit. `peak_bytes` is the highest peak
    memory of a task since the caller last set it to 0.
    """

    progress: Progress = no_progress
    workers: int = 1
    memory: int | None = None
    peak_bytes: int = 0
    usage: Usage = field(default_factory=Usage)

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
    ) -> Iterator[tuple[int, Result]]:
        """Run the tasks one by one in this process. See `pipelines.contracts.stage.Cluster.map`."""
        title = title_of(function)
        self.progress(title, 0, len(items))
        for position, item in enumerate(items):
            done = self._attempt(function, item, position, label(item))
            self.peak_bytes = max(self.peak_bytes, done.peak)
            add_account(self.usage.spent, done.spent)
            yield position, done.result
            self.progress(title, position + 1, len(items))

    def _attempt(self, function: Callable[[Item], Result], item: Item, position: int, label: str) -> Measured[Result]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return measured(function, item, self.memory, self.usage.purpose)
            except UserError:
                raise
            except Exception as error:
                if attempt == ATTEMPTS:
                    raise task_failure(label, error, position, self.memory) from error
                host().sleep(PAUSE_SECONDS * attempt)
        raise AssertionError("unreachable")

    def fits(self, function: Callable[[Item], Any], item: Item, memory: int | None) -> bool:
        """Run a task once in this process, and return False if it runs out of `memory` bytes. Any other
        failure counts as fitting, except a UserError, which is raised.
        """
        try:
            measured(function, item, memory)
        except UserError:
            raise
        except Exception as error:
            return not is_broken(error)
        return True

    def close(self) -> None:
        """Do nothing, because there is nothing to release."""
