"""Fit the laws of a study and propose its mixture, from the files in its directory."""

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from gristmill.config import load_yaml
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import write_json
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.fit_study import MetricFit, fit_metrics, fit_record, law_set, laws_of
from trainers.studies.laws.law_set import LawSet
from trainers.studies.outcomes.study_table import metric_noise, run_table, write_tables
from trainers.studies.proposals.propose import Proposal, proposal_record, propose
from trainers.studies.run_table import RunTable
from trainers.studies.running.train_study_run import RunResult

FIT, PROPOSAL, CONFIRMATION = "fit.json", "proposal.yaml", "confirmation.json"
_DIGITS = 6  # of a proposal's shares, so that finding it again gives the same runs


@dataclass(frozen=True)
class StudyFit:
    """The table of a study, the laws of its metrics with their scores, and the same laws fitted to bootstrap
    draws.
    """

    table: RunTable
    fits: list[MetricFit]
    laws: LawSet


def require_mixtures(opened: OpenStudy, what: str) -> None:
    """Raise UserError unless the study's design has mixtures."""
    if not opened.study.has_mixtures:
        raise UserError(
            f"study {opened.study.name}: the design {opened.study.design.kind} has no mixtures to {what}; "
            f"`study report` compares its runs"
        )


def fit_step(opened: OpenStudy, root: LocalPath, results: Mapping[str, RunResult]) -> StudyFit:
    """Write `ratios.csv`, `metrics.csv` and `fit.json`. Raises ConfigError if there are too few runs for a law."""
    require_mixtures(opened, "fit")
    table = run_table(opened, results)
    write_tables(table, root)
    fits = fit_metrics(table, laws_of(opened.study.laws))
    laws = law_set(table, fits, opened.settings.draws)
    record = fit_record(table, fits, laws)
    noise = metric_noise(opened, results, table)
    record["noise"] = {n.metric: {"anchors": n.anchors, "noise": _finite(n.noise), "signal": n.signal} for n in noise}
    write_json(root / FIT, record)
    return StudyFit(table, fits, laws)


def propose_step(opened: OpenStudy, root: LocalPath, fit: StudyFit) -> Proposal:
    """Write `proposal.yaml`, whose `weights` a run takes as `data.weights=FILE`."""
    proposal = propose(fit.laws, fit.table.ratios, opened.settings)
    record = proposal_record(proposal)
    (root / PROPOSAL).write_atomic(yaml.safe_dump(record, sort_keys=False).encode())
    return proposal


def read_proposal(opened: OpenStudy, root: LocalPath) -> dict[str, float]:
    """Return the mixture in `proposal.yaml`, to six digits. Raises UserError if there is none yet."""
    if not (root / PROPOSAL).exists():
        raise UserError(f"{root}: has no {PROPOSAL} yet; make it with `study propose`")
    weights = load_yaml(root / PROPOSAL)["weights"]
    opened.require_domains(PROPOSAL, weights)
    return {name: round(float(share), _DIGITS) for name, share in weights.items()}


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
