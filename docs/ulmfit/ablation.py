"""Run the ablation of ULMFiT in docs/finetuning.md: python docs/ulmfit/ablation.py FILE
pretrain|finetune|table [--seed N]

`pretrain` trains the language models of FILE (ulmfit.yaml), `finetune` trains the classifiers, and `table`
compares them. All seeds are the default. A command that was stopped continues when it is run again.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gristmill.storage.disk import LocalPath
from trainers.__main__ import main as trainers
from trainers.tasks.predictions import read_predictions
from trainers.tasks.scores import METRICS

DRAWS = 1000


def assignments(settings: dict[str, Any]) -> list[str]:
    """Return settings as `a.b=value` arguments."""
    return [f"{name}={yaml.safe_dump(value).split(chr(10))[0]}" for name, value in settings.items()]


def pretraining(study: dict[str, Any], name: str, seed: int) -> list[str]:
    """Return the arguments of `trainers` that train a language model."""
    model, folder = study["language_models"][name], f"{study['output']}/seed_{seed}"
    start = {"init.path": f"{folder}/{model['from']}"} if model.get("from") else {}
    settings = {"corpus": model["corpus"], "run": f"{folder}/{name}", "seed": seed} | start | model["settings"]
    return ["pretrain", study["recipe"], *assignments(settings)]


def finetuning(study: dict[str, Any], name: str, seed: int) -> list[str]:
    """Return the arguments of `trainers` that train a classifier."""
    classifier, folder = study["classifiers"][name], f"{study['output']}/seed_{seed}"
    if "model" in classifier:
        model = {"model": f"{folder}/{classifier['model']}"}
    else:
        first = next(iter(study["language_models"]))
        model = {"model": study["recipe"], "tokenizer": f"{folder}/{first}/tokenizer.json"}
    settings = model | study["classifier"] | classifier.get("settings", {})
    run = f"{folder}/classifiers/{name.replace(' ', '_')}"
    return ["finetune", study["task"], *assignments(settings | {"run": run, "seed": seed})]


def resampled(study: dict[str, Any], name: str) -> dict[int, np.ndarray]:
    """Return the first metric of the task by seed, each float64 [1 + DRAWS]: on all examples, then on
    bootstrap samples.

    The samples are the same for all classifiers and seeds. Seeds without predictions are left out.
    """
    values = {}
    for seed in range(study["seeds"]):
        folder = LocalPath(study["output"], f"seed_{seed}", "classifiers", name.replace(" ", "_"))
        path = folder / "predictions" / "dev.parquet"
        if not path.exists():
            continue
        predictions = read_predictions(path)
        metric = METRICS[predictions.task.metrics[0]]
        statistics = metric.statistics(predictions.decided)
        n = len(statistics)
        weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), DRAWS).astype(np.float64)
        values[seed] = metric.value(statistics, np.concatenate([np.ones((1, n)), weights]))
    return values


def table(study: dict[str, Any]) -> list[str]:
    """Return a Markdown table: mean scores over seeds, and differences from the complete method with the same seeds."""
    whole = resampled(study, study["whole"])
    lines = ["| | mean | difference, 95 % interval | of the seeds |", "|---" * 4 + "|"]
    for name in study["classifiers"]:
        is_whole, values = name == study["whole"], resampled(study, name)
        compared = [its if is_whole else its - whole[seed] for seed, its in values.items() if is_whole or seed in whole]
        if not compared:
            continue
        mean = np.mean(compared, axis=0)
        low, high = np.quantile(mean[1:], [0.025, 0.975])
        sign, centre = ("", "") if is_whole else ("+", f"{mean[0]:+.3f} ")
        scores = [its[0] for its in values.values()]
        cells = [f"{np.mean(scores):.3f}", f"{centre}[{low:{sign}.3f}, {high:{sign}.3f}]"]
        lines.append("| " + " | ".join([name, *cells, ", ".join(f"{score:.3f}" for score in scores)]) + " |")
    return lines


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("command", choices=("pretrain", "finetune", "table"))
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    study = yaml.safe_load(options.file.read_text())
    if options.command == "table":
        print("\n".join(table(study)))
        return 0
    of, names = (
        (pretraining, study["language_models"]) if options.command == "pretrain" else (finetuning, study["classifiers"])
    )
    for seed in range(study["seeds"]) if options.seed is None else [options.seed]:
        for name in names:
            command = of(study, name, seed)
            print(f"trainers {' '.join(command)}", flush=True)
            if status := trainers(command):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
