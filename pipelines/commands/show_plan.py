"""Print the plan: the sources, the table of steps, warnings and notices, and the forecast."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gristmill.console import wide_console
from gristmill.libraries.provenance import provenance, show_code
from gristmill.storage.location import Location
from gristmill.terminal import human_bytes, human_seconds, printable
from pipelines.contracts.given_split import HELD_OUT, VALIDATION
from pipelines.contracts.manifest import StepManifest, load_step
from pipelines.planning.forecast import Forecast
from pipelines.planning.plan import Plan, Step
from pipelines.planning.published import explain
from pipelines.planning.rule_checks import undivided_notices
from pipelines.reading.sources.registry import format_code


def show_plan(
    plan: Plan, root: Location, expected: Forecast, memory: int | None = None, warnings: Sequence[str] = ()
) -> None:
    """Print the sources of a plan, a table of its steps, warnings and notices and, if any step will run, the
    forecast. Name the unfinished steps that are expected to exceed `memory`, the memory limit of a task in
    bytes.
    """
    console = wide_console()
    console.print(f"corpus [bold]{plan.config.name}[/bold] in {escape(plan.config.output)}")
    for source in plan.config.sources:
        inventory = plan.inventories[source.name]
        split = f", split {source.split.kind}" if source.split else ""
        console.print(
            f"  source {source.name}: {len(inventory.files):,} files, {human_bytes(inventory.bytes)}, {source.format}{split}"
        )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("step", "fingerprint", "parts", "state", "why"):
        table.add_column(heading, overflow="fold", no_wrap=heading != "why")
    pending = 0
    notices: dict[str, None] = dict.fromkeys(f"warning: {notice}" for notice in warnings)
    notices.update(dict.fromkeys(undivided_notices(plan.config)))
    notices.update(dict.fromkeys(_other_code(plan)))
    for step in plan.steps:
        manifest = load_step(root, step.directory)
        if manifest is not None:
            notices.update(dict.fromkeys(_copies_of_held_out(plan, step, manifest)))
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
                "instead of other tasks, or stop the build: see --memory-per-worker and --workers of build",
                markup=False, soft_wrap=True,
            )  # fmt: skip


def _other_code(plan: Plan) -> Iterator[str]:
    for source in plan.config.sources:
        if code := format_code(source.format):
            yield f"read.{source.name}: {show_code(code)}"
    for step in plan.config.steps:
        code = provenance(step.stage)
        if code:
            yield f"{step.name}: {'' if len(code) > 1 else 'a script, '}{show_code(code)}"


def _copies_of_held_out(plan: Plan, step: Step, manifest: StepManifest) -> Iterator[str]:
    given = {source.name for source in plan.config.sources if source.split}
    for source, counts in manifest.facts.get("overlap", {}).items():
        for split in HELD_OUT if source in given else ():
            copies = counts.get(
                "near_copies_in_training" if split == VALIDATION else f"{split}_near_copies_in_training"
            )
            if copies:
                yield (
                    f"{step.name}: {copies:,} of {counts[split]:,} {split} documents of {source} have a near-copy in training; "
                    "`dedup_held_out` before other deduplication drops these from training"
                )


def _kept(step: Step, root: Location) -> str:
    units = sum(1 for _ in (root / step.directory / "units").glob("*.json"))
    return f"; {units:,} finished {'unit is' if units == 1 else 'units are'} kept" if units else ""


def _show_forecast(console: Console, expected: Forecast) -> None:
    if not expected.steps:
        console.print(
            "no estimate: this corpus has no earlier build (plan --rates OUTPUT reads the builds of other corpora)"
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("expected", "one worker", "memory of a task", "shuffled", "disk", "measured on"):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "expected" else "right")
    for label, step in sorted(expected.steps.items(), key=lambda entry: -entry[1].seconds):
        sizes = (human_bytes(size) if size else "" for size in (step.peak, step.work, step.disk, step.measured_on))
        table.add_row(label, human_seconds(step.seconds), *sizes)
    console.print(table)
    console.print(
        f"about {human_seconds(expected.seconds)} with {expected.workers} workers, as the last build had, "
        f"{human_seconds(expected.fixed)} of them to start, plan and report; "
        f"{human_bytes(expected.peak)} for each of them, {human_bytes(expected.disk)} of disk"
    )
    if expected.unknown:
        console.print(
            f"not included, because never measured: {', '.join(expected.unknown)}", markup=False, soft_wrap=True
        )
