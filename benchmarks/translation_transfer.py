"""Pretrain small encoders on two languages, with and without pairs, and measure how fine-tuning in English
transfers to German.

    GRISTMILL_DATA=... python -m benchmarks.translation_transfer DIRECTORY [--steps 1500] [--seeds 2] [--only masked pairs both]

The captions of Multi30k are in English and German. Three models train on the same captions with the same
number of steps and the same vocabulary: `masked` as separate documents, `pairs` with translation language
modelling, and `both` half and half, as XLM alternates the two. Each model is fine-tuned on English captions
to classify who is in them, and tested on the German captions of other pairs. No caption of the task is in the
pretraining data. Labels come from the English side: the class of its first word that is in LABELS, or
`other`.

DIRECTORY gets the corpus, the runs and their scores. Existing results are kept.
"""

import argparse
import gzip
import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from os import environ
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import yaml

from benchmarks.signals import machine

LABELS = {
    "man": "man guy gentleman",
    "woman": "woman lady",
    "child": "boy boys girl girls child children kid kids baby toddler infant",
    "people": "men women people group crowd couple team",
}
OTHER = "other"
PRETRAINED, TRAINED, DEVELOPED = 20_000, 6_000, 1_000  # pairs, and captions of the task; the rest is its test split
MODELS = {
    "masked": ("objective={kind: masked}", {"en": 0.5, "de": 0.5, "pairs": 0.0}),
    "pairs": ("objective={kind: translation_lm}", {"en": 0.0, "de": 0.0, "pairs": 1.0}),
    "both": ("objective={kind: translation_lm}", {"en": 0.25, "de": 0.25, "pairs": 0.5}),
}
_OF_WORD = {word: label for label, words in LABELS.items() for word in words.split()}
_WORD = re.compile(r"[a-z]+")


def label_of(caption: str) -> str:
    return next((_OF_WORD[word] for word in _WORD.findall(caption.lower()) if word in _OF_WORD), OTHER)


def captions() -> Iterator[tuple[str, str]]:
    """Yield the (English, German) pairs of Multi30k's training split."""
    folder = Path(environ["GRISTMILL_DATA"]) / "tasks" / "generate" / "multi30k_en_de"
    with (
        gzip.open(folder / "train.en.gz", "rt", encoding="utf-8") as english,
        gzip.open(folder / "train.de.gz", "rt", encoding="utf-8") as german,
    ):
        yield from zip(map(str.strip, english), map(str.strip, german), strict=True)


def run(*words: object) -> None:
    before = getrusage(RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    after = getrusage(RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{seconds:6.0f} s  {' '.join(map(str, words))}", flush=True)


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def build_corpus(root: Path, pairs: list[tuple[str, str]]) -> Path:
    """Build the corpus unless it exists; return its directory.

    Its sources are the English sides, the German sides, and the pairs.
    """
    corpus = root / "corpus"
    if (corpus / "manifest.json").exists():
        return corpus
    write_lines(root / "texts" / "pairs.jsonl", [{"en": english, "de": german} for english, german in pairs])
    fields = {"en": {"fields": ["en"]}, "de": {"fields": ["de"]}, "pairs": {"fields": ["en"], "target": "de"}}
    plan = {
        "name": "translation_transfer",
        "output": str(corpus),
        "sources": [
            {"name": name, "root": str(root / "texts"), "format": "jsonl", "text": text}
            | ({"tokenizer_share": 0.0} if name == "pairs" else {})
            for name, text in fields.items()
        ],
        "steps": [
            {"learn_tokenizer": {"vocab_size": 4096}},
            {"shards": {"tokenizer": "learn_tokenizer", "validation_share": 0.02, "target": True}},
        ],
    }
    (root / "corpus.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    run("pipelines", "build", root / "corpus.yaml")
    return corpus


def write_task(root: Path, pairs: list[tuple[str, str]]) -> Path:
    """Write the task, with a German test split and English train and dev splits; return its file."""
    rows = [[{"text": pair[side], "label": label_of(pair[0])} for pair in pairs] for side in (0, 1)]
    whole = TRAINED + DEVELOPED
    splits = {"train": rows[0][:TRAINED], "dev": rows[0][TRAINED:whole], "test": rows[1][whole:]}
    for split, its in splits.items():
        write_lines(root / "task" / f"{split}.jsonl", its)
        shares = {
            label: f"{count / len(its):.3f}" for label, count in Counter(row["label"] for row in its).most_common()
        }
        print(f"{split:5} {len(its):5} captions  {shares}", flush=True)
    task = {
        "kind": "classify",
        "format": "jsonl",
        "files": {split: f"{split}.jsonl" for split in splits},
        "columns": {"text": "text", "label": "label"},
        "labels": [*LABELS, OTHER],
        "metrics": ["accuracy"],
        "leak": "report",
    }
    path = root / "task" / "who.yaml"
    path.write_text(yaml.safe_dump(task, sort_keys=False))
    return path


def measure(root: Path, corpus: Path, task: Path, name: str, seed: int, steps: int) -> dict[str, float]:
    """Pretrain and fine-tune a model; return its accuracy on the English dev split and the German test split."""
    place, tuned = (root / kind / f"{name}-{seed}" for kind in ("runs", "tuned"))
    objective, weights = MODELS[name]
    if not (place / "finished.json").exists():
        settings = [f"budget.steps={steps}", f"validation.every={steps}", f"checkpoints.every={steps}", f"seed={seed}"]
        settings += [objective, f"data.weights={json.dumps(weights)}"]
        run("trainers", "pretrain", "tiny_translation_lm", f"corpus={corpus}", f"run={place}", *settings)
    if not (tuned / "scores.json").exists():
        settings = [
            "budget.epochs=2",
            "optimizer.learning_rate=1e-3",
            "optimizer.weight_decay=0.01",
            "head.pooling=mean",
        ]
        settings += ["encoding.max_length=64", f"seed={seed}"]
        run("trainers", "finetune", task, f"model={place}", f"run={tuned}", *settings)
    scores = json.loads((tuned / "scores.json").read_text())
    return {split: scores["splits"][split]["accuracy"]["value"] for split in ("dev", "test")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    print(machine(), flush=True)
    root, pairs = options.directory, list(captions())
    corpus, task = build_corpus(root, pairs[:PRETRAINED]), write_task(root, pairs[PRETRAINED:])
    for name in options.only:
        found = [measure(root, corpus, task, name, seed, options.steps) for seed in range(options.seeds)]
        for split, language in (("dev", "English"), ("test", "German")):
            values = [each[split] for each in found]
            print(
                f"{name:7} {language:8} {statistics.mean(values):.3f}  of {', '.join(f'{one:.3f}' for one in values)}"
            )


if __name__ == "__main__":
    main()
