"""Forecast the time, memory, shuffled bytes and disk space of a build from what earlier steps recorded.

Time, shuffled bytes and disk space per byte of text are averages over all finished steps of the same stage
(for `read`, of the same format) in the given output directories. Memory is the largest peak of these steps. A
step over the whole corpus counts its wall-clock time once for every worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.errors import CorruptFileError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from gristmill.storage.store import read_json
from pipelines.contracts.manifest import StepManifest, load_step
from pipelines.planning.plan import Plan


@dataclass
class Rate:
    """Totals over the finished steps of one stage: worker seconds, bytes of text, bytes stored on disk and
    bytes shuffled (`work`). `peak` is not a total but the memory of the largest task, in bytes.
    """

    seconds: float = 0.0
    text: int = 0
    disk: int = 0
    work: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Estimate:
    """The estimate for one step: worker seconds, memory of its largest task in bytes (`peak`), and bytes
    shuffled (`work`) and stored (`disk`). `measured_on` is the number of bytes of text in the finished steps
    from which the estimate is derived.
    """

    seconds: float
    peak: int
    work: int
    disk: int
    measured_on: int


@dataclass(frozen=True)
class Forecast:
    """The forecast for a build. `steps` maps the labels of its unfinished steps to their estimates; `unknown`
    lists the labels of those that cannot be estimated. `workers` is the number of workers of the step that
    finished last. `fixed` is the wall-clock time in seconds that the last build spent outside steps: starting
    Ray, planning, and writing the report.
    """

    steps: dict[str, Estimate]
    unknown: tuple[str, ...]
    workers: int
    fixed: float = 0.0

    @property
    def seconds(self) -> float:
        """The wall-clock time in seconds that the estimated steps take with `workers` workers, if all of them
        are always busy, plus `fixed`.
        """
        return self.fixed + sum(step.seconds for step in self.steps.values()) / self.workers

    @property
    def peak(self) -> int:
        """The memory in bytes of the largest task of any estimated step; 0 if no step is estimated."""
        return max((step.peak for step in self.steps.values()), default=0)

    @property
    def disk(self) -> int:
        """The disk space in bytes that the build needs at its peak: the files of all estimated steps, plus
        the largest shuffle of a single step.
        """
        return sum(step.disk for step in self.steps.values()) + max((s.work for s in self.steps.values()), default=0)


@dataclass
class _Rates:
    """What was learned from earlier builds. `stages` maps each stage, and for `read` each format, to its
    rate. `inputs` maps each source and each format to [bytes of text, bytes of input]. `newest` is the time
    when the last step finished, and `workers` is the number of workers of that step. `last_build` is the time
    when the last build finished, and `fixed` is the number of seconds that this build spent outside steps.
    """

    stages: dict[str, Rate] = field(default_factory=dict)
    inputs: dict[str, list[int]] = field(default_factory=dict)
    workers: int = 1
    newest: float = 0.0
    fixed: float = 0.0
    last_build: float = 0.0


def forecast(plan: Plan, roots: Sequence[LocalPath]) -> Forecast:
    """Estimate the time, memory and disk space of the unfinished steps of `plan` from the finished steps
    below `roots`, which are local output directories.
    """
    rates = _Rates()
    for root in roots:
        for path in sorted(root.glob("*/run.json")):
            _learn(rates, root, path)
        _learn_fixed(rates, root)
    estimates, unknown = {}, []
    for step in plan.steps:
        if load_step(plan.config.place, step.directory) is not None:
            continue
        rate = rates.stages.get(_kind(step.identity))
        text = sum(_text(plan, name, rates) for name in step.sources)
        if rate is None or not rate.text or not text:
            unknown.append(step.label)
            continue
        share = text / rate.text
        work, disk = round(rate.work * share), round(rate.disk * share)
        estimates[step.label] = Estimate(rate.seconds * share, rate.peak, work, disk, rate.text)
    return Forecast(estimates, tuple(unknown), rates.workers, rates.fixed)


def _learn(rates: _Rates, root: Location, path: Location) -> None:
    """Add a finished step to the rates, unless its `run.json` records no peak memory or its files are
    damaged.
    """
    try:
        manifest, run = load_step(root, path.parent.name), read_json(path)
    except CorruptFileError:
        return
    if manifest is None or "peak_bytes" not in run:
        return
    rate = rates.stages.setdefault(_kind(manifest.identity), Rate())
    # A step over the whole corpus records only its wall-clock time, and uses all workers.
    rate.seconds += run["seconds"] * (run["workers"] if manifest.source is None else 1)
    rate.text += run["text_bytes"]
    rate.disk += _stored(manifest)
    rate.work += run.get("work_bytes", 0)
    rate.peak = max(rate.peak, run["peak_bytes"])
    if run["finished"] > rates.newest:
        rates.newest, rates.workers = run["finished"], run["workers"]
    for key in (f"source {manifest.source}", _kind(manifest.identity)) if "input_bytes" in run else ():
        total = rates.inputs.setdefault(key, [0, 0])
        total[0] += run["text_bytes"]
        total[1] += run["input_bytes"]


def _learn_fixed(rates: _Rates, root: Location) -> None:
    try:
        run = read_json(root / "run.json")
    except (FileNotFoundError, CorruptFileError):
        return
    if run["finished"] > rates.last_build:
        rates.last_build, rates.fixed = run["finished"], run["fixed_seconds"]


def _kind(identity: Mapping[str, object]) -> str:
    """Return the key of a step's rate: its stage, and for `read` also the format."""
    knobs = identity["knobs"]
    is_read = identity["stage"] == "read" and isinstance(knobs, Mapping)
    return f"read {knobs['format']}" if is_read and isinstance(knobs, Mapping) else str(identity["stage"])


def _stored(manifest: StepManifest) -> int:
    return sum(part.file.bytes for part in manifest.parts) + sum(file.bytes for file in manifest.files)


def _text(plan: Plan, source: str, rates: _Rates) -> float:
    """Return the size of a source's text in bytes: exact if the source has been read, otherwise estimated
    from the size of its files, or 0 if no finished step allows an estimate.
    """
    read = plan.step(f"read.{source}")
    manifest = load_step(plan.config.place, read.directory)
    if manifest is not None:
        return sum(part.text_bytes for part in manifest.parts)
    text, stored = rates.inputs.get(f"source {source}") or rates.inputs.get(_kind(read.identity)) or (0, 1)
    return plan.inventories[source].bytes * text / max(1, stored)
