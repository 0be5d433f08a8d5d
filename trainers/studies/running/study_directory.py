"""The directory of a study.

study.yaml         the study as it was last run, with every field
registered.json    the rule of the verdict, written before the first run
runs/KEY/          a run: its log, ledger, settings and result (result.json)
calibration/KEY/   short runs that only measure speed
corpora/KEY.log    the output of a corpus build; KEY.json says why the build failed (build_corpora)
ratios.csv  metrics.csv  fit.json  proposal.yaml  confirmation.json  scaling.json  report.html
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill.config import dump_yaml, load_yaml, override, parse, plain
from gristmill.errors import ConfigError, ConflictError, CorruptFileError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_local
from gristmill.storage.store import read_json, write_new_json
from trainers.studies.designs.study_run import StudyRun
from trainers.studies.running.train_study_run import RunResult, read_result
from trainers.studies.schema.study_file import Study

STUDY, REGISTERED, RUNS, CALIBRATION = "study.yaml", "registered.json", "runs", "calibration"
_FORMAT = "gristmill-study/1"


def load_study(path: Path, overrides: Iterable[str] = ()) -> Study:
    """Read a study from a study file or from the directory of a study, with `a.b=value` overrides. If the
    directory has been moved, it becomes the study's `output`. Raises ConfigError if the file is missing or
    invalid.
    """
    file = path / STUDY if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise ConfigError(f"{path}: holds no {STUDY}; give a study file, or a directory in which a study has run")
    data = load_yaml(file)
    output = data.get("output")
    if path.is_dir() and isinstance(output, str) and "\0" not in output and Path(output).resolve() != path.resolve():
        data = {**data, "output": str(path.absolute())}
    return parse(Study, override(data, list(overrides)), str(file))


def root_of(study: Study) -> LocalPath:
    """Return the directory of a study."""
    return parse_local(study.output, "output")


def results_of(root: LocalPath, runs: Iterable[StudyRun]) -> dict[str, RunResult]:
    """Return the result of each run that has one, keyed by `run.key`."""
    found = {run.key: read_result(root / RUNS / run.key) for run in runs}
    return {key: result for key, result in found.items() if result is not None}


def register(study: Study, root: LocalPath) -> list[str]:
    """Write the study file and, if no rule is registered yet, register the rule that decides the verdict.
    Return a line for each field that has changed since the study last ran. Raises ConflictError if the rule
    differs from the registered one.
    """
    root.mkdir(parents=True, exist_ok=True)
    if not write_new_json(root / REGISTERED, {"format": _FORMAT, "rule": _rule(study)}):
        check_registered(study, root)
    changes = _changes(study, root)
    text = dump_yaml(plain(study))
    (root / STUDY).write_atomic(text.encode())
    return changes


def check_registered(study: Study, root: LocalPath) -> None:
    """Raise ConflictError if the rule of the verdict differs from the registered one."""
    if not (root / REGISTERED).exists():
        return
    known, rule = _registered(root), _rule(study)
    if known != rule:
        names = sorted(n for n in {*known, *rule} if known.get(n) != rule.get(n))
        raise ConflictError(
            f"{root}: {', '.join(names)} {'differ' if len(names) > 1 else 'differs'} from what was registered before the "
            f"first run ({REGISTERED}); use the values in {root / STUDY}, or give the changed study another output"
        )


def _rule(study: Study) -> dict[str, Any]:
    """Return everything that a verdict depends on, apart from the runs."""
    section = "verdict" if study.confirmation is None else "confirmation"
    rule = {section: plain(study.rule), "metrics": plain(study.metrics)}
    rule |= {"answered_by": study.answered_by} if study.answered_by is not None else {}
    if study.confirmation is None and (baseline := getattr(study.design, "baseline", None)) is not None:
        rule["design.baseline"] = baseline
    return rule | {"proposal.weights": plain(study.proposal.weights)}


def _registered(root: LocalPath) -> dict[str, Any]:
    rule: dict[str, Any] = read_json(root / REGISTERED, "restore it from a copy, or give the study another output")[
        "rule"
    ]
    return rule


def _changes(study: Study, root: LocalPath) -> list[str]:
    try:
        before = plain(load_study(root / STUDY))
    except (ConfigError, CorruptFileError):
        return []
    return list(_differences(before, plain(study)))


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif old != new or (key in before) != (key in now):
            shown = [repr(fields[key]) if key in fields else "nothing" for fields in (before, now)]
            yield f"{prefix}{key}: {shown[0]} -> {shown[1]}"
