"""Load tasks and suites: shipped ones by name, and your own task files by path."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gristmill.config import load_yaml, near_match, override, parse
from gristmill.errors import ConfigError
from gristmill.storage.parsing import parse_local
from trainers.tasks.schema.task import Task

_SHIPPED = Path(__file__).parent / "shipped"
_SUITES = _SHIPPED / "suites"


@dataclass(frozen=True)
class SuiteColumn:
    """A column of a suite: one split of a task."""

    task: str
    split: str = "dev"


@dataclass(frozen=True)
class Suite:
    """A suite of tasks, which is scored as a whole. `suite_score` defines the score of a fine-tuning suite.
    In a suite for `evaluate`, a column's score is the main score of its task or, with `centred`, (score -
    chance) / (1 - chance). `limit` is the maximum number of items of each split or subtask. `version` is
    raised with every change that affects the mean.
    """

    columns: tuple[SuiteColumn, ...]
    name: str = ""
    about: str = ""
    source: str = ""
    centred: bool = False
    shots: tuple[int, ...] = ()
    limit: int | None = None
    version: int = 1

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the suite's tasks, without duplicates, in the order of the columns."""
        return tuple(dict.fromkeys(column.task for column in self.columns))


def shipped_tasks() -> tuple[str, ...]:
    """Return the names of the shipped tasks, sorted."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.yaml")))


def shipped_suites() -> tuple[str, ...]:
    """Return the names of the shipped suites, sorted."""
    return tuple(sorted(path.stem for path in _SUITES.glob("*.yaml")))


def is_suite(name: str) -> bool:
    """Return whether a shipped suite has this name."""
    return name in shipped_suites()


def load_task(name: str, assignments: Sequence[str] = ()) -> Task:
    """Load a shipped task by its name, or a task from a YAML file. `assignments`, of the form `a.b=value`,
    override its fields. Raises ConfigError for an unknown name and for an invalid file.
    """
    if name in shipped_tasks():
        path, own = _SHIPPED / f"{name}.yaml", {}
    elif name.endswith((".yaml", ".yml")) or "/" in name:
        path = Path(parse_local(name, "task"))
        own = {"folder": str(path.absolute().parent)}
    else:
        near = near_match(name, [*shipped_tasks(), *shipped_suites()])
        raise ConfigError(f"task: got {name!r}, expected a shipped task or the path of a YAML file{near}")
    data = override(load_yaml(path), assignments)
    task: Task = parse(Task, {"name": path.stem, **own, **data}, str(path) if own else name)
    return task


def load_suite(name: str) -> Suite:
    """Load a shipped suite. Raises ConfigError for an unknown name."""
    if not is_suite(name):
        raise ConfigError(f"suite: got {name!r}{near_match(name, shipped_suites())}")
    suite: Suite = parse(Suite, {"name": name, **load_yaml(_SUITES / f"{name}.yaml")}, name)
    return suite
