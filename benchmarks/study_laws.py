"""Benchmark the laws of studies on the runs of RegMix (`sail-sg/regmix`, Pile-CC loss): how well they rank
unseen mixtures, how close the estimate by cross-validation comes to that, what a fit costs, and how few large
runs suffice in addition to small ones.

    GRISTMILL_DATA=... python -m benchmarks.study_laws [LAW ...]

Each law is fitted to draws of 32, 64 and 128 of the 512 runs of 1M parameters (20 draws, seeds 0 to 19; 3 for
the Gaussian process and the peer) and to all 512. Scores are Spearman's correlation on the 256 test mixtures,
for runs of 1M and of 60M parameters. The peer is scipy's `curve_fit` of the same formula as `log_linear`,
with the robust loss `soft_l1`, from one starting point. `lightgbm` needs the extra `studies` and is left out
without it. Times are processor time of one thread.
"""

import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.optimize import curve_fit

from benchmarks.signals import machine
from trainers.studies.laws import LAWS
from trainers.studies.laws.agreement import spearman
from trainers.studies.laws.cross_validation import cross_validate
from trainers.studies.laws.regression_law import Law
from trainers.studies.laws.single_thread import single_threaded
from trainers.studies.laws.sized_law import SizedLaw
from trainers.studies.run_table import read_run_table

TARGET = "metric/the_pile_pile_cc_val_loss"
DRAWS, SLOW_DRAWS = 20, 3
Fit = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]


def read(part: str) -> tuple[np.ndarray, np.ndarray]:
    directory = Path(os.environ["GRISTMILL_DATA"]) / "mixtures" / "regmix"
    kind, size = part.split("_")
    files = directory / f"{kind}_mixture_{size}.csv", directory / f"{kind}_pile_loss_{size}.csv"
    table = read_run_table(*files, normalise=True, chosen=[TARGET])
    return table.ratios, table.values[:, 0]


def of_law(law: Law) -> Fit:
    return lambda ratios, values: law.fit(ratios, values).predict


def peer(ratios: np.ndarray, values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def formula(x: np.ndarray, offset: float, *weights: float) -> np.ndarray:
        return offset + np.exp(np.minimum(x @ np.array(weights), 30.0))

    start = [float(values.min()) - 0.3, *np.zeros(ratios.shape[1])]
    found, _ = curve_fit(formula, ratios, values, start, method="trf", loss="soft_l1", max_nfev=5000)
    return lambda x: formula(x, *found)


def score(name: str, fit: Fit, draws: int) -> None:
    ratios, values = read("train_1m")
    tests = [read("test_1m"), read("test_60m")]
    cells = []
    for runs in (32, 64, 128, 512):
        scores = []
        for seed in range(draws if runs < 512 else 1):
            rows = np.random.default_rng(seed).permutation(512)[:runs]
            predict = fit(ratios[rows], values[rows])
            scores.append([spearman(losses, predict(x)) for x, losses in tests])
        cells.append(" / ".join(f"{value:.3f}" for value in np.mean(scores, axis=0)))
    began = time.process_time()
    for _ in range(3):
        fit(ratios, values)
    seconds = (time.process_time() - began) / 3
    print(f"{name:18} {'   '.join(cells)}   {seconds:.4f} s", flush=True)


def validate(law: Law) -> None:
    ratios, values = read("train_1m")
    mixtures, losses = read("test_1m")
    for runs in (128, 512):
        gaps, covered, missed, seconds = [], 0, 0, 0.0
        draws = DRAWS if runs < 512 else 1
        for seed in range(draws):
            rows = np.random.default_rng(seed).permutation(512)[:runs]
            began = time.process_time()
            ours = cross_validate([law], ratios[rows], values[rows], np.zeros(runs, dtype=bool)).agreement
            seconds += time.process_time() - began
            truth = spearman(losses, law.fit(ratios[rows], values[rows]).predict(mixtures))
            gaps.append(ours.spearman - truth)
            inside = ours.low <= truth <= ours.high
            covered += inside
            missed += not inside and abs(gaps[-1]) > (0.04 if runs < 512 else 0.02)
        print(
            f"cross-validation of {law.name} from {runs}: estimate minus truth {np.mean(gaps):+.3f}, mean size "
            f"{np.abs(gaps).mean():.3f}, largest {np.abs(gaps).max():.3f}; the interval covers the truth in {covered} of "
            f"{draws}, {missed} are neither covered nor close; {seconds / draws:.2f} s",
            flush=True,
        )


def sizes() -> None:
    """Predict runs of 60M from all runs of 1M together with a few of 60M, and from those few alone."""
    small, (mixtures, losses) = read("train_1m"), read("test_60m")
    law = LAWS["log_linear"]
    for runs in (4, 8, 32, 64):
        rows = []
        for seed in range(DRAWS // 2):
            kept, others = np.split(np.random.default_rng(seed).permutation(len(losses)), [runs])
            features = np.concatenate([_at(small[0], 1 / 60), _at(mixtures[kept], 1.0)])
            both = SizedLaw(law, 1).fit(features, np.concatenate([small[1], losses[kept]]))
            fits = [both.predict(_at(mixtures[others], 1.0))]
            if runs >= law.minimum_runs(mixtures.shape[1]):
                fits.append(law.fit(mixtures[kept], losses[kept]).predict(mixtures[others]))
            rows.append([(_error(found, losses[others]), spearman(losses[others], found)) for found in fits])
        shown = [f"error {error:.3f}, Spearman {rho:.3f}" for error, rho in np.mean(rows, axis=0)]
        print(f"{runs} runs of 60M with those of 1M, then alone: {'; '.join(shown)}", flush=True)


def _at(mixtures: np.ndarray, size: float) -> np.ndarray:
    return np.concatenate([mixtures, np.full((len(mixtures), 1), np.log(size))], axis=1)


def _error(predicted: np.ndarray, measured: np.ndarray) -> float:
    return float(np.sqrt(((predicted - measured) ** 2).mean()))


@single_threaded()
def main() -> None:
    names = sys.argv[1:] or [name for name in LAWS if name != "lightgbm" or find_spec("lightgbm")]
    print(machine())
    print(f"{'Spearman 1M / 60M':18} {'   '.join(f'{runs:<13}' for runs in (32, 64, 128, 512))}   fit to 512")
    for name in names:
        score(name, of_law(LAWS[name]), SLOW_DRAWS if name == "gaussian_process" else DRAWS)
    if "log_linear" in names:
        score("scipy curve_fit", peer, SLOW_DRAWS)
        validate(LAWS["log_linear"])
        sizes()


if __name__ == "__main__":
    main()
