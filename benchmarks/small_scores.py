"""Train four small models (two sizes, two mixtures of prose) and a fifth whose mixture contains items of
BoolQ, and evaluate the four on several suites, to see which tasks are above chance and which separate the
models. BoolQ shows the effect of contamination on the fifth. docs/evaluation.md explains the figures.

    GRISTMILL_DATA=... python -m benchmarks.small_scores DIRECTORY [--demo runs/demo] [--steps 500]

DIRECTORY gets the texts, the corpus, the runs, a page for each suite, and summary.md. Existing results are
kept, so an interrupted command can be run again to continue. `--demo` adds another run to evaluate.
"""

import argparse
import gzip
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from os import environ
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from trainers.evaluation.suites.items import read_items
from trainers.tasks.load_task import load_task

SOURCES = {"books": "textbooks", "wiki": "wiki_en", "talk": "dialogue", "forum": "forum_20news"}
SLICE = 3_000_000  # characters of each source
MIXTURES = {"reading": {"books": 0.5, "wiki": 0.5}, "talk": {"talk": 0.5, "forum": 0.5}}
PLANTED = {"books": 0.2, "wiki": 0.2, "planted": 0.6}
SIZES = {
    "small": ("model.width=64", "model.feed_forward=256"),
    "large": (),
}  # of demo_decoder, which has a width of 128
ITEMS = 100  # of BoolQ, in the source `planted`
# Items of each split or subtask. `likelihood` takes so many documents of each source.
SUITES = {"facts": 1, "answers": 10, "core": 200, "blimp": 20, "probes": 200, "likelihood": 10}
# Of the suite gpt3, the tasks whose files are among the development data.
GPT3 = "lambada,hellaswag,piqa,arc_easy,openbookqa,winogrande,copa_cloze,boolq,rte,cb"
GPT3_ITEMS, GPT3_SHOTS = 12, (0, 1, 10)
OVER_TRAINING = {"blimp": 5}
SCORED = 600  # items of BoolQ, among them the planted ones


def data() -> Path:
    return Path(environ["GRISTMILL_DATA"])


def run(*words: object) -> None:
    command = [sys.executable, "-m", *map(str, words)]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"{time.perf_counter() - began:6.0f} s  {' '.join(command[2:])}", flush=True)


def write_texts(texts: Path) -> None:
    """Write the slices of prose, and the first items of BoolQ with their answers, as `evaluate` shows them to
    a model.
    """
    texts.mkdir(parents=True, exist_ok=True)
    for name, file in SOURCES.items():
        size = 0
        with (
            gzip.open(data() / "prose" / f"{file}.jsonl.gz", "rt") as lines,
            (texts / f"{name}.jsonl").open("w") as out,
        ):
            for line in lines:
                text = json.loads(line)["text"]
                if size >= SLICE:
                    break
                size += len(text)
                out.write(json.dumps({"text": text}) + "\n")
    items = read_items(load_task("boolq"), "dev", LocalPath(str(data() / "tasks")), limit=ITEMS)
    with (texts / "planted.jsonl").open("w") as out:
        for place in items.offsets[:-1] + items.gold:
            out.write(json.dumps({"text": items.contexts[place] + items.continuations[place]}) + "\n")


def build_corpus(root: Path) -> Path:
    corpus, items = root / "corpus", root / "items.jsonl"
    if (corpus / "manifest.json").exists():
        return corpus
    run("trainers", "evaluate", "task=boolq", f"data={data() / 'tasks'}", "--write-items", items)
    write_texts(root / "texts")
    searched = {"name": "boolq", "file": str(items), "ids": "id", "prompts": ["prompt"], "answers": ["answer"]}
    plan = {
        "name": "small_scores",
        "output": str(corpus),
        "sources": [
            {"name": name, "root": str(root / "texts" / f"{name}.jsonl"), "format": "jsonl"}
            | ({"tokenizer_share": 0.01} if name == "planted" else {})
            for name in (*SOURCES, "planted")
        ],
        "steps": [
            {"decontaminate": {"sets": [searched]}},
            {"text_hash": {}},
            {"dedup_exact": {}},
            {"learn_tokenizer": {"vocab_size": 4096, "sample_bytes": 8_000_000}},
            {"shards": {"tokenizer": "learn_tokenizer", "validation_share": 0.02}},
        ],
    }
    (root / "corpus.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    run("pipelines", "build", root / "corpus.yaml")
    return corpus


def train(root: Path, corpus: Path, name: str, weights: dict[str, float], size: Sequence[str], steps: int) -> Path:
    """Train a model with five checkpoints, unless it is finished."""
    place = root / "runs" / name
    if not (place / "finished.json").exists():
        shares = {source: weights.get(source, 0.0) for source in (*SOURCES, "planted")}
        settings = [f"budget.steps={steps}", f"checkpoints.every={steps // 5}", f"checkpoints.keep_every={steps // 5}"]
        settings += [f"data.weights={json.dumps(shares)}", f"validation.every={steps // 2}", *size]
        run("trainers", "pretrain", "demo_decoder", f"corpus={corpus}", f"run={place}", *settings)
    return place


def evaluate(root: Path, suite: str, limit: int, models: Sequence[Path], *more: str) -> dict[str, Any]:
    """Evaluate models on a suite or on `task=...`, unless results exist; return the scores.

    With `--checkpoints` in `more`, the scores are those of all checkpoints.
    """
    shots = [word for word in more if word.startswith("shots=")]
    name = "_".join(
        [f"gpt3_{shots[0]}" if shots else suite.removeprefix("task="), *["over_training"] * ("--checkpoints" in more)]
    )
    scores, asked = root / f"{name}.json", suite if "=" in suite else f"suite={suite}"
    given = ["trainers", "evaluate", *models, asked, f"limit={limit}"]
    given += [] if suite == "likelihood" else [f"data={data() / 'tasks'}"]
    if not scores.exists():
        run(*given, *more, "--output", scores.with_suffix(".html"))
    if not scores.exists():  # the page of checkpoints has no data beside it
        run(*given, *more, "--output", scores)
    return dict(json.loads(scores.read_text()))


def summary(evaluations: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    """Return the lines of a table of tasks: the scores, how many models are above chance, and how many pairs
    of models differ.
    """
    lines = [
        f"| task | score | chance | {' | '.join(names)} | above chance | pairs apart |",
        "|---" * (len(names) + 5) + "|",
    ]
    for found in evaluations:
        columns = list(dict.fromkeys((each["task"], each["split"]) for each in found["tasks"]))
        for task, split in columns:
            its = [each for each in found["tasks"] if (each["task"], each["split"]) == (task, split)]
            scores = [each["scores"][each["main"]] for each in its]
            cells = [f"{one['value']:.3f}" + ("*" if one.get("verdict") == "above" else "") for one in scores]
            chance = f"{scores[0]['chance']:.3f}" if "chance" in scores[0] else ""
            above = sum(one.get("verdict") == "above" for one in scores) if chance else ""
            pairs = [each for each in found["differences"] if each["name"] == task and each["score"] == its[0]["main"]]
            apart = f"{sum(each['p'] < 0.05 for each in pairs)} of {len(pairs)}"
            lines.append(f"| {task} | {its[0]['main']} | {chance} | {' | '.join(cells)} | {above} | {apart} |")
            if "bits_per_byte" in its[0]["scores"] and its[0]["main"] != "bits_per_byte":
                cells = [f"{each['scores']['bits_per_byte']['value']:.3f}" for each in its]
                lines.append(f"| {task}, gold answers | bits_per_byte | | {' | '.join(cells)} | | |")
    return lines


def signal_lines(name: str, found: dict[str, Any]) -> list[str]:
    lines = [f"\n{name}, last checkpoints\n", "| score | signal | noise | ratio | |", "|---|---|---|---|---|"]
    for one in found["signals"]:
        ratio = "" if one["ratio"] is None else f"{one['ratio']:.1f}"
        mark = "no run above chance" if one["at_chance"] else ""
        lines.append(f"| {one['name']} | {one['signal']:.4f} | {one['noise']:.4f} | {ratio} | {mark} |")
    return lines


def plant_lines(found: dict[str, Any], rows: Path) -> list[str]:
    """Return tables of the contamination by BoolQ, whose planted items only one of the models has read.

    The first table has the scores with and without the items that were found in the corpus. The second has
    each model's accuracy and bits per byte of the answers, on the planted items and on all others.
    """
    lines = ["\n| model | found | all items | without found | found only |", "|---|---|---|---|---|"]
    for each in found["contamination"]:
        parts = [each["all"], each["without_found"], each["found_only"]]
        cells = ["" if one is None else f"{one['value']:.3f} ± {one['error']:.3f}" for one in parts]
        lines.append(f"| {Path(each['model']).name} | {each['found']} of {each['items']} | {' | '.join(cells)} |")
    lines += ["\n| model | items | accuracy | bits per byte of the answers |", "|---|---|---|---|"]
    planted = {str(number) for number in range(ITEMS)}
    read = pq.read_table(rows).to_pylist()
    for model in dict.fromkeys(row["model"] for row in read):
        its = [row for row in read if row["model"] == model]
        for name, among in (
            ("planted", [row for row in its if row["id"] in planted]),
            ("others", [row for row in its if row["id"] not in planted]),
        ):
            right = statistics.mean(row["score"] / row["weight"] for row in among)
            error = (right * (1 - right) / len(among)) ** 0.5
            nats = sum(row["log_likelihood"][row["gold"]] for row in among)
            bits = -nats / math.log(2) / sum(row["bytes"][row["gold"]] for row in among)
            lines.append(f"| {Path(model).name} | {len(among):,} {name} | {right:.3f} ± {error:.3f} | {bits:.3f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--demo", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    root = options.directory.absolute()
    root.mkdir(parents=True, exist_ok=True)
    corpus = build_corpus(root)
    runs = [
        train(root, corpus, f"{mixture}-{size}", weights, settings, options.steps)
        for mixture, weights in MIXTURES.items()
        for size, settings in SIZES.items()
    ]
    planted = train(root, corpus, "planted", PLANTED, SIZES["small"], options.steps)
    boolq = evaluate(root, "task=boolq", SCORED, [root / "runs" / "reading-small", planted])
    models = [*runs, *([options.demo.absolute()] if options.demo else [])]
    found = [evaluate(root, suite, limit, models) for suite, limit in SUITES.items()]
    with_shots = [evaluate(root, f"task={GPT3}", GPT3_ITEMS, models, f"shots={shots}") for shots in GPT3_SHOTS]
    lines = [machine(), "", *summary(found, [model.name for model in models])]
    for shots, one in zip(GPT3_SHOTS, with_shots, strict=True):
        lines += [f"\n{shots} shots\n", *summary([one], [model.name for model in models])]
    for suite, limit in OVER_TRAINING.items():
        lines += signal_lines(suite, evaluate(root, suite, limit, runs, "--checkpoints", "all"))
    lines += plant_lines(boolq, root / "boolq.parquet")
    (root / "summary.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
