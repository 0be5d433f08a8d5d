"""Look up published steps for a plan: find the files of steps that are not reproducible, and explain why a
step is not finished.
"""

from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from gristmill.storage.location import Location
from pipelines.contracts.manifest import StepManifest, load_step
from pipelines.planning.plan import FINGERPRINT_DIGITS, Plan, Step, make_plan


def add_published_files(plan: Plan) -> Plan:
    """Return the plan with `files` filled in: the published files of its steps that are not reproducible."""
    root = plan.config.place
    while True:
        once = [step.directory for step in plan.steps if not step.stage.reproducible]
        manifests = {directory: load_step(root, directory) for directory in once}
        files = {directory: manifest.files for directory, manifest in manifests.items() if manifest is not None}
        if files == plan.files:
            return plan
        plan = make_plan(plan.config, plan.inventories, plan.poison, files)


def explain(step: Step, root: Location) -> str:
    """Return why a step is not finished, for example what has changed since the last published step with the
    same label.
    """
    if (root / step.directory / "manifest.json").exists():
        return "it may hold forgotten documents"
    last = _latest(step, root)
    if last is None:
        return "not built yet"
    reasons = []
    for name in ("stage", "version"):
        if last.identity[name] != step.identity[name]:
            reasons.append(f"{name} {last.identity[name]} -> {step.identity[name]}")
    reasons.extend(_differences("", last.identity["knobs"], step.identity["knobs"]))
    reasons.extend(_differences("", last.identity["depends"], step.identity["depends"]))
    for name in sorted({*last.identity["inputs"], *step.identity["inputs"]}):
        old, new = last.identity["inputs"].get(name), step.identity["inputs"].get(name)
        if name == "order" and set(old or ()) == set(new or ()) and old != new:
            reasons.append("its inputs are in another order")
        elif name != "order" and old != new:
            reasons.append({(True, False): f"without {name}", (False, True): f"with {name}"}.get(
                (new is None, old is None), f"{name} changed"))  # fmt: skip
    return "; ".join(reasons) or "its files are gone"


def _differences(path: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in sorted({*old, *new}):
            lines.extend(_differences(f"{path}.{key}".lstrip("."), old.get(key), new.get(key)))
        return lines
    if isinstance(old, list) and isinstance(new, list):
        return _list_differences(path, old, new)
    return [] if old == new else [f"{path}: {_short(old)} -> {_short(new)}"]


def _list_differences(path: str, old: list[Any], new: list[Any]) -> list[str]:
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    last = 0
    while last < min(len(old), len(new)) - first and old[-1 - last] == new[-1 - last]:
        last += 1
    before, after = old[first : len(old) - last], new[first : len(new) - last]
    lines = []
    for place, pair in enumerate(zip_longest(before, after), first):
        if place - first >= len(before):
            lines.append(f"{path}[{place}]: added {_short(pair[1])}")
        elif place - first >= len(after):
            lines.append(f"{path}[{place}]: removed {_short(pair[0])}")
        else:
            lines.extend(_differences(f"{path}[{place}]", *pair))
    return lines


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        value = {name: each for name, each in value.items() if each not in (None, "", [], {})}
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _latest(step: Step, root: Location) -> StepManifest | None:
    directories = f"{step.label}-{'[0-9a-f]' * FINGERPRINT_DIGITS}"  # not those of a source NAME-2
    candidates = [p for p in root.glob(f"{directories}/manifest.json") if p.parent.name != step.directory]
    candidates.sort(key=lambda path: path.stat().st_mtime_ns)
    return load_step(root, candidates[-1].parent.name) if candidates else None
