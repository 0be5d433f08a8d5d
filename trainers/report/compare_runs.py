"""Which runs share a chart: those whose numbers measure the same thing."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainers.data.document_loss import FIELD
from trainers.report.read_runs import Run


def measured(run: Run, mixed: bool = True) -> dict[str, Any]:
    """Return the settings that the losses of a run depend on. Only runs in which they are equal can be
    compared. If the losses are `mixed`, summed over all sources, the mixture is one of them.
    """
    data = run.config.get("data", {})
    whole = {
        "kind": run.config.get("kind", "pretraining"),
        "objective": run.config.get("objective"),
        "sequence length": data.get("sequence_length"),
        "packing": data.get("packing"),
        "isolation": data.get("isolation"),
        "corpus": run.record["fingerprints"].get("corpus"),
        "tokenizer": run.record["fingerprints"].get("tokenizer"),
    }
    return {**whole, "mixture": data.get("weights")} if mixed else whole


def measured_documents(run: Run) -> dict[str, Any] | None:
    """Return what the bits per byte of whole documents of a run are measured on; None if it has none."""
    validation = run.validations[-1] if run.validations else {}
    if FIELD not in validation:
        return None
    return {"corpus": run.record["fingerprints"].get("corpus"), "window": validation.get("document_window")}


def groups(runs: Sequence[Run], what: Callable[[Run], Mapping[str, Any] | None]) -> list[list[int]]:
    """Group the numbers of the runs by what they measure. Runs that measure nothing are left out."""
    by_measure: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        described = what(run)
        if described is not None:
            by_measure.setdefault(json.dumps(described, sort_keys=True), []).append(number)
    return list(by_measure.values())


def reason(runs: Sequence[Run]) -> str:
    """Say in a sentence why the losses of these runs do not share one chart; empty if they do."""
    found = [measured(run) for run in runs]
    differing = [name for name in found[0] if any(one[name] != found[0][name] for one in found)]
    if not differing:
        return ""
    named = [f"{name}{_values([one[name] for one in found])}" for name in differing]
    return (
        f"Losses of different things have charts of their own; the runs differ in {', '.join(named)}. Bits per byte of "
        f"whole documents compare them where a run has them."
    )


def without_likelihood(runs: Sequence[Run]) -> list[str]:
    """Return the names of the runs that were validated and have no bits per byte of whole documents."""
    return [run.name for run in runs if run.validations and FIELD not in run.validations[-1]]


def _values(values: Sequence[Any]) -> str:
    """Short values in brackets."""
    shown = [value.get("kind") if isinstance(value, Mapping) else value for value in values]
    different = list(
        dict.fromkeys(str(value) for value in shown if isinstance(value, str | int) and len(str(value)) < 20)
    )
    return f" ({', '.join(different)})" if len(different) > 1 else ""
