"""Run and publish the unpublished steps of a plan, and publish the corpus.

Part stages whose inputs are available are fused into one task per part, which reads the text once.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gristmill.budget import spend
from gristmill.errors import BrokenTaskError, ConflictError, PoisonError, UserError, reason_of
from gristmill.libraries.provenance import provenance
from gristmill.storage.location import FileRecord, Location
from pipelines.building.annotate import AnnotateTask, StageWork, annotate_documents, annotate_rows
from pipelines.building.bisect import find_poison
from pipelines.building.build_metrics import BuildMetrics, counted
from pipelines.building.publish import publish_corpus
from pipelines.building.read_step import run_reads
from pipelines.building.same_code import SameCodeCluster
from pipelines.building.state import AnyCluster, Build
from pipelines.contracts.document_counts import Counts
from pipelines.contracts.manifest import (
    CorpusManifest,
    PartRecord,
    Receipt,
    StepManifest,
    check_accounting,
    load_step,
    remove_step,
    schema_facts,
    sweep,
)
from pipelines.contracts.parts import Annotation, Part
from pipelines.contracts.stage import CorpusStage, PartStage, in_order
from pipelines.contracts.tombstone import forgotten
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.inventory import Inventory
from pipelines.planning.plan import Plan, Step, make_plan
from pipelines.planning.poison import load_poison, record_poison, unwrapped
from pipelines.planning.published import add_published_files
from pipelines.planning.source_check import check_counts, check_sample

Result = TypeVar("Result")


def plan_and_build(
    config: CorpusConfig,
    inventories: Mapping[str, Inventory],
    cluster: AnyCluster,
    say: Callable[[str], None],
    *,
    quarantine: bool = False,
    variant: str | None = None,
) -> CorpusManifest:
    """Plan and build a corpus, and return its manifest. Documents that earlier builds set aside are left out.
    A document that breaks a step ends the build with PoisonError. With `quarantine`, the document is set
    aside instead, and the build is planned again.
    """
    output = config.place
    while True:
        plan = make_plan(config, inventories, load_poison(output))
        try:
            return build(plan, cluster, say, variant)
        except PoisonError as error:
            if not quarantine:
                raise
            if load_poison(output) == plan.poison:  # otherwise another build has set documents aside meanwhile
                record_poison(output, error)
            if error.step == "read":
                _keep_units(plan, make_plan(config, inventories, load_poison(output)), error.source)
            say(f"set aside: {error.document} of {error.source}, which breaks {error.step} ({error.reason})")


def _keep_units(before: Plan, after: Plan, source: str) -> None:
    """Rename the directory of a source's read step to its name in the new plan, so that finished work is
    kept.
    """
    root, (old, new) = before.config.place, (plan.step(f"read.{source}").directory for plan in (before, after))
    (root / old).rename_if_possible(root / new)


def build(plan: Plan, cluster: AnyCluster, say: Callable[[str], None], variant: str | None = None) -> CorpusManifest:
    """Run the steps of the plan that are not yet published. Then publish the corpus, as the variant `variant`
    if given, and return its manifest.
    """
    root = plan.config.place
    ensure_owner(root, plan.config.name, write=True)
    sweep(root)
    plan = add_published_files(plan)
    state = Build(plan, root, cluster, say, {}, BuildMetrics(plan.config.name), forgotten(root), variant)
    _find_published(state)
    before = frozenset(state.published)
    if len(before) == len(plan.steps):
        say(f"all {len(before)} steps are already built: nothing is recomputed")
    elif before:
        say(f"{len(before)} of {len(plan.steps)} steps are already built")
    else:
        say(f"{len(plan.steps)} steps to build")
    _check_samples(state)
    while not _run_or_adopt(partial(run_reads, state), state):
        pass
    _check_reads(state)
    while pending := [step for step in state.plan.steps if step.label not in state.published]:
        state.metrics.progress(len(state.published), len(state.plan.steps))
        fused = _fusable(pending, state)
        ready = [step for step in pending if all(label in state.published for label in step.inputs())]
        _run_or_adopt(partial(_annotate, fused, state) if fused else partial(_run_corpus_step, ready[0], state), state)
        if any(step.label in state.published and not step.stage.reproducible for step in pending):
            # The fingerprints of the steps that read its files are known only now.
            state.plan = add_published_files(state.plan)
            _find_published(state)
    state.metrics.progress(len(state.published), len(state.plan.steps))
    return publish_corpus(state)


def _run_or_adopt(work: Callable[[], None], state: Build) -> bool:
    """Run `work` and return True. If it fails but a concurrent build has published steps meanwhile, adopt
    these steps and return False, since the other build may have removed files that `work` needed.
    """
    started, before = time.perf_counter(), len(state.published)
    try:
        work()
        if len(state.published) > before:
            state.cluster.usage.step_seconds += time.perf_counter() - started
    except Exception:
        known = set(state.published)
        _find_published(state)
        others = [step.label for step in state.plan.steps if step.label in state.published and step.label not in known]
        if not others:
            raise
        state.say(f"another build published {', '.join(others)} meanwhile; continuing with that")
        return False
    return True


def _find_published(state: Build) -> None:
    """Update `state.published` from the output directory. A step that may hold a forgotten document is
    removed, and so are the steps made from it.
    """
    state.check_forgotten()
    stale: list[Step] = []
    for step in state.plan.steps:
        known = state.published.get(step.label)
        if known is not None and known.fingerprint == step.fingerprint:
            continue
        state.published.pop(step.label, None)
        manifest = load_step(state.root, step.directory)
        if state.gone and _is_stale(step, manifest, state):
            stale.append(step)
        elif manifest is not None:
            state.published[step.label] = manifest
            state.output(step).finish(manifest)
    for step in reversed(stale):  # a step goes after those made from it, so that a kill in between is noticed
        state.say(f"{step.label} may hold forgotten documents or results made from them; it is built again")
        state.check_forgotten()
        if _is_stale(step, load_step(state.root, step.directory), state):
            remove_step(state.root / step.directory)


def _is_stale(step: Step, manifest: StepManifest | None, state: Build) -> bool:
    """Return whether a step must be removed because documents were forgotten: it was published but may hold
    one of them, or one of its inputs is no longer published.
    """
    if manifest is None:
        return (state.root / step.directory / "manifest.json").exists()
    needed = [state.plan.step(label) for label in step.inputs() if label not in state.published]
    return any(load_step(state.root, each.directory) is None for each in needed)


def _check_samples(state: Build) -> None:
    for source in state.plan.config.sources:
        if f"read.{source.name}" not in state.published:
            check_sample(source, state.plan.inventories[source.name].files)


def _check_reads(state: Build) -> None:
    reads = {source: state.published[f"read.{source.name}"] for source in state.plan.config.sources}
    for source, manifest in reads.items():
        directory = state.root / state.plan.step(f"read.{source.name}").directory
        check_counts(source, manifest, directory, state.plan.inventories[source.name].files)
    if not any(manifest.parts for manifest in reads.values()):
        if any(source.sample < 1 for source in reads):
            raise UserError("the sample holds no document; read a larger share of the records")
        raise UserError("no source holds a document; a corpus needs at least one, even with `allow_empty`")


def ensure_owner(root: Location, corpus: str, *, write: bool) -> None:
    """Raise ConflictError if `root` belongs to another corpus, or if it is not empty and not the directory of
    a corpus. With `write`, mark it as the directory of this corpus.
    """
    marker = root / "corpus.txt"
    try:
        owner = marker.read_bytes().decode(errors="replace").strip()
    except FileNotFoundError:
        owner = None
    if owner is None and root.exists() and any(not path.name.startswith(".") for path in root.iterdir()):
        if not marker.exists():  # if it exists now, another build has just started here
            raise ConflictError(f"{root}: is not empty and not the output of a corpus; choose another `output`")
        ensure_owner(root, corpus, write=write)
        return
    if owner not in (None, corpus):
        raise ConflictError(
            f"{root}: belongs to the corpus {owner!r}, not to {corpus!r}, as {marker} says; choose another `output`"
        )
    if owner is None and write:
        marker.write_atomic(f"{corpus}\n".encode())


def refuse_unwritable(root: Location) -> None:
    """Create the directory `root` if it is missing, and raise UserError if no file can be created in it. An
    object store is not checked.
    """
    try:
        root.probe_writable()
    except OSError as error:
        raise UserError(f"{root}: is not writable ({reason_of(error)}); choose another `output`") from None


def _fusable(pending: Sequence[Step], state: Build) -> list[Step]:
    group: list[Step] = []
    labels = set(state.published)
    for step in pending:
        if isinstance(step.stage, PartStage) and all(label in labels for label in step.inputs()):
            group.append(step)
            labels.add(step.label)
    return group


def part_of(state: Build, source: str, record: PartRecord, visible: Sequence[str]) -> Part:
    """Return the part of `source` that `record` describes, with the annotations of the published steps whose
    labels are in `visible`.
    """
    read = state.plan.step(f"read.{source}")
    manifest = state.published[read.label]
    config = next(s for s in state.plan.config.sources if s.name == source)
    annotations = []
    for label in visible:
        if label in state.published:
            step, published = state.plan.step(label), state.published[label]
            file = published.part_files[source, record.index]
            annotations.append(Annotation(step.name, state.root / step.directory, file, published.schema))
    directory = state.root / read.directory
    return Part(
        source, record.index, record.rows, record.text_bytes, directory, record.file, manifest.schema,
        state.plan.types, state.plan.order, tuple(annotations), config.tokenizer_share, given=config.split,
    )  # fmt: skip


def _annotate(group: Sequence[Step], state: Build) -> None:
    started = time.perf_counter()
    state.cluster.peak_bytes, state.cluster.usage.purpose = 0, "annotating"
    names = ", ".join(dict.fromkeys(step.name for step in group))
    state.say(f"annotate: {names}")
    for notice in dict.fromkeys(f"{step.name}: {step.stage.notice()}" for step in group if step.stage.notice()):
        state.say(f"  {notice}")
    tasks = []
    for source in dict.fromkeys(step.source for step in group):
        assert source is not None
        steps = [step for step in group if step.source == source]
        works = tuple(_work(step, source, state) for step in steps)
        visible = dict.fromkeys(label for step in steps for label in step.visible[source])
        for record in state.published[f"read.{source}"].parts:
            tasks.append(AnnotateTask(part_of(state, source, record, tuple(visible)), works))

    def count(position: int, result: tuple[dict[str, Receipt], dict[str, float]]) -> None:
        part, (receipts, spent) = tasks[position].part, result
        for work in tasks[position].works:
            done = work.out.name
            state.metrics.task(
                work.name, part.source, Counts.parse(receipts[done].counts), part.text_bytes, spent[done]
            )

    results = state.cluster.map(annotate_documents, tasks, lambda task: f"{names}: part {task.part.name}")
    ordered = _unbroken(counted(results, count), tasks, state)
    for step in group:
        receipts = [receipts[step.directory] for receipts, _ in ordered if step.directory in receipts]
        parts = [task.part for task in tasks if task.part.source == step.source]
        seconds = sum(spent.get(step.directory, 0.0) for _, spent in ordered)
        publish_annotations(step, parts, receipts, {}, state)
        state.record_run(step, seconds, sum(part.text_bytes for part in parts), time.perf_counter() - started)


def _unbroken(results: Iterable[tuple[int, Result]], tasks: Sequence[AnnotateTask], state: Build) -> list[Result]:
    try:
        return in_order(results, len(tasks))
    except BrokenTaskError as error:
        task = tasks[error.position]
        done = [work.out.receipt(task.part.unit) is not None for work in task.works]
        if all(done):  # the process was lost after it had finished the work
            raise
        state.say(f"  {error}")
        state.say(f"  looking for a document that alone breaks part {task.part.name}")
        stages = [work.name for work in task.works]
        raise find_poison(error, task, stages, done.index(False), annotate_rows, state.cluster) from error


def _work(step: Step, source: str, state: Build) -> StageWork:
    assert isinstance(step.stage, PartStage)
    visible = tuple(state.plan.step(label).name for label in step.visible[source])
    stage = step.stage
    if step.files:
        stage = stage.use({name: state.published[label].facts for name, label in step.files.items()})
    code = provenance(unwrapped(stage))
    return StageWork(step.name, step.directory, stage, step.where, visible, state.output(step), code)


def publish_annotations(
    step: Step, parts: Sequence[Part], receipts: Sequence[Receipt], facts: dict[str, Any], state: Build
) -> None:
    """Check the accounting of a step that wrote one annotation file per part, and publish the step.
    `receipts` are in the order of `parts`. The entry `files` is removed from `facts` and becomes the
    manifest's `files`; the remaining entries become its `facts`.
    """
    records, counts = [], {}
    for part, receipt in zip(parts, receipts, strict=True):
        records.append(PartRecord(part.source, part.index, part.rows, 0, receipt.files[0]))
        counts[part.name] = Counts.parse(receipt.counts)
    files = tuple(FileRecord(**record) for record in facts.pop("files", ()))
    manifest = StepManifest(
        step.label, step.source, step.fingerprint, step.identity, schema_facts(step.stage.writes()), tuple(records),
        files, _totals(counts), facts,
    )  # fmt: skip
    check_accounting(manifest, {(part.source, part.index): part.rows for part in parts}, counts)
    state.publish(step, manifest)


def _totals(counts: Mapping[str, Counts]) -> dict[str, Counts]:
    totals: dict[str, Counts] = {}
    for name, count in counts.items():
        source = name.rpartition("/")[0]
        totals[source] = totals.get(source, Counts()) + count
    return totals


def _run_corpus_step(step: Step, state: Build) -> None:
    assert isinstance(step.stage, CorpusStage)
    started = time.perf_counter()
    state.cluster.peak_bytes, state.cluster.usage.purpose = 0, step.name
    state.say(f"{step.label}")
    inputs = {name: state.root / state.plan.step(label).directory for name, label in step.files.items()}
    out = state.output(step, inputs)
    parts = []
    for source in step.sources:
        for record in state.published[f"read.{source}"].parts:
            parts.append(part_of(state, source, record, step.visible[source]))
    facts: dict[str, Any] = {}
    if parts or not step.stage.writes().names:  # without sources there are no documents to annotate
        with spend(step.name):
            code = provenance(step.stage)
            facts = step.stage.run(
                parts, out, SameCodeCluster(state.cluster, step.name, step.stage, code) if code else state.cluster
            )
    work = (out.directory / "work").bytes_below()
    if step.stage.writes().names:
        receipts = [out.receipt(part.unit) for part in parts]
        missing = [part.name for part, receipt in zip(parts, receipts, strict=True) if receipt is None]
        if missing:
            raise ConflictError(
                f"{out.directory}: was removed by another command while the step was built (no annotations for "
                f"{', '.join(missing[:5])}); run the command again"
            )
        publish_annotations(step, parts, [receipt for receipt in receipts if receipt is not None], facts, state)
        state.metrics.corpus_step(step.name, state.published[step.label], parts)
    else:
        files = tuple(FileRecord(**record) for record in facts.pop("files", ()))
        manifest = StepManifest(step.label, None, step.fingerprint, step.identity, {}, (), files, {}, facts)
        state.publish(step, manifest)
    elapsed = time.perf_counter() - started
    state.record_run(step, elapsed, sum(part.text_bytes for part in parts), elapsed, work_bytes=work)
