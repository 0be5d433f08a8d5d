"""Benchmark `decontaminate`: its speed, and its precision and recall on planted items and on real negatives.

    python -m benchmarks.decontamination [CORPUS.jsonl.gz ITEMS.jsonl.gz]     default: wiki_en and textbooks of $GRISTMILL_DATA

Items are passages of the second file. Half of them are planted into documents of the first file, each in one
of the ways listed in KINDS. The other half are real negatives, so any match is a false positive unless the
first file contains a genuine copy. A second run takes its items from documents of the first file, which are
removed from the corpus. In that run, templates that those documents share with the corpus are also found.
"""

import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from benchmarks.signals import load, machine, rate
from gristmill.storage.disk import LocalPath
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import DOCUMENT, document_id, file_key
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Part
from pipelines.stages.measure.decontaminate import Decontaminate
from pipelines.stages.measure.evaluation_sets import EvaluationSet
from pipelines.stages.measure.quality_signals import QualitySignals

KINDS = ("verbatim", "copied", "restyled", "1 word in 40", "1 word in 20", "half", "answer", "short")
COPIES, MANY = 3, 30  # documents that an item is planted into; MANY for the kind "copied"
DEFAULTS = ("wiki_en", "textbooks")
_TYPOGRAPHY = str.maketrans({".": " .", ",": " ,", "'": "’", "-": " - ", '"': "“"})


class Planted(NamedTuple):
    texts: list[str]
    items: list[dict[str, str]]
    truth: dict[tuple[int, int], str]  # (document, item) -> kind


def passage(words: Sequence[str], rng: random.Random, size: int) -> str:
    begin = rng.randrange(max(1, len(words) - size))
    return " ".join(words[begin : begin + size])


def altered(kind: str, item: dict[str, str], rng: random.Random) -> str:
    text = f"{item['question']} {item['answer']}"
    if kind == "restyled":
        return text.upper().translate(_TYPOGRAPHY).replace(" ", "\n  ", 3)
    if kind.startswith("1 word in"):
        words, every = text.split(), int(kind.split()[-1])
        for begin in range(0, len(words), every):
            words[min(begin + rng.randrange(every), len(words) - 1)] = "something"
        return " ".join(words)
    if kind == "half":
        words = item["question"].split()
        return " ".join(words[: len(words) // 2])
    return item["answer"] if kind == "answer" else text


def plant(texts: Sequence[str], origins: Sequence[str], seed: int) -> Planted:
    """Make an item from each text of `origins`, and plant every second item into some of `texts`."""
    rng = random.Random(seed)
    kinds = [KINDS[number // 2 % len(KINDS)] for number in range(len(origins))]
    items = []
    for kind, origin in zip(kinds, origins, strict=True):
        words, size = origin.split(), 10 if kind == "short" else 60
        answer = "" if kind == "short" else passage(words, rng, 20)
        items.append({"question": passage(words, rng, size), "answer": answer})
    planted, truth = list(texts), {}
    for item in range(0, len(items), 2):
        for document in rng.sample(range(len(texts)), MANY if kinds[item] == "copied" else COPIES):
            at = planted[document].find(" ", rng.randrange(len(planted[document]) + 1)) + 1
            text = altered(kinds[item], items[item], rng)
            planted[document] = f"{planted[document][:at]}\n{text}\n{planted[document][at:]}"
            truth[document, item] = kinds[item]
    return Planted(planted, items, truth)


def part_of(root: LocalPath, texts: Sequence[str]) -> Part:
    nothing, key = [None] * len(texts), file_key("web", "0")
    ids = [document_id(key, row) for row in range(len(texts))]
    sources = pa.array(["web"] * len(texts)).dictionary_encode()
    table = pa.table({"id": ids, "text": texts, "source": sources, "url": nothing, "meta": nothing}, schema=DOCUMENT)
    (root / "documents.arrow").write_atomic(write_table(table))
    record, size = root.record("documents.arrow"), sum(len(text.encode()) for text in texts)
    return Part("web", 0, len(texts), size, root, record, schema_facts(DOCUMENT), pa.schema([]), ())


def measure(planted: Planted, root: LocalPath, **knobs: int) -> tuple[dict[tuple[int, int], float], float]:
    """Run the stage; return (score of every (document, item) found, processor seconds)."""
    (root / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in planted.items))
    stage = Decontaminate((EvaluationSet("set", str(root / "items.jsonl"), ("question",), ("answer",)),), **knobs)
    part, out = part_of(root, planted.texts), StepOutput(root, "step")
    begin = time.process_time()
    stage.run([part], out, LocalCluster())
    seconds = time.process_time() - begin
    receipt = out.receipt("web-00000")
    assert receipt is not None
    table = read_table(out.directory, receipt.files[0], ["contamination"], schema_facts(stage.writes()))
    scores: dict[tuple[int, int], float] = {}
    for document, spans in enumerate(table["contamination"].to_pylist()):
        for span in spans:
            key = document, int(span["item"].partition("#")[2])
            scores[key] = max(scores.get(key, 0.0), span["score"])
    return scores, seconds


def accuracy(
    planted: Planted, scores: dict[tuple[int, int], float], threshold: float
) -> tuple[float, dict[str, float]]:
    """Return (precision over all kinds, recall by kind) of the (document, item) pairs that score at least `threshold`."""
    found = {pair for pair, score in scores.items() if score >= threshold}
    kinds = Counter(planted.truth.values())
    hits: dict[str, int] = defaultdict(int)
    for pair in found & planted.truth.keys():
        hits[planted.truth[pair]] += 1
    precision = len(found & planted.truth.keys()) / len(found) if found else 1.0
    return precision, {kind: hits[kind] / kinds[kind] for kind in KINDS if kinds[kind]}


def show(planted: Planted) -> None:
    size = sum(len(text.encode()) for text in planted.texts) / 1e6
    print(f"{len(planted.texts):,} documents, {size:.1f} MB; {len(planted.items):,} items, half of them planted")
    for ngram in (13, 8):
        with tempfile.TemporaryDirectory() as root:
            scores, seconds = measure(planted, LocalPath(root), ngram=ngram)
        clean = {document for document, _ in scores} - {document for document, _ in planted.truth}
        print(f"  {ngram}-grams, {size / seconds:.0f} MB/s; found in {len(clean):,} documents without a planted item")
        for threshold in (0.0, 0.25, 0.8):
            precision, recall = accuracy(planted, scores, threshold)
            shown = ", ".join(f"{kind} {share:.3f}" for kind, share in recall.items())
            print(f"    score of at least {threshold}: precision {precision:.3f}; recall: {shown}")


def main() -> None:
    arguments = sys.argv[1:] or [f"{os.environ['GRISTMILL_DATA']}/prose/{name}.jsonl.gz" for name in DEFAULTS]
    names, texts = load(arguments[:1], 25_000_000)
    long_enough = [text for text in load(arguments[1:2])[1] if len(text.split()) > 200][:1200]
    print(machine())
    docs, size = pa.table({"text": pa.array(texts, pa.large_string())}), sum(len(text.encode()) for text in texts)
    stage = QualitySignals()
    stage.annotate(docs[:1])
    with tempfile.TemporaryDirectory() as warm:
        measure(plant(texts[:100], long_enough[:16], seed=1), LocalPath(warm))
    print(
        f"{names[0]}; MB/s of one core's processor time; quality_signals: {rate(lambda: stage.annotate(docs), size, 1):.0f}"
    )
    print(f"items of {LocalPath(arguments[1]).name}: ", end="")
    show(plant(texts, long_enough, seed=0))
    print("items of the corpus: ", end="")
    own = [number for number, text in enumerate(texts) if len(text.split()) > 200][::5][:1200]
    show(plant([text for number, text in enumerate(texts) if number not in set(own)], [texts[n] for n in own], seed=0))


if __name__ == "__main__":
    main()
