"""Benchmark language identification on one core: speed against a loop over each library's own call, and
accuracy.

    python -m benchmarks.language [FILE.jsonl.gz ...] [--megabytes 8] [--model lid.176.ftz]

FILEs are gzipped JSON lines with a `text`; the default is prose of $GRISTMILL_DATA. The model defaults to
$GRISTMILL_DATA/models/lid.176.ftz; without it, fastText is left out. The libraries get what the stage reads:
the first 65,536 bytes, with titles in capitals changed to lower case. Labels are compared before any speed is
printed. Times are CPU seconds of this process, the better of two alternating runs. The combination of both
models is compared with fastText alone in alternating runs, also on the test sentences.

Accuracy is measured on $GRISTMILL_DATA/lid, 75 languages with 1,000 sentences each, as documents of 1 and of
10 consecutive sentences: for each model, and for fastText with resiliparse as a fallback where fastText's
probability is low. `-` marks languages that the model does not know.
"""

import argparse
import gzip
import json
import os
import platform
import tarfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from pipelines.stages.measure.language import Language
from pipelines.stages.measure.language_scripts import language_of_script

DEFAULT = ("forum_20news", "wiki_en", "wiki_zh", "textbooks")
ENGLISH = ("wiki_en", "forum_20news", "legal_dc_acts_laws")
LENGTHS = (1, 10)  # sentences of a document
LIMITS = tuple(round(0.05 * step, 2) for step in range(20))
FALLBACK = 0.25  # the limit whose speed is measured; the best of `choose`
PAIRS = 5  # runs of both models and of fastText alone, in turns
SAME = {"nb": "no"}  # the models write Bokmål as Norwegian


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    root = os.environ.get("GRISTMILL_DATA")
    if not options.files and root is None:
        raise SystemExit("error: name FILEs, or set GRISTMILL_DATA to the folder of shared data")
    model = options.model or (Path(root) / "models" / "lid.176.ftz" if root else None)
    stages = {"resiliparse": Language()}
    if model and model.exists():
        stages["fastText"] = Language(models=(str(model),))
    for path in options.files or [Path(str(root)) / "prose" / f"{name}.jsonl.gz" for name in DEFAULT]:
        texts = read(path, options.megabytes * 1e6)
        print(f"{path.name}: {size(texts):.1f} MB, {len(texts):,} documents")
        for name, stage in stages.items():
            compare(name, stage, resiliparse if name == "resiliparse" else fasttext_by(str(model)), texts)
        if len(stages) == 2:
            compare_both(stages["fastText"], texts)
    if root is not None and len(stages) == 2:
        sentences = test_sentences(Path(root) / "lid" / "lingua_testdata.tar.gz").values()
        for length in LENGTHS:
            texts = [text for each in sentences for text in documents(each, length)]
            print(f"75 languages, documents of {length}: {size(texts):.1f} MB, {len(texts):,} documents")
            compare_both(stages["fastText"], texts)
    if root is not None:
        stages = accuracy(Path(root) / "lid" / "lingua_testdata.tar.gz", stages)
        english(Path(root) / "prose", stages)
    print(f"resiliparse {version('resiliparse')}, fasttext-numpy2 {version('fasttext-numpy2')}")
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}, "
        f"load {os.getloadavg()[0]:.1f}, {datetime.now(UTC):%Y-%m-%d}"
    )


def compare(name: str, stage: Language, peer: Callable[[list[str]], list[str]], texts: list[str]) -> None:
    stage.setup()
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    heads = [lower_capitals(text.encode()[: stage.max_bytes].decode("utf-8", "ignore")) for text in texts]
    labels = stage.annotate(docs)["language"].to_pylist()
    pairs = zip(labels, peer(heads), heads, strict=True)
    if not all(ours in ("und", theirs) or ours == of_script(head) for ours, theirs, head in pairs):
        raise SystemExit(f"error: the stage and {name} disagree; speeds of different results are not compared")
    times = [(once(lambda: stage.annotate(docs)), once(lambda: peer(heads))) for _ in range(2)]
    ours, theirs = (min(column) for column in zip(*times, strict=True))
    none = labels.count("und")
    print(f"  {name:12s} labels equal but for {none:,} und; stage {size(texts) / ours:7.1f} MB/s, library ", end="")
    print(f"{size(texts) / theirs:7.1f} MB/s, {theirs / ours:5.2f} x")


def lower_capitals(text: str) -> str:
    """Return the text as the stage reads it: in lower case if more than nine tenths of its letters are
    capitals.
    """
    letters = list(filter(str.isalpha, text))
    return text.lower() if 10 * sum(map(str.isupper, letters)) > 9 * len(letters) else text


def of_script(text: str) -> str:
    """Return the language that a text's script identifies, or "". The stage prefers it to a label in another
    script.
    """
    found = language_of_script(text)
    return found[0] if found else ""


def compare_both(alone: Language, texts: list[str]) -> None:
    """Print the speed of both models together relative to fastText alone, and the share of documents that
    resiliparse decides.

    The speed ratio is the median of PAIRS pairs of consecutive runs, with the lowest and the highest in
    parentheses.
    """
    both = Language(models=(*alone.models, "resiliparse"), fallback_below=FALLBACK)
    both.setup()
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    asked = sum(both.annotate(docs)["language_model"].to_pylist())
    alone.annotate(docs)
    times = [(once(lambda: both.annotate(docs)), once(lambda: alone.annotate(docs))) for _ in range(PAIRS)]
    ratios = sorted(single / double for double, single in times)
    rate = size(texts) / min(double for double, _ in times)
    print(f"  both, {FALLBACK:<6g} {asked / len(texts):.1%} by resiliparse; stage {rate:7.1f} MB/s, ", end="")
    print(f"{ratios[PAIRS // 2]:5.2f} x fastText alone ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def resiliparse(texts: list[str]) -> list[str]:
    from resiliparse.parse.lang import detect_fast

    return [detect_fast(text)[0] for text in texts]


def fasttext_by(path: str) -> Callable[[list[str]], list[str]]:
    import fasttext

    model = fasttext.load_model(path)

    def predict(texts: list[str]) -> list[str]:
        return [model.predict(text.replace("\n", " "))[0][0].removeprefix("__label__") for text in texts]

    return predict


class Guesses(NamedTuple):
    labels: np.ndarray
    scores: np.ndarray


def guess(stage: Language, texts: list[str]) -> Guesses:
    result = stage.annotate(pa.table({"text": pa.array(texts, pa.large_string())}))
    return Guesses(np.array(result["language"].to_pylist()), result["language_score"].to_numpy())


def fall_back(first: Guesses, second: Guesses, limit: float) -> np.ndarray:
    """Return the first model's labels, with the second model's label where the first scores below `limit` and
    the second finds a language.
    """
    return np.where((first.scores < np.float32(limit)) & (second.labels != "und"), second.labels, first.labels)


def documents(sentences: list[str], length: int) -> list[str]:
    """Return documents of `length` consecutive sentences, as many from the first half as from the second."""
    half = len(sentences) // 2
    return [" ".join(part[k : k + length]) for part in (sentences[:half], sentences[half : 2 * half])
            for k in range(0, half - length + 1, length)]  # fmt: skip


def english(folder: Path, stages: dict[str, Language]) -> None:
    """Print the share of English documents that each stage labels as another language; `und` does not count as one."""
    for file in ENGLISH:
        texts = read(folder / f"{file}.jsonl.gz", float("inf"))
        shares = []
        for name, stage in stages.items():
            labels = guess(stage, texts).labels
            shares.append(f"{name} {np.mean((labels != 'en') & (labels != 'und')):.2%}")
        print(f"{file}, {len(texts):,} documents called another language than English: {', '.join(shares)}")
    print()


def accuracy(archive: Path, stages: dict[str, Language]) -> dict[str, Language]:
    """Print the percentage of documents with the correct label and, with two models, a table for the choice
    of `fallback_below`.

    Return the stages and, with two models, one that combines them.
    """
    known = {name: known_labels(stage) for name, stage in stages.items()}
    tests = {SAME.get(name, name): texts for name, texts in sorted(test_sentences(archive).items())}
    tests = {
        language: texts for language, texts in tests.items() if any(language in labels for labels in known.values())
    }
    found = {
        (name, language, length): guess(stage, documents(sentences, length))
        for name, stage in stages.items()
        for language, sentences in tests.items()
        for length in LENGTHS
    }
    print(f"\n{len(tests)} of the 75 languages are known to a model.")
    right = {key: guesses.labels == key[1] for key, guesses in found.items()}
    columns = list(stages)
    if len(stages) == 2:
        limit = choose(found, list(tests))
        columns.append(both := f"both, {limit:g}")
        stage = Language(models=(stages["fastText"].models[0], "resiliparse"), fallback_below=limit)
        for language, sentences in tests.items():
            for length in LENGTHS:
                labels = guess(stage, documents(sentences, length)).labels
                assert (labels == fall_back(*pair(found, language, length), limit)).all()
                right[both, language, length] = labels == language
        report_losses(right, list(tests), both)
        stages = {**stages, both: stage}
    print("| language |" + "".join(f" {name}; {length} |" for length in LENGTHS for name in columns))
    print("|---|" + "---|" * len(columns) * len(LENGTHS))
    for language in tests:
        cells = [
            100 * right[name, language, length].mean() if language in known.get(name, tests) else None
            for length in LENGTHS
            for name in columns
        ]
        print(f"| {language} |" + "".join(" - |" if cell is None else f" {cell:.1f} |" for cell in cells))
    common = [language for language in tests if all(language in labels for labels in known.values())]
    for title, languages in (
        (f"mean of all {len(tests)}", list(tests)),
        (f"mean of the {len(common)} known to both", common),
    ):
        means = [macro(right, name, languages, length) for length in LENGTHS for name in columns]
        print(f"| {title} |" + "".join(f" {mean:.1f} |" for mean in means))
    print()
    return stages


def pair(found: dict[tuple[str, str, int], Guesses], language: str, length: int) -> tuple[Guesses, Guesses]:
    return found["fastText", language, length], found["resiliparse", language, length]


def macro(right: dict[tuple[str, str, int], np.ndarray], name: str, languages: list[str], length: int) -> float:
    """Return the percentage of documents with the correct label, averaged over languages."""
    return 100 * float(np.mean([right[name, language, length].mean() for language in languages]))


def choose(found: dict[tuple[str, str, int], Guesses], languages: list[str]) -> float:
    """Print macro accuracy for each limit, with two-fold cross-validation over halves of each language.

    Return the limit with the highest sum of accuracies over both lengths on all documents; on a tie, the
    lowest.
    """
    scores = np.zeros((len(LIMITS), len(LENGTHS), 2))  # per cent by half
    for row, limit in enumerate(LIMITS):
        for column, length in enumerate(LENGTHS):
            for language in languages:
                correct = fall_back(*pair(found, language, length), limit) == language
                scores[row, column] += [100 * half.mean() / len(languages) for half in np.split(correct, 2)]
    print(
        "\n| fallback_below |"
        + "".join(f" {length} sentences |" for length in LENGTHS)
        + "\n|---|"
        + "---|" * len(LENGTHS)
    )
    for limit, row in zip(LIMITS, scores.mean(axis=2), strict=True):
        print(f"| {limit:g} |" + "".join(f" {cell:.2f} |" for cell in row))
    for half in (0, 1):
        best = int(scores[:, :, half].sum(axis=1).argmax())
        held_out = ", ".join(f"{cell:.2f}" for cell in scores[best, :, 1 - half])
        print(f"chosen on half {half + 1}: {LIMITS[best]:g}; on the other half {held_out}")
    return LIMITS[int(scores.sum(axis=(1, 2)).argmax())]


def report_losses(right: dict[tuple[str, str, int], np.ndarray], languages: list[str], both: str) -> None:
    """Print the languages where the combination is more than 1 point worse than the better model alone."""
    for length in LENGTHS:
        losses = {}
        for language in languages:
            alone = max(right[name, language, length].mean() for name in ("fastText", "resiliparse"))
            losses[language] = 100 * (alone - right[both, language, length].mean())
        worse = sorted((loss, language) for language, loss in losses.items() if loss > 1)[::-1]
        named = ", ".join(f"{language} {loss:.1f}" for loss, language in worse)
        print(f"documents of {length}: more than 1 point below the better model: {named or 'none'}")


def known_labels(stage: Language) -> set[str]:
    from resiliparse.parse.lang import supported_langs

    return set(supported_langs()) if stage.models == ("resiliparse",) else set(stage._fasttext[0].labels)


def test_sentences(archive: Path) -> dict[str, list[str]]:
    with tarfile.open(archive) as members:
        files = {Path(member.name).stem: members.extractfile(member) for member in members if member.isfile()}
        return {name: file.read().decode().splitlines() for name, file in files.items() if file and len(name) == 2}


def once(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def size(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def read(path: Path, limit: float) -> list[str]:
    texts: list[str] = []
    read_bytes = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            texts.append(json.loads(line)["text"])
            read_bytes += len(texts[-1].encode())
            if read_bytes >= limit:
                break
    return texts


if __name__ == "__main__":
    main()
