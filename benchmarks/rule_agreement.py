"""Compare our rule sets with datatrove's own filters, document by document, in one process.

    pip install --target DIR datatrove==0.10.1 spacy nltk regex
    PYTHONPATH=DIR python -m benchmarks.rule_agreement [--per-source 270] [--list]

The documents are from the prose and quality files of $GRISTMILL_DATA and its extracted web pages, at most --per-source from
each file, and only those of at most 20,000 characters. The default run takes about three minutes, nearly all of it
datatrove's. docs/rule_sets.md explains the output.
"""

import argparse
import gzip
import json
import logging
import os
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.signals import machine

LONGEST = 20_000  # characters: datatrove reads 0.1 MB/s
SEED = 20_000
Verdicts = list[str | None]  # per document: the reason to drop it, None to keep it

# datatrove's reasons, and ours for each.
REASONS = {
    "gopher_quality@datatrove": {
        "gopher_short_doc": "word_count_datatrove",
        "gopher_long_doc": "word_count_datatrove",
        "gopher_below_avg_threshold": "mean_word_length_datatrove",
        "gopher_above_avg_threshold": "mean_word_length_datatrove",
        "gopher_too_many_hashes": "hash_to_word_ratio_datatrove",
        "gopher_too_many_ellipsis": "ellipsis_to_word_ratio_datatrove",
        "gopher_too_many_bullets": "bullet_line_ratio_datatrove",
        "gopher_too_many_end_ellipsis": "ellipsis_line_ratio_datatrove",
        "gopher_below_alpha_threshold": "alpha_word_ratio_datatrove",
        "gopher_enough_stop_words": "stop_word_count_datatrove",
    },
    "gopher_repetition@datatrove": {
        "empty": "empty",
        "dup_para_frac": "dup_paragraph_ratio_datatrove",
        "dup_para_char_frac": "dup_paragraph_char_ratio_datatrove",
        "dup_line_frac": "dup_line_ratio_datatrove",
        "dup_line_char_frac": "dup_line_char_ratio_datatrove",
        **{f"top_{n}_gram": f"top_{n}gram_char_ratio_datatrove" for n in (2, 3, 4)},
        **{f"duplicated_{n}_n_grams": f"dup_{n}gram_char_ratio_datatrove" for n in range(5, 11)},
    },
    "c4@datatrove": {
        "lorem_ipsum": "lorem_ipsum_datatrove",
        "curly_bracket": "curly_datatrove",
        "too_few_sentences": "sentences_datatrove",
    },
    "fineweb@datatrove": {
        "empty": "empty",
        "line_punct_ratio": "terminal_line_ratio_datatrove",
        "short_line_ratio": "short_line_ratio_datatrove",
        "char_dup_ratio": "dup_line_char_ratio_fineweb_datatrove",
        "list_ratio": "newline_to_word_ratio_datatrove",
    },
}


def documents(data: Path, per_source: int) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of the sample, chosen from every file with a fixed seed."""
    for path in sorted([*data.glob("quality/*.jsonl.gz"), *data.glob("prose/*.jsonl.gz")]):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines]
        yield from chosen(path.name.removesuffix(".jsonl.gz"), texts, per_source)
    yield from chosen("web", list(pages(data / "raw_web" / "trafilatura_pages.warc.gz")), per_source)


def chosen(name: str, texts: list[str], most: int) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of at most `most` of the texts, named by their row."""
    rows = [row for row, text in enumerate(texts) if len(text) <= LONGEST]
    rows = sorted(random.Random(SEED).sample(rows, min(most, len(rows))))
    yield from ((f"{name}#{row}", texts[row]) for row in rows)


def pages(path: Path) -> Iterator[str]:
    """Yield the text of every page, alternately the main content and the whole text."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    with path.open("rb") as file:
        for row, record in enumerate(ArchiveIterator(file, record_types=WarcRecordType.response)):
            body = record.reader.read()
            yield extract_plain_text(bytes_to_str(body, detect_encoding(body)), main_content=row % 2 == 0)


def datatroves_filters() -> dict[str, Callable[[str], str | None]]:
    """Return datatrove's filters under the names of our sets, as functions from a text to its reason or None."""
    try:
        from datatrove.data import Document
        from datatrove.pipeline.filters import (
            C4QualityFilter,
            FineWebQualityFilter,
            GopherQualityFilter,
            GopherRepetitionFilter,
        )
    except ImportError as error:
        raise SystemExit(f"datatrove cannot be imported ({error}); see the head of {__file__}") from None
    warnings.simplefilter("ignore")  # it takes the mean of no words
    logging.disable(logging.WARNING)

    def reasons(peer: type) -> Callable[[str], str | None]:
        filter_ = peer()
        filter_.stat_update = lambda *_, **__: None

        def reason(text: str) -> str | None:
            verdict = filter_.filter(
                Document(text=text, id="")
            )  # a new document each time, because the filter changes it
            return None if verdict is True else verdict[1]

        return reason

    peers = (GopherQualityFilter, GopherRepetitionFilter, C4QualityFilter, FineWebQualityFilter)
    return {name: reasons(peer) for name, peer in zip(REASONS, peers, strict=True)}


def our_verdicts(signals: pa.Table, name: str) -> Verdicts:
    """Return the reason of one rule set for each document, without the part before the first dot."""
    from pipelines.stages.decide.filter import Filter
    from pipelines.stages.decide.rules import Rule

    drops = Filter((Rule(rules=name),)).annotate(signals)["drop"].to_pylist()
    return [drop and drop.split(".", 1)[1] for drop in drops]


def value(signals: pa.Table, name: str, reason: str | None, row: int) -> str:
    """Return the signal that `reason` of the rule set `name` tests, for the document `row`; "" if no rule has
    this reason.
    """
    from pipelines.stages.decide.rules import RULE_SETS

    signal = next((rule.signal for rule in RULE_SETS[name] if rule.reason().split(".", 1)[1] == reason), None)
    return "" if signal is None else f"{signals[signal][row].as_py():.6g}"


def main() -> None:
    from pipelines.stages.measure.peer_signals import PeerSignals
    from pipelines.stages.measure.quality_signals import QualitySignals

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-source", type=int, default=270)
    parser.add_argument("--list", action="store_true", help="print every disagreement")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA")
    peers = datatroves_filters()
    names, texts = zip(*documents(Path(os.environ["GRISTMILL_DATA"]), options.per_source), strict=True)
    size = sum(len(text.encode()) for text in texts)
    begin = time.perf_counter()
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    ours, peer_signals = QualitySignals().annotate(docs), PeerSignals().annotate(docs)
    signals = pa.table([*ours.columns, *peer_signals.columns], names=[*ours.column_names, *peer_signals.column_names])
    ours_took = time.perf_counter() - begin
    print(
        f"{len(texts):,} documents, {size / 1e6:.1f} MB; {machine()}; our signals {ours_took:.1f} s, compilation included\n"
    )
    begin = time.perf_counter()
    theirs = {name: [peer(text) for text in texts] for name, peer in peers.items()}
    print(f"datatrove's four filters: {time.perf_counter() - begin:.0f} s\n")
    print("| rule set | both keep | both drop | only we drop | only datatrove drops | agreement | same reason |")
    print("|---|---|---|---|---|---|---|")
    for name, reasons in REASONS.items():
        report(name, our_verdicts(signals, name), [reason and reasons[reason] for reason in theirs[name]])
    print("\n| rule set | kept | of them kept by @datatrove |\n|---|---|---|")
    for name in ("gopher_quality@massivetext", "gopher_repetition@massivetext", "c4@paper", "c4@tfds", "fineweb@paper"):
        kept = [drop is None for drop in our_verdicts(signals, name)]
        peer = our_verdicts(signals, f"{name.split('@')[0]}@datatrove")
        both = sum(mine and drop is None for mine, drop in zip(kept, peer, strict=True))
        print(f"| {name} | {sum(kept)} | {both} (it keeps {peer.count(None)}) |")
    if options.list:
        for name, reasons in REASONS.items():
            ours = our_verdicts(signals, name)
            for row, (mine, reason) in enumerate(zip(ours, theirs[name], strict=True)):
                peer_reason = reason and reasons[reason]
                if mine != peer_reason:
                    facts = (f"{r} ({value(signals, name, r, row)} here)" if r else "keep" for r in (mine, peer_reason))
                    print(f"{name}: {names[row]}: we: {' | datatrove: '.join(facts)}")


def report(name: str, ours: Verdicts, theirs: Verdicts) -> None:
    pairs = Counter(zip(ours, theirs, strict=True))
    both_drop = sum(count for (a, b), count in pairs.items() if a and b)
    only_ours, only_theirs = (sum(c for pair, c in pairs.items() if pair[k] and not pair[1 - k]) for k in (0, 1))
    agree = 100 * (pairs[None, None] + both_drop) / len(ours)
    same = 100 * sum(count for (a, b), count in pairs.items() if a and a == b) / max(both_drop, 1)
    print(
        f"| {name} | {pairs[None, None]} | {both_drop} | {only_ours} | {only_theirs} | {agree:.2f} % | {same:.2f} % of both |"
    )


if __name__ == "__main__":
    sys.exit(main())
