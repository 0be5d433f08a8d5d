"""Run the study of docs/encoders.md: python docs/encoders/compare.py FILE pretrain|finetune|table [ENCODER
...]

`pretrain` trains the encoders of FILE (encoders.yaml). `finetune` trains each encoder on the tasks, from its
weights at equal tokens and at equal operations. `table` compares the results. All encoders, all seeds
(`--seed`) and both budgets (`--budget`) are the default. `scratch` is the baseline with random weights, which
`finetune` trains as the control.

A command that was stopped continues when it is run again.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from trainers.__main__ import main as trainers
from trainers.tasks.predictions import read_predictions
from trainers.tasks.scores import METRICS

BUDGETS = ("tokens", "operations")
SCRATCH = "scratch"
DRAWS = 1000


def assignments(settings: dict[str, Any]) -> list[str]:
    """Return settings as `a.b=value` arguments."""
    return [
        f"{name}={yaml.safe_dump(value, default_flow_style=True).split(chr(10))[0]}" for name, value in settings.items()
    ]


def steps_of(study: dict[str, Any], name: str, budget: str) -> int:
    """Return the step of a pretraining run at which it has spent a budget."""
    steps: int = study["encoders"][name]["steps"][BUDGETS.index(budget)]
    return steps


def budgets_of(study: dict[str, Any], name: str) -> tuple[str, ...]:
    """Return the budgets at which an encoder is measured: both, unless they end at the same step."""
    is_one = name == SCRATCH or len(set(study["encoders"][name]["steps"])) == 1
    return BUDGETS[:1] if is_one else BUDGETS


def pretraining(study: dict[str, Any], name: str, seed: int) -> list[str]:
    """Return the arguments of `trainers` that pretrain an encoder, with checkpoints at the end of both budgets."""
    encoder = study["encoders"][name]
    first, last = sorted(encoder["steps"])
    settings = study["settings"] | encoder.get("settings", {})
    own = {
        "seed": seed,
        "budget.steps": last,
        "checkpoints.every": first,
        "checkpoints.keep_every": first,
        "checkpoints.keep": 1,
    }
    shown = {"validation.every": last, "validation.tokens": 8192, "log_every": 10}
    run = f"{study['output']}/{name}/seed_{seed}/pretraining"
    return [
        "pretrain",
        encoder["recipe"],
        f"corpus={study['corpus']}",
        f"run={run}",
        *assignments(settings | own | shown),
    ]


def finetuning(study: dict[str, Any], name: str, seed: int, budget: str, task: str) -> list[str]:
    """Return the arguments of `trainers` that train an encoder on a task, from its weights at the end of a
    budget or, for SCRATCH, from random weights.
    """
    folder = f"{study['output']}/{name}/seed_{seed}"
    settings = study["finetuning"]["settings"] | study["finetuning"]["tasks"][task] | {"seed": seed}
    if name == SCRATCH:
        base = study["encoders"][study["baseline"]]
        tokenizer = f"{study['output']}/{study['baseline']}/seed_{seed}/pretraining/tokenizer.json"
        sizes = {
            key: value for key, value in (study["settings"] | base["settings"]).items() if key.startswith("model.")
        }
        model, settings = [f"model={base['recipe']}", f"tokenizer={tokenizer}"], settings | sizes
    else:
        model, settings = [f"model={folder}/pretraining"], settings | {"init.step": steps_of(study, name, budget)}
    return ["finetune", task, *model, f"run={folder}/{budget}/{task}", *assignments(settings)]


def predictions_path(study: dict[str, Any], name: str, seed: int, budget: str, task: str) -> LocalPath:
    """Return the file of an encoder's predictions for the development split."""
    budget = budget if budget in budgets_of(study, name) else BUDGETS[0]
    return LocalPath(study["output"], name, f"seed_{seed}", budget, task, "predictions", "dev.parquet")


def seeds_of(study: dict[str, Any], name: str, budget: str) -> list[int]:
    """Return the seeds with which an encoder has been trained on all tasks."""
    tasks = study["finetuning"]["tasks"]
    return [
        s
        for s in range(study["seeds"])
        if all(predictions_path(study, name, s, budget, task).exists() for task in tasks)
    ]


def resampled(study: dict[str, Any], name: str, seeds: list[int], budget: str, task: str) -> np.ndarray:
    """Return the first metric of a task by seed, float64 [seeds, 1 + DRAWS]: on all examples, then on
    bootstrap samples.

    The samples are the same for all encoders and seeds.
    """
    values = []
    for seed in seeds:
        predictions = read_predictions(predictions_path(study, name, seed, budget, task))
        metric = METRICS[predictions.task.metrics[0]]
        statistics = metric.statistics(predictions.decided)
        n = len(statistics)
        weights = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), DRAWS).astype(np.float64)
        values.append(metric.value(statistics, np.concatenate([np.ones((1, n)), weights])))
    return np.array(values)


def cost(study: dict[str, Any], name: str, seed: int, budget: str) -> tuple[float, float, float]:
    """Return the tokens, operations and seconds of an encoder's steps up to the end of a budget, from the log
    of its run.

    Steps after the last logged one are extrapolated from those before it.
    """
    spent = np.zeros(3)
    last = steps_of(study, name, budget)
    for event in read_events(LocalPath(study["output"], name, f"seed_{seed}", "pretraining", "log.jsonl")):
        if event["event"] == "step" and event["step"] <= last:
            read = event["tokens"] - spent[0]
            spent += [read, sum(event["flops"].values()), read / event["tokens_per_second"]]
            logged = event["step"]
    tokens, operations, seconds = spent * last / logged
    return tokens, operations, seconds


def table(study: dict[str, Any], names: list[str]) -> list[str]:
    """Return a Markdown table for each budget, with scores by task and their differences from the baseline."""
    base, tasks = study["baseline"], list(study["finetuning"]["tasks"])
    lines = []
    for budget in BUDGETS:
        heads = ["encoder", "tokens", "TFLOP", "seconds", *tasks]
        lines += [f"Equal {budget}:", "", "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
        for name in names:
            seeds = seeds_of(study, name, budget)
            if not seeds:
                continue
            values = np.stack([resampled(study, name, seeds, budget, task) for task in tasks])
            others = np.stack([resampled(study, base, seeds, budget, task) for task in tasks])
            cells = [_cell(*pair, name == base) for pair in zip(values, others, strict=True)]
            spent = ["0"] * 3
            if name != SCRATCH:
                tokens, operations, seconds = cost(study, name, seeds[0], budget)
                spent = [f"{tokens / 1e6:.2f} M", f"{operations / 1e12:.2f}", f"{seconds:.0f}"]
            lines.append("| " + " | ".join([name, *spent, *cells]) + " |")
        lines.append("")
    return lines


def _cell(values: np.ndarray, others: np.ndarray, is_base: bool) -> str:
    """Return a table cell with the mean over seeds and a 95 % interval.

    Unless the encoder is the baseline, the interval is of the difference from it, and the difference for each
    seed follows.
    """
    mean = f"{values[:, 0].mean():.3f}"
    if is_base:
        low, high = np.quantile(values[:, 1:].mean(0), [0.025, 0.975])
        return f"{mean} [{low:.3f}, {high:.3f}]"
    differences = values - others
    low, high = np.quantile(differences[:, 1:].mean(0), [0.025, 0.975])
    seeds = ", ".join(f"{value:+.3f}" for value in differences[:, 0])
    return f"{mean}, {differences[:, 0].mean():+.3f} [{low:+.3f}, {high:+.3f}] ({seeds})"


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", metavar="FILE", type=Path)
    parser.add_argument("command", choices=("pretrain", "finetune", "table"))
    parser.add_argument("encoders", metavar="ENCODER", nargs="*")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--budget", choices=BUDGETS)
    options = parser.parse_args()
    study = yaml.safe_load(options.file.read_text())
    known = [*study["encoders"], *([] if options.command == "pretrain" else [SCRATCH])]
    if unknown := set(options.encoders) - set(known):
        parser.error(f"ENCODER: got {', '.join(sorted(unknown))}, expected some of {', '.join(known)}")
    names = options.encoders or known
    if options.command == "table":
        print("\n".join(table(study, names)))
        return 0
    for seed in range(study["seeds"]) if options.seed is None else [options.seed]:
        for name in names:
            commands = (
                [pretraining(study, name, seed)]
                if options.command == "pretrain"
                else [
                    finetuning(study, name, seed, budget, task)
                    for budget in budgets_of(study, name)
                    if options.budget in (None, budget)
                    for task in study["finetuning"]["tasks"]
                ]
            )
            for command in commands:
                print(f"trainers {' '.join(command)}", flush=True)
                if status := trainers(command):
                    return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
