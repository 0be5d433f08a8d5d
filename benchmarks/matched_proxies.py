"""Measure the benefit of matching the repetition of proxies: the best share of a tiny domain according to
matched proxies, to unmatched proxies, and to runs of the target's size.

    GRISTMILL_DATA=... python -m benchmarks.matched_proxies DIRECTORY [--tokens 300000] [--runs 12] [--kilobytes 36]

The corpus has a large domain, Wikipedia, and a tiny one, pages of textbooks, which the target repeats many
times. The metrics are the losses on held-out articles and on other pages of these textbooks. Three studies
train the same mixtures: two with a tenth of the target's tokens (matched and unmatched), and one with all of
them. Each study fits the quadratic law (Scheffé, 1958), because the loss of a repeated domain falls and then
rises with its share. For each study, the script prints the best share of the tiny domain, and how much worse
the target is with this share than with its own best one, in bits per byte. Files that exist in DIRECTORY are
reused.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import yaml

from benchmarks.signals import machine
from trainers.studies.laws import LAWS
from trainers.studies.laws.regression_law import FittedLaw
from trainers.studies.run_table import read_run_table

LARGE, HELD = 3_000_000, 300_000  # characters of Wikipedia, and of held-out pages
STUDIES = {"matched": (0.1, True), "not matched": (0.1, False), "target": (1.0, True)}  # share of the tokens, matched


def run(*words: object) -> None:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    print(f"{time.perf_counter() - began:6.0f} s  {' '.join(map(str, words))}", flush=True)


def write_texts(folder: Path, kilobytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ["GRISTMILL_DATA"]) / "prose"
    with gzip.open(data / "wiki_en.jsonl.gz", "rt") as lines, (folder / "wiki.jsonl").open("w") as out:
        size = 0
        for text in (json.loads(line)["text"] for line in lines):
            out.write(json.dumps({"text": text}) + "\n")
            size += len(text)
            if size > LARGE:
                break
    with gzip.open(data / "textbooks.jsonl.gz", "rt") as lines:
        pages = [page for line in lines for page in json.loads(line)["text"].split("\n\n") if len(page) > 400]
    order = np.random.default_rng(0).permutation(len(pages))
    first = 0
    for name, size in (("books", 1000 * kilobytes), ("held", HELD)):
        with (folder / f"{name}.jsonl").open("w") as out:
            while size > 0:
                text = pages[order[first]]
                out.write(json.dumps({"text": text}) + "\n")
                first, size = first + 1, size - len(text)


def build(root: Path, kilobytes: int) -> Path:
    corpus = root / "corpus"
    if not (corpus / "manifest.json").exists():
        write_texts(root / "texts", kilobytes)
        sources = [
            {"name": name, "root": str(root / "texts" / f"{name}.jsonl"), "format": "jsonl"}
            for name in ("wiki", "books")
        ]
        sources.append(
            {"name": "held", "root": str(root / "texts" / "held.jsonl"), "format": "jsonl", "split": "validation"}
        )
        steps = [
            {"learn_tokenizer": {"vocab_size": 4096, "sample_bytes": 4_000_000}},
            {"shards": {"tokenizer": "learn_tokenizer", "validation_share": 0.05}},
        ]
        plan = {"name": "matched_proxies", "output": str(corpus), "sources": sources, "steps": steps}
        (root / "corpus.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
        run("pipelines", "build", root / "corpus.yaml")
    return corpus


def study(root: Path, corpus: Path, name: str, options: argparse.Namespace) -> Path:
    share, matched = STUDIES[name]
    place = root / name.replace(" ", "_")
    if not (place / "proposal.yaml").exists():
        plan = {
            "name": name.replace(" ", "_"),
            "output": str(place),
            "corpora": [str(corpus)],
            "recipe": "demo_decoder",
            "settings": {"model.width": 64, "model.feed_forward": 256, "batch.sequences": 4},
            "target": {"tokens": options.tokens},
            "design": {"kind": "sobol", "runs": options.runs},
            "proxies": {"tokens": round(share * options.tokens), "matched": matched, "anchors": 2},
            "metrics": {"domains": ["held", "wiki"], "tokens": 16384, "last": 2},
            "laws": ["quadratic"],
            "proposal": {"kl": 0, "max_epochs": None, "prior": {"wiki": 0.5, "books": 0.5}},
        }
        file = root / f"{place.name}.yaml"
        file.write_text(yaml.safe_dump(plan, sort_keys=False))
        run("trainers", "study", "run", file)
    return place


def law_of(place: Path) -> tuple[FittedLaw, np.ndarray]:
    """Return the law fitted to the mean of the metrics over the share of `books`, and each run's share of
    `books`.
    """
    table = read_run_table(place / "ratios.csv", place / "metrics.csv")
    at = [table.domains.index(name) for name in ("books", "wiki")]
    return LAWS["quadratic"].fit(table.ratios[:, at], table.values.mean(axis=1)), table.ratios[:, at[0]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokens", type=int, default=300_000, help="of the target")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--kilobytes", type=int, default=36, help="of the tiny domain")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    root = options.directory.absolute()
    root.mkdir(parents=True, exist_ok=True)
    print(machine(), flush=True)
    corpus = build(root, options.kilobytes)
    shares = np.linspace(0, 1, 1001)
    mixtures = np.stack([shares, 1 - shares], axis=1)
    laws = {name: law_of(study(root, corpus, name, options))[0] for name in STUDIES}
    truth = laws["target"].predict(mixtures)
    for name, law in laws.items():
        best = int(law.predict(mixtures).argmin())
        print(
            f"{name:12} best share of books {shares[best]:.3f}   at the target {truth[best] - truth.min():+.4f} bits per byte"
        )


if __name__ == "__main__":
    main()
