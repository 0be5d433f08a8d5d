"""Fit the laws of a study to the results of its runs, propose a mixture, and read the fit and the proposal
back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.config import dump_yaml, load_yaml, parse, plain
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import digest, read_json, write_json
from trainers.config.pretraining import Data
from trainers.studies.designs.study_runs import OpenStudy
from trainers.studies.fit_study import MetricFit, fit_metrics, fit_record, laws_of
from trainers.studies.laws import LAWS
from trainers.studies.laws.domain_curves import domain_curves
from trainers.studies.laws.law_set import LawSet, fit_laws
from trainers.studies.outcomes.study_table import metric_noise, run_table, write_tables
from trainers.studies.proposals.propose import Proposal, parse_proposal, proposal_record, propose
from trainers.studies.run_table import RunTable
from trainers.studies.running.study_directory import RUNS
from trainers.studies.running.train_study_run import RunResult, read_result

FIT, PROPOSAL, CONFIRMATION = "fit.json", "proposal.yaml", "confirmation.json"
FORMAT = 3  # of fit.json
DIGITS = 6  # of a proposal's shares, so that finding it again gives the same runs


@dataclass(frozen=True)
class StudyFit:
    """The table of a study's runs, the law chosen for each metric, and these laws fitted to all runs and to
    bootstrap draws.
    """

    table: RunTable
    fits: list[MetricFit]
    laws: LawSet


def require_mixtures(opened: OpenStudy, what: str) -> None:
    """Raise UserError unless the study's design has mixtures. `what` is the verb, such as "fit", that ends
    the message "has no mixtures to …".
    """
    if not opened.study.has_mixtures:
        raise UserError(
            f"study {opened.study.name}: the design {opened.study.design.kind} has no mixtures to {what}; "
            f"`study report` compares its runs"
        )


def basis_of(opened: OpenStudy, table: RunTable) -> str:
    """Return a digest of everything that fitted laws depend on. It tells later steps whether `fit.json` is up
    to date.
    """
    return digest([table.fingerprint, list(opened.study.laws), plain(opened.settings)])


def fit_step(opened: OpenStudy, root: LocalPath, results: Mapping[str, RunResult]) -> StudyFit:
    """Fit the laws, write `ratios.csv`, `metrics.csv` and `fit.json` to `root`, and return the fit. Raises
    UserError if the design has no mixtures or no run has finished, and ConfigError if there are too few runs
    for a law.
    """
    require_mixtures(opened, "fit")
    table = run_table(opened, results)
    write_tables(table, root)
    fits = fit_metrics(table, laws_of(opened.study.laws))
    laws = _resampled(opened, table, [fit.law.name for fit in fits])
    noise = metric_noise(opened, results, table)
    weights = opened.settings.measured(table.metrics).metric_weights(table.metrics)
    record = {
        "format": FORMAT,
        "basis": basis_of(opened, table),
        **fit_record(table, fits, laws, opened.prior),
        "mean_effects": laws.mean_effects(opened.prior, weights),
        "curves": domain_curves(laws, table.ratios, opened.prior, weights),
        "noise": {n.metric: {"anchors": n.anchors, "noise": _finite(n.noise), "signal": n.signal} for n in noise},
    }
    write_json(root / FIT, record)
    return StudyFit(table, fits, laws)


def read_fit(root: LocalPath) -> dict[str, Any]:
    """Return the record that `fit_step` wrote. Raises UserError if it is missing or has another format
    version.
    """
    if not (root / FIT).exists():
        raise UserError(f"{root}: has no {FIT} yet; make it with `study fit`")
    record: dict[str, Any] = read_json(root / FIT, "make it again with `study fit`")
    if record.get("format") != FORMAT:
        raise UserError(f"{root / FIT}: was written by another version; make it again with `study fit`")
    return record


def fitted_laws(opened: OpenStudy, root: LocalPath, table: RunTable) -> LawSet | None:
    """Fit the laws named in `fit.json` again, to all runs and to bootstrap draws. Returns None if the file
    cannot be read or is out of date.
    """
    try:
        record = read_fit(root)
    except UserError:
        return None
    if record["basis"] != basis_of(opened, table):
        return None
    return _resampled(opened, table, [record["metrics"][name]["law"] for name in table.metrics])


def _resampled(opened: OpenStudy, table: RunTable, laws: list[str]) -> LawSet:
    chosen, draws = [LAWS[name] for name in laws], opened.settings.draws
    return fit_laws(chosen, table.domains, table.metrics, table.ratios, table.values, table.censored, draws)


def doremi_mixture(opened: OpenStudy, root: LocalPath) -> dict[str, np.ndarray]:
    """Return a dictionary that maps `doremi` to the mixture that DoReMi found, [domains]. It is empty if the
    study has no finished run with group DRO.
    """
    if not opened.doremi:
        return {}
    result = read_result(root / RUNS / opened.doremi[-1].key)
    if result is None or result.state != "finished":
        return {}
    return {"doremi": np.array([result.domain_weights[name] for name in opened.domains])}


def proposal_basis(opened: OpenStudy, root: LocalPath, table: RunTable) -> str:
    """Return a digest of everything that a proposal depends on. It tells later steps whether `proposal.yaml`
    is up to date.
    """
    others = {name: its.tolist() for name, its in doremi_mixture(opened, root).items()}
    return digest([basis_of(opened, table), others]) if others else basis_of(opened, table)


def propose_step(opened: OpenStudy, root: LocalPath, table: RunTable, laws: LawSet) -> Proposal:
    """Propose a mixture, write it to `proposal.yaml` and return the proposal. A run reads the file's
    `weights` with `data.weights=FILE`.
    """
    proposal = propose(laws, table.ratios, opened.settings.measured(laws.metrics), others=doremi_mixture(opened, root))
    record = proposal_record(proposal)
    if opened.reused:
        record = {"weights": opened.mixture(proposal.ratios), "shares": record.pop("weights"), **record}
    record = {**record, "basis": proposal_basis(opened, root, table)}
    (root / PROPOSAL).write_atomic(dump_yaml(record).encode())
    return proposal


def read_proposal(opened: OpenStudy, root: LocalPath) -> dict[str, float]:
    """Return the share of each leaf domain in the mixture in `proposal.yaml`. Raises UserError if there is no
    proposal or it lacks `weights`, and ConfigError if these are not shares or name a domain that the corpus lacks.
    """
    record = _load_proposal(root)
    opened.require_domains(PROPOSAL, record["weights"])
    shares = record.get("shares", record["weights"])
    if opened.reused and set(shares) == set(opened.domains):
        return opened.reused.expand({name: round(float(share), DIGITS) for name, share in shares.items()})
    return {name: round(float(weight), DIGITS) for name, weight in record["weights"].items()}


def read_full_proposal(root: LocalPath) -> tuple[Proposal, str]:
    """Return the proposal in `proposal.yaml` and its `proposal_basis`. Raises UserError if the file is
    missing, incomplete or damaged, and ConfigError if its weights are not shares.
    """
    record = _load_proposal(root)
    try:
        return parse_proposal(record), record["basis"]
    except KeyError as error:
        raise UserError(f"{root / PROPOSAL}: lacks {error}; make it again with `study propose`") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{root / PROPOSAL}: is damaged ({error}); make it again with `study propose`") from None


def _load_proposal(root: LocalPath) -> dict[str, Any]:
    if not (root / PROPOSAL).exists():
        raise UserError(f"{root}: has no {PROPOSAL} yet; make it with `study propose`")
    record = load_yaml(root / PROPOSAL)
    for name in ("weights", "shares") if "shares" in record else ("weights",):
        if not isinstance(record.get(name), dict):
            raise UserError(f"{root / PROPOSAL}: lacks the mapping {name!r}; make it again with `study propose`")
        where = f"{root / PROPOSAL}{': in shares' if name == 'shares' else ''}"
        parse(Data, {"weights": record[name]}, where)  # raises unless every share is a number, 0 or more
    return record


def _finite(value: float) -> float | None:
    return value if abs(value) < float("inf") else None
