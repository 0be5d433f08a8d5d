"""What the plan and build commands print: the table of steps, live progress, and the funnel."""

import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gristmill.terminal import printable
from pipelines.contracts.manifest import CorpusManifest, load_step
from pipelines.planning.forecast import Forecast
from pipelines.planning.plan import Plan, Step, explain
from pipelines.planning.rule_checks import null_notices

_PLAIN_INTERVAL_SECONDS = 10.0
_GLUE = "\u00a0"  # a space at which no line is broken


class ProgressDisplay:
    """Bars on a terminal; elsewhere a line when a phase begins and then at most one every ten seconds."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._bars = Progress(
            TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            console=self._console, transient=True,
        )  # fmt: skip
        self._live = sys.stdout.isatty()
        self._task: TaskID | None = None
        self._phase = ""
        self._told = 0.0
        self._started = time.perf_counter()

    def __enter__(self) -> "ProgressDisplay":
        if self._live:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bars.stop()

    def say(self, line: str) -> None:
        """Print a line above the bars, with the seconds since the start."""
        self._console.print(
            f"[dim]{time.perf_counter() - self._started:6.1f}s[/dim] {escape(printable(line))}", soft_wrap=True
        )

    def progress(self, phase: str, done: int, total: int) -> None:
        """Show that `done` of `total` tasks of a phase are finished."""
        if self._live:
            if self._task is None or phase != self._phase:
                if self._task is not None:
                    self._bars.remove_task(self._task)
                self._task = self._bars.add_task(phase, total=total)
            self._bars.update(self._task, completed=done)
        elif total > 1 and done and time.perf_counter() - self._told > _PLAIN_INTERVAL_SECONDS:
            self._told = time.perf_counter()
            self.say(f"  {phase}: {done} of {total}")
        self._phase = phase


def show_plan(
    plan: Plan, root: Path, expected: Forecast, memory: int | None = None, warnings: Sequence[str] = ()
) -> None:
    """Print the sources, then one row per step: finished or not, in how many parts, and why it will run; then what that is
    expected to take. `memory`: bytes that a task may have; steps that are expected to take more are named. `warnings`: of
    rules that cannot judge a source.
    """
    console = wide_console()
    console.print(f"corpus [bold]{plan.config.name}[/bold] in {escape(plan.config.output)}")
    for source in plan.config.sources:
        inventory = plan.inventories[source.name]
        console.print(
            f"  source {source.name}: {len(inventory.files):,} files, {human_bytes(inventory.bytes)}, {source.format}"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "fingerprint", "parts", "state", "why"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "why")
    pending = 0
    notices: dict[str, None] = dict.fromkeys(f"warning: {notice}" for notice in (*null_notices(plan.config), *warnings))
    for step in plan.steps:
        manifest = load_step(root, step.directory)
        if manifest is not None:
            table.add_row(
                step.label, step.fingerprint[:12], str(len(manifest.parts) or ""), "[green]finished[/green]", ""
            )
            continue
        pending += 1
        if step.stage.notice():
            notices[f"{step.name}: {step.stage.notice()}"] = None
        parts = ""
        if step.name == "read":
            source = next(s for s in plan.config.sources if s.name == step.source)
            parts = f"~{max(1, round(plan.inventories[source.name].bytes / source.part_bytes))}"
        table.add_row(
            step.label,
            step.fingerprint[:12],
            parts,
            "[yellow]will run[/yellow]",
            escape(explain(step, root) + _kept(step, root)),
        )
    console.print(table)
    console.print(f"{len(plan.steps) - pending} steps finished, {pending} will run")
    for notice in notices:
        console.print(printable(notice), markup=False, soft_wrap=True)
    if pending:
        _show_forecast(console, expected)
        larger = [label for label, step in expected.steps.items() if memory is not None and step.peak > memory]
        if memory is not None and larger:
            console.print(
                f"more memory than the {human_bytes(memory)} of a worker: {', '.join(larger)}; their tasks would be tried again "
                "in the place of others, or stop the build: see --memory-per-worker and --workers of build",
                markup=False, soft_wrap=True,
            )  # fmt: skip


def _kept(step: Step, root: Path) -> str:
    """How many units of a step an interrupted build has finished: the next one goes on with them."""
    units = sum(1 for _ in (root / step.directory / "units").glob("*.json"))
    return f"; {units:,} finished {'unit is' if units == 1 else 'units are'} kept" if units else ""


def _show_forecast(console: Console, expected: Forecast) -> None:
    """What the steps that will run are expected to take, the longest first."""
    if not expected.steps:
        console.print("no estimate: no earlier build to measure by (plan --rates OUTPUT names those of other corpora)")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("expected", "one worker", "memory of a task", "shuffled", "disk", "measured on"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "expected" else "right")
    for label, step in sorted(expected.steps.items(), key=lambda entry: -entry[1].seconds):
        sizes = (human_bytes(size) if size else "" for size in (step.peak, step.work, step.disk, step.measured_on))
        table.add_row(label, human_seconds(step.seconds), *sizes)
    console.print(table)
    console.print(
        f"about {human_seconds(expected.seconds)} with {expected.workers} workers, as the last build had; "
        f"{human_bytes(expected.peak)} for each of them, {human_bytes(expected.disk)} of disk"
    )
    if expected.unknown:
        console.print(f"and what was never measured: {', '.join(expected.unknown)}", markup=False, soft_wrap=True)


def show_funnel(manifest: CorpusManifest) -> None:
    """Print per source what went into every step and what came out, and below each step why the rest was dropped.

    It fits 80 columns: a step's rules have lines of their own, under the figures.
    """
    console = wide_console()
    density = bytes_per_token(manifest)
    rows: list[tuple[tuple[str, str, str, str], dict[str, int]]] = []
    for source, facts in manifest.sources.items():
        rows.append(((source, "", "", ""), {}))
        documents = _change(facts["in"], facts["kept"], "{:,}".format)
        rows.append((("  read", documents, human_bytes(facts["decoded_bytes"]), ""), facts["quarantined"]))
        for row in (row for row in manifest.funnel if row["source"] == source):
            tokens = ""
            if source in density:
                tokens = "~" + _change(
                    row["bytes_in"] / density[source], row["bytes_out"] / density[source], human_count
                )
            documents = _change(row["documents_in"], row["documents_out"], "{:,}".format)
            text = _change(row["bytes_in"], row["bytes_out"], human_bytes)
            rows.append(((f"  {row['step']}", documents, text, tokens), row["dropped"]))
        for name, shards in manifest.shard_sets.items():
            for split in ("train", "validation"):
                found = [shard for shard in shards.shards if (shard.source, shard.split) == (source, split)]
                size = human_bytes(sum(shard.text_bytes for shard in found))
                count, tokens_out = sum(shard.documents for shard in found), sum(shard.tokens for shard in found)
                rows.append(((f"  {name}: {split}", f"{count:,}", size, f"{tokens_out:,}"), {}))
    heading = (f"corpus {manifest.corpus}", "documents", "text", "tokens")
    widths = [max(cell_len(cells[column]) for cells, _ in [(heading, {}), *rows]) for column in range(4)]
    console.print(Text(_aligned(heading, widths), style="bold"), soft_wrap=True)
    for cells, dropped in rows:
        console.print(Text(_aligned(cells, widths), style="" if cells[0].startswith(" ") else "bold"), soft_wrap=True)
        if dropped:
            lines = textwrap.wrap(
                _rules(dropped), max(40, console.width), initial_indent=" " * 6, subsequent_indent=" " * 6
            )
            console.print(Text("\n".join(lines).replace(_GLUE, " "), style="dim"), soft_wrap=True)
    console.print("[dim]~ estimated from the source's bytes per token in its shards[/dim]")
    for name, sources in without_validation(manifest).items():
        console.print(
            f"{name}: no validation documents of {', '.join(sources)}, so training measures no held-out loss for them; raise "
            "`validation_share`, or change `seed` or `split_by`", markup=False, soft_wrap=True,
        )  # fmt: skip


def without_validation(manifest: CorpusManifest) -> dict[str, list[str]]:
    """From shard set to the sources that have training documents and no validation documents in it."""
    found = {}
    for name, shards in manifest.shard_sets.items():
        held_out = {shard.source for shard in shards.shards if shard.split == "validation"}
        missing = sorted({shard.source for shard in shards.shards} - held_out)
        if missing:
            found[name] = missing
    return found


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """A line of the funnel: the first cell to the left, figures to the right."""
    padding = [width - cell_len(cell) for cell, width in zip(cells, widths, strict=True)]
    figures = [" " * (2 + space) + cell for cell, space in zip(cells[1:], padding[1:], strict=True)]
    return (cells[0] + " " * padding[0] + "".join(figures)).rstrip()


def _change(before: float, after: float, form: Callable[[float], str]) -> str:
    """`before → after`, or one figure where nothing changed."""
    return form(before) if before == after else f"{form(before)} → {form(after)}"


def bytes_per_token(manifest: CorpusManifest) -> dict[str, float]:
    """UTF-8 bytes of text per token by source, over the first shard set."""
    if not manifest.shard_sets:
        return {}
    shards = next(iter(manifest.shard_sets.values())).shards
    result = {}
    for source in manifest.sources:
        tokens = sum(shard.tokens for shard in shards if shard.source == source)
        if tokens:
            result[source] = sum(shard.text_bytes for shard in shards if shard.source == source) / tokens
    return result


def _rules(counts: Mapping[str, int]) -> str:
    """Documents by rule, most first; the rules of one set are listed behind its name: `SET: RULE 7, RULE 2; language 1`."""
    sets: dict[str, dict[str, int]] = {}
    for rule, number in sorted(counts.items(), key=lambda item: -item[1]):
        family, dot, name = rule.partition(".")
        sets.setdefault(family if dot else "", {})[name if dot else rule] = number
    lists = {
        family: ", ".join(f"{rule}{_GLUE}{number:,}" for rule, number in rules.items())
        for family, rules in sets.items()
    }
    return "; ".join(f"{family}: {rules}" if family else rules for family, rules in lists.items())


def wide_console() -> Console:
    """The terminal; where the output is a file or a pipe, 120 columns."""
    return Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)


def human_seconds(seconds: float) -> str:
    """A time in the unit that fits: `35 s`, `12 min`, `3.4 h`, `2.1 days`."""
    for limit, size, unit in ((100, 1, "s"), (6000, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            amount = seconds / size
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86_400:.1f} days"


def human_count(count: float) -> str:
    """A count with three digits and a power of 1000: `1.47M`."""
    for unit in ("", "k", "M", "G"):
        if count < 1000:
            return f"{count:.0f}" if not unit else f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}T"


def human_bytes(size: float) -> str:
    """A size in powers of 1000: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
