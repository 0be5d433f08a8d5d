"""Group the runs whose losses measure the same thing, which may share a chart, and explain why others may
not.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainers.data.document_loss import FIELD
from trainers.report.read_runs import Run


def measured(run: Run, mixed: bool = True) -> dict[str, Any]:
    """Return the settings that must be equal for the losses of two runs to be comparable. `mixed` adds the
    mixture of sources, which matters only for losses over all sources.
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
    """Return the corpus and the document window of a run. Two runs may be compared by the bits per byte of
    whole documents only if these are equal. Returns None if the last validation did not measure whole
    documents.
    """
    validation = run.validations[-1] if run.validations else {}
    if FIELD not in validation:
        return None
    return {"corpus": run.record["fingerprints"].get("corpus"), "window": validation.get("document_window")}


def groups(runs: Sequence[Run], what: Callable[[Run], Mapping[str, Any] | None]) -> list[list[int]]:
    """Return the indices of the runs, grouped by the value that `what` returns for them. Runs for which it
    returns None are left out.
    """
    by_measure: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        described = what(run)
        if described is not None:
            by_measure.setdefault(json.dumps(described, sort_keys=True), []).append(number)
    return list(by_measure.values())


def reason(runs: Sequence[Run]) -> str:
    """Return why the losses of these runs do not all share a chart, or an empty text if they do."""
    settings = [measured(run) for run in runs]
    differing = [name for name in settings[0] if any(one[name] != settings[0][name] for one in settings)]
    if not differing:
        return ""
    named = [f"{name}{_values([one[name] for one in settings])}" for name in differing]
    return (
        f"Losses that are not comparable are in separate charts; the runs differ in {', '.join(named)}. Bits per byte of "
        f"whole documents are comparable, for runs that have them."
    )


def without_likelihood(runs: Sequence[Run]) -> list[str]:
    """Return the names of the validated runs whose last validation has no bits per byte of whole documents."""
    return [run.name for run in runs if run.validations and FIELD not in run.validations[-1]]


def _values(values: Sequence[Any]) -> str:
    shown = [value.get("kind") if isinstance(value, Mapping) else value for value in values]
    different = list(
        dict.fromkeys(str(value) for value in shown if isinstance(value, str | int) and len(str(value)) < 20)
    )
    return f" ({', '.join(different)})" if len(different) > 1 else ""
