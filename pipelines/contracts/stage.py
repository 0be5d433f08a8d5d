"""Stages, and the interface of the clusters that run their tasks. A stage is a frozen dataclass whose fields
are its knobs; it declares what it reads and the columns it writes.
"""

import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa

from gristmill.errors import UserError
from pipelines.contracts.manifest import StepOutput
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import Input, TableInput

Item = TypeVar("Item")
Result = TypeVar("Result")


@functools.cache
def library_version(distribution: str) -> str:
    """Return the installed version of a distribution."""
    return importlib.metadata.version(distribution)


def library_versions(*distributions: str) -> dict[str, str]:
    """Return installed versions by distribution name."""
    return {name: library_version(name) for name in distributions}


class Cluster(Protocol):
    """An executor of tasks. The implementations in pipelines/cluster run them in the current process or on
    Ray.
    """

    def map(
        self, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
    ) -> Iterator[tuple[int, Result]]:
        """Apply a module-level function to every item. Yield (position, result) as the tasks finish, in any
        order.

        A UserError from a task is raised at once. If a task fails three times with other errors, a UserError
        with `label(item)` and the reason is raised.
        """
        ...


class ColumnTest(Protocol):
    """A test of the column `signal` by which a stage drops documents. `when` limits the test to some of the
    documents.
    """

    @property
    def signal(self) -> str | None:
        """The column to test; never None in the tests that `Stage.tests` returns."""
        ...

    @property
    def when(self) -> Mapping[str, tuple[Any, ...]]:
        """The allowed values, by column. Only documents with an allowed value in each of these columns are
        tested; if empty, all documents are.
        """
        ...

    @property
    def null(self) -> str | None:
        """What the test does with a document without a value: `drop`, `keep`, or None if this is not
        specified.
        """
        ...

    def reason(self) -> str:
        """Return the name of the test, which is written to the column `drop` for each document that it drops."""
        ...

    def drops_null(self) -> bool:
        """Return whether the test drops documents in which the column has no value."""
        ...


class Stage:
    """The base class of `PartStage` and `CorpusStage`: what a stage declares about itself."""

    version: ClassVar[int] = 1  # increase whenever the same input would give a different output
    list_knob: ClassVar[str | None] = None  # the knob that a bare list in a corpus file sets, as in `filter: [...]`
    paths: ClassVar[tuple[str, ...]] = ()  # knobs that are file paths; `depends` identifies the files by checksum
    places: ClassVar[tuple[str, ...]] = ()  # the knobs in `paths` that need not be a local path, or may be a URL
    elects: ClassVar[bool] = False  # it keeps one document per cluster; no later step may drop that document
    makes_shards: ClassVar[bool] = False  # its facts describe a shard set, see `shard_set_of`
    keeps_spans: ClassVar[bool] = (
        False  # it leaves the only copy of a span in one document; no later step may drop documents
    )

    @property
    def drops_only_emptied(self) -> bool:
        """Whether the stage drops only documents that it empties by removing text that other documents keep."""
        return False

    @property
    def extrapolates(self) -> bool:
        """Whether a random sample can estimate the effect of the stage on the whole corpus. This is so if the
        output for a document hardly depends on how many other documents there are.
        """
        return True

    def reads(self) -> tuple[Input, ...]:
        """Return the inputs of the stage, except `id`, which every stage receives. A part stage may read only
        those that `read_columns` returns.
        """
        raise NotImplementedError

    def read_columns(self) -> tuple[TableInput, ...]:
        """Return the inputs in `reads()` that are columns of the documents: texts, drops and other columns."""
        return tuple(each for each in self.reads() if isinstance(each, TableInput))

    def writes(self) -> pa.Schema:
        """Return the columns this stage adds; `drop` and `edits` have their reserved meaning.

        A stage whose edits may empty a document writes both columns, and drops emptied documents by a rule
        whose name ends in `.empty`. For a part stage, pipelines.building.annotate drops them.
        """
        return pa.schema([])

    def never_null(self) -> tuple[str, ...]:
        """Return the columns of `writes()` that have a value for every document that the stage receives."""
        return ()

    def depends(self) -> dict[str, str]:
        """Return what the output depends on outside the stage, keyed by name, such as the versions of
        libraries, the checksums of model files and the fingerprints of other corpora.
        """
        return {}

    def libraries(self) -> tuple[tuple[str, str], ...]:
        """Return (module, command that installs it) for each optional library that the stage imports."""
        return ()

    @property
    def reproducible(self) -> bool:
        """Whether the same input gives the same bytes. If not, the fingerprints of steps that read the
        stage's files also cover the checksums of these files.
        """
        return True

    def derived_steps(self) -> Mapping[str, "CorpusStage"]:
        """Return, by name, the corpus stages that must run before this stage on the same sources.

        A part stage receives their facts, by name, in `use`. A corpus stage finds their directories, by name,
        in the `inputs` of its StepOutput.
        """
        return {}

    def tests(self) -> Sequence[ColumnTest]:
        """Return the column tests by which the stage drops documents, in the order in which they are applied;
        empty if there are none.
        """
        return ()

    def check_types(self, types: pa.Schema) -> None:
        """Raise ConfigError if the stage cannot use the type of one of its `read_columns()`. `types` gives
        the types by column.
        """

    def accepts(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Return, by column, the definitions (`definition_of` in contracts/columns.py) that the stage
        accepts. Columns that are not listed may have any definition.
        """
        return {}

    def notice(self) -> str:
        """Return a note for users to see before the stage runs, such as a warning of unusual cost; empty if
        there is none.
        """
        return ""

    def check(self) -> None:
        """Raise ValueError, with a message such as `knob: what is wrong`, if a knob has an invalid value."""


class PartStage(Stage):
    """A stage that computes columns for one part at a time. Its values for a document must not depend on
    which other documents `annotate` receives.
    """

    def gpus(self) -> float:
        """Return the number of GPUs that a task reserves on Ray to run this stage. A fraction lets several
        tasks share one GPU.
        """
        return 0

    def setup(self) -> None:
        """Load models. Called once per worker process, before the first `annotate`."""

    def use(self, facts: Mapping[str, Any]) -> "PartStage":
        """Return a stage that has the facts of the derived steps. `annotate` is then called on that stage
        instead of this one. `facts` maps each name in `derived_steps()` to the facts of that step. Stages
        without derived steps need not implement this method.
        """
        raise NotImplementedError

    def annotate(self, docs: pa.Table) -> pa.Table:
        """Return a table with the columns of `writes()`, one row for each row of `docs`, in the same order.
        `docs` has the columns `id` and `read_columns()`.
        """
        raise NotImplementedError


class StageOutputError(Exception):
    """Raised if the output of a part stage does not fit its documents. The message quotes no text."""


def annotate_checked(stage: PartStage, docs: pa.Table) -> pa.Table:
    """Run `stage.annotate`, and return the columns of `writes()`, cast to their declared types.

    Raises UserError if the stage returns anything but a table with exactly these columns in this order, and
    StageOutputError if it returns more or fewer rows than documents.
    """
    table, schema = stage.annotate(docs), stage.writes()
    if not isinstance(table, pa.Table) or table.column_names != schema.names:
        columns = ", ".join(table.column_names) if isinstance(table, pa.Table) else f"a {type(table).__name__}"
        raise UserError(
            f"{type(stage).__name__}.annotate: returned {columns}, expected a table with the columns of `writes()`: "
            f"{', '.join(schema.names)}"
        )
    if table.num_rows != docs.num_rows:
        raise StageOutputError(f"{table.num_rows} rows for {docs.num_rows} documents, expected one for each")
    return table.cast(schema)


class CorpusStage(Stage):
    """A stage that receives all parts together, for example to cluster documents, train a tokenizer or write
    shards. It distributes its own tasks.
    """

    @property
    def extrapolates(self) -> bool:
        """Whether a random sample can estimate the effect of the stage on the whole corpus. By default this
        is false for a stage that writes columns, because such a stage may compare documents with each other.
        """
        return not self.writes().names

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        """Run the stage, commit its files through `out`, and return the `facts` of the step's manifest.

        A stage that writes columns commits one unit for every part, named `part.unit`. The first file of this
        unit is `parts/UNIT.arrow`, made by `write_table` from a table with the schema `writes()` and a row
        for each document of the part. The counts of the unit are `count_drops(table).facts()`. Intermediate
        results are committed as units with other names, and their files are in `work/`.

        A task should return at once if `out.receipt(unit)` shows that an earlier build has finished the unit.
        The content of files must not depend on how the work is divided among tasks.
        """
        raise NotImplementedError


def in_order(results: Iterable[tuple[int, Result]], count: int) -> list[Result]:
    """Return the results of `Cluster.map` in the order of its items. `count` is the number of items."""
    ordered: dict[int, Result] = dict(results)
    assert len(ordered) == count, f"{len(ordered)} results for {count} tasks"
    return [ordered[position] for position in range(count)]


def gather(
    cluster: Cluster, function: Callable[[Item], Result], items: Sequence[Item], label: Callable[[Item], str]
) -> list[Result]:
    """Apply a function to all items and return the results in order; raises as `Cluster.map` does."""
    return in_order(cluster.map(function, items, label), len(items))
