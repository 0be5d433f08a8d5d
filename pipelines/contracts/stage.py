"""What a stage is: a frozen dataclass whose fields are its knobs, with what it reads and the columns it writes declared."""

import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa

from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Input, TableInput

Item = TypeVar("Item")
Result = TypeVar("Result")


@functools.cache
def library_version(distribution: str) -> str:
    """The installed version of a distribution, read once per process: a plan asks for those of every step."""
    return importlib.metadata.version(distribution)


def library_versions(*distributions: str) -> dict[str, str]:
    """Installed versions by distribution name, for `depends()`."""
    return {name: library_version(name) for name in distributions}


class Cluster(Protocol):
    """Where tasks run: in this process or on Ray. pipelines/cluster holds both."""

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
    ) -> Iterator[tuple[int, Result]]:
        """Apply a module-level function to every item; yields (position, result) as they finish, in any order.

        A task that fails three times raises UserError with `label(item)` and the reason.
        """
        ...


class ColumnTest(Protocol):
    """A test of the column `signal` by which a stage drops documents, of those that `when` admits."""

    @property
    def signal(self) -> str | None:
        """The column that is tested."""
        ...

    @property
    def when(self) -> Mapping[str, tuple[Any, ...]]:
        """The values of columns that documents have for which the test holds; empty for all documents."""
        ...

    @property
    def null(self) -> str | None:
        """`drop` or `keep` where the test says what a missing value does, else None."""
        ...

    def reason(self) -> str:
        """Its name, which `drop` holds for what it drops."""
        ...

    def drops_null(self) -> bool:
        """Whether it drops documents whose column has no value."""
        ...


class Stage:
    """What every stage declares."""

    version: ClassVar[int] = 1  # raise it whenever the same input would give another output
    list_knob: ClassVar[str | None] = None  # the knob that a list in a corpus file is, as in `filter: [...]`
    paths: ClassVar[tuple[str, ...]] = ()  # knobs that say where a file lies: `depends` holds its checksum instead
    places: ClassVar[tuple[str, ...]] = ()  # those of `paths` that are no local path, or may be a URL
    elects: ClassVar[bool] = False  # it keeps one document for those that it drops: no later step may drop that one
    makes_shards: ClassVar[bool] = False  # its facts are those of a shard set, see `shard_set_of`
    keeps_spans: ClassVar[bool] = False  # it leaves the only copy of a span in one document: no other step drops later

    def reads(self) -> tuple[Input, ...]:
        """What this stage is given; `id` always comes along. Only a corpus stage may read more than columns."""
        raise NotImplementedError

    def read_columns(self) -> tuple[TableInput, ...]:
        """Those of `reads()` that are columns of a document."""
        return tuple(each for each in self.reads() if isinstance(each, TableInput))

    def writes(self) -> pa.Schema:
        """The columns this stage adds; `drop` and `edits` have their reserved meaning.

        A stage whose edits may leave nothing of a document writes both. Then the rule `STEP.empty` drops the documents that
        it empties: for a part stage pipelines.building.annotate fills it in where the stage itself drops nothing.
        """
        return pa.schema([])

    def never_null(self) -> tuple[str, ...]:
        """The columns of `writes()` that have a value in every document that the stage is shown."""
        return ()

    def depends(self) -> dict[str, str]:
        """Versions of libraries and checksums of model files that the output depends on."""
        return {}

    def libraries(self) -> tuple[tuple[str, str], ...]:
        """(module, command that installs it) of what the stage imports beyond the required libraries."""
        return ()

    @property
    def reproducible(self) -> bool:
        """Whether the same input gives the same bytes. If not, steps that read the stage's files depend on
        their checksums.
        """
        return True

    def derived_steps(self) -> Mapping[str, "CorpusStage"]:
        """Stages that run before this one on the same sources, by the name under which `use` gets their facts."""
        return {}

    def tests(self) -> Sequence[ColumnTest]:
        """The tests by which it drops documents, in order; only of stages whose tests are data."""
        return ()

    def check_types(self, types: pa.Schema) -> None:
        """Raise ConfigError for a column of `read_columns()` whose type it cannot use; `types` holds theirs."""

    def notice(self) -> str:
        """What a person should know before the stage runs, such as an unusual cost; empty where there is nothing."""
        return ""

    def check(self) -> None:
        """Raise ValueError("knob: what is wrong") for values out of range."""


class PartStage(Stage):
    """A stage that annotates one part at a time. Pure: the same rows give the same columns, in any company."""

    def gpus(self) -> float:
        """GPUs that a task with this stage reserves on Ray; a fraction shares one."""
        return 0

    def setup(self) -> None:
        """Called once per worker process before the first `annotate`: load models here."""

    def use(self, facts: Mapping[str, Any]) -> "PartStage":
        """The stage that annotates, given the facts of its `derived_steps()`. Only for stages that have some."""
        raise NotImplementedError

    def annotate(self, docs: pa.Table) -> pa.Table:
        """The columns of `writes()` for the rows of `docs`, same number, same order. `docs` holds `id` and `read_columns()`."""
        raise NotImplementedError


class CorpusStage(Stage):
    """A stage with barriers of its own: clustering, training, materialising."""

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Do the work, commit files through `out`; what is returned is the `facts` of the step's manifest."""
        raise NotImplementedError


def in_order(results: Iterable[tuple[int, Result]], count: int) -> list[Result]:
    """Results of `Cluster.map` in the order of its items."""
    ordered: dict[int, Result] = dict(results)
    assert len(ordered) == count, f"{len(ordered)} results for {count} tasks"
    return [ordered[position] for position in range(count)]


def gather(
    cluster: Cluster, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
) -> list[Result]:
    """Results of a function over all items, in their order; errors as `Cluster.map`."""
    return in_order(cluster.map(function, items, label), len(items))
