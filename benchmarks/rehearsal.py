"""Check the estimates of rehearsals against full builds of real text.

    GRISTMILL_DATA=... python -m benchmarks.rehearsal [DOMAIN ...] [--samples 10] [--share 0.05] [--lengths]

Each domain is built in full, which gives the true figures, and then from `samples` samples. The records in a
sample depend on their ids, and so on the name of the source: each sample reads the same file under another
name. All builds of a domain use the same tokenizer, so that their tokens are comparable.

For each figure, the table shows the true value, the estimate and 95 % interval of the first sample, the mean
of all estimates as a share of the true value, and the number of samples whose interval contains the true
value. A second corpus, which shares all other steps, also removes duplicates. After that removal, figures are
bounds, and the script prints how many samples have the bound on the right side of the true value. The last
lines give the share of intervals that contain the true value. Figures of bytes and tokens are counted
separately if the report itself calls the sample too small.

`--lengths` prints, for several sample sizes, how often the interval of the bytes contains the true value, in
1,000 samples drawn from the lengths of the documents.
"""

import argparse
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.signals import machine
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from pipelines.building.rehearsal import rehearsal
from pipelines.building.run_build import run_build
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.report.estimates import estimate_notes
from pipelines.report.intervals import estimate_count, estimate_sum, skewness

DOMAINS = ("wiki_en", "dialogue", "legal_dc_acts_laws")
MEASURE = """
  - quality_signals: {}
  - filter: [{rules: gopher_quality@massivetext}]
  - c4_lines: {rules: datatrove, without: [terminal_punctuation]}
"""
SHARES = (0.01, 0.05, 0.2, 0.5)
UNIQUE = """
  - text_hash: {}
  - dedup_exact: {}
  - minhash_signatures: {}
  - dedup_minhash: {}
"""
LEARN = "  - learn_tokenizer: {vocab_size: 8000}\n"
Figure = tuple[float, float, float]


@dataclass
class Check:
    """The true value of a figure, and the estimates from all samples."""

    truth: float
    estimates: list[Figure] = field(default_factory=list)

    def line(self, name: str) -> str:
        estimate, low, high = self.estimates[0]
        held = [low <= self.truth <= high for _, low, high in self.estimates]
        mean = sum(each[0] for each in self.estimates) / len(self.estimates)
        share = f"{mean / self.truth:.3f}" if self.truth else "-"
        form = ",.4f" if self.truth < 1 else ",.0f"
        figures = f"{self.truth:{form}} | {estimate:{form}} | {low:{form}} to {high:{form}}"
        return f"| {name} | {figures} | {share} | {sum(held)} of {len(held)} |"


def build(folder: Path, domain: str, steps: str, name: str = "whole", share: float | None = None) -> Corpus:
    """Build the corpus of a domain with a source called `name`, or a rehearsal of it if `share` is given."""
    file = folder / f"{name}.yaml"
    root = f"{os.environ['GRISTMILL_DATA']}/prose/{domain}.jsonl.gz"
    file.write_text(
        f"name: {domain}\noutput: {folder}/{name}\nsources:\n  - {{name: {name}, root: {root}, format: jsonl}}\n"
        f"steps:{steps}"
    )
    config = load_corpus_config(file)
    config = config if share is None else rehearsal(config, share)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        run_build(config, in_process=True)
    return open_corpus(config.place)


def figures(corpus: Corpus) -> dict[str, float]:
    source = next(iter(corpus.manifest.sources.values()))
    read = next(step for step in corpus.steps if step.label.startswith("read.")).manifest
    counted = {"read: documents": source["kept"], "read: bytes": sum(part.text_bytes for part in read.parts)}
    for row in corpus.manifest.funnel:
        step = row["step"]
        counted |= {f"{step}: documents": row["documents_out"], f"{step}: bytes": row["bytes_out"]}
        if row["bytes_in"]:
            counted[f"{step}: share of bytes removed"] = 1 - row["bytes_out"] / row["bytes_in"]
        counted |= {f"{step}: {rule}": number for rule, number in row["dropped"].items()}
    for name, shards in corpus.manifest.shard_sets.items():
        counted[f"{name}: tokens"] = sum(shard.tokens for shard in shards.shards)
    return counted


def estimated(corpus: Corpus) -> tuple[dict[str, Figure], list[dict[str, Any]], bool]:
    """Return the estimates of a rehearsal by name, its bounds, and whether the report calls the intervals of
    text too narrow.

    The estimate called "" stands for any rule that dropped nothing in the sample.
    """
    estimates = read_json(corpus.directory / "report.json")["estimates"]
    source = estimates["sources"][0]
    found: dict[str, Figure] = {"": estimate_count(0, source["sampled"], source["records"])}
    for row in (row for row in source["rows"] if row["meaning"] == "estimate"):
        found |= {f"{row['step']}: {name}": row[name] for name in ("documents", "bytes")}
        found |= {f"{row['step']}: {rule}": values for rule, values in row["dropped"].items()}
        if row["removed"]:
            found[f"{row['step']}: share of bytes removed"] = row["removed"]
    if source["meaning"] == "estimate":
        found |= {f"{name}: tokens": values for name, values in source["tokens"].items()}
    too_narrow = any("too narrow" in note for note in estimate_notes(estimates))
    return found, [*estimates["duplicates"], source["rows"][-1]], too_narrow


def check_bounds(whole: Corpus, samples: list[list[dict[str, Any]]]) -> None:
    """Print how often the bounds on duplicates and on the documents and bytes kept are right."""
    rows: Mapping[str, Mapping[str, Any]] = {row["step"]: row for row in whole.manifest.funnel}
    for position, duplicates in enumerate(samples[0][:-1]):
        row = rows[duplicates["step"]]
        dropped, arrived = sum(row["dropped"].values()), row["documents_in"]
        drawn = [sample[position] for sample in samples]
        least = sum(each["at_least"] <= dropped / arrived for each in drawn)
        most = sum(dropped <= each["pairs"][2] for each in drawn)
        print(
            f"{duplicates['step']} drops {dropped:,} of {arrived:,} ({dropped / arrived:.3f}); first sample: at least "
            f"{drawn[0]['at_least']:.3f}, at most {drawn[0]['pairs'][2]:,.0f}; right: {least} and {most} of {len(samples)}"
        )
    kept = whole.manifest.funnel[-1]
    last = [sample[-1] for sample in samples]
    right = sum(
        each["documents"][2] >= kept["documents_out"] and each["bytes"][2] >= kept["bytes_out"] for each in last
    )
    print(
        f"kept: {kept['documents_out']:,} documents, {kept['bytes_out']:,} bytes; first sample: at most "
        f"{last[0]['documents'][2]:,.0f} and {last[0]['bytes'][2]:,.0f}; right: {right} of {len(samples)}"
    )


def check_lengths(domain: str, draws: int = 1000) -> None:
    """Print how often the interval of the bytes contains the true value in samples of several sizes.

    Samples are drawn from the lengths of the documents, without a build.
    """
    random = np.random.default_rng(1)
    with gzip.open(f"{os.environ['GRISTMILL_DATA']}/prose/{domain}.jsonl.gz", "rt") as lines:
        lengths = np.array([len(json.loads(line)["text"].encode()) for line in lines], float)
    records, total = len(lengths), float(lengths.sum())
    skewed = skewness(total, float(lengths @ lengths), float((lengths**3).sum()), records)
    cells = []
    for share in SHARES:
        held = 0
        for _ in range(draws):
            drawn = lengths[random.random(records) < share]
            estimate = estimate_sum(float(drawn.sum()), float(drawn @ drawn), len(drawn), records)
            held += estimate.low <= total <= estimate.high
        cells.append(f"{held / draws:.3f} ({share * records:,.0f})")
    print(f"| {domain} | {skewed:.1f} | {25 * skewed**2:,.0f} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domains", nargs="*", default=DOMAINS)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--lengths", action="store_true", help="only draw samples of lengths, without building")
    options = parser.parse_args()
    print(machine())
    if options.lengths:
        heads = [f"{100 * share:g} %" for share in SHARES]
        print(f"\n| corpus | skewness | records needed | {' | '.join(heads)} |\n|{'---|' * (3 + len(SHARES))}")
        for domain in options.domains:
            check_lengths(domain)
        return
    tally: dict[bool, list[bool]] = {False: [], True: []}
    for domain in options.domains:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            learned = build(folder, domain, MEASURE + LEARN)
            step = next(step for step in learned.steps if step.stage == "learn_tokenizer")
            tokenizer = LocalPath(folder / "tokenizer.json")
            shutil.copy(step.directory / "tokenizer.json", tokenizer)
            shards = f"  - shards: {{tokenizer: {tokenizer}, split_by: content}}\n"
            whole = build(folder, domain, MEASURE + shards)
            checks = {name: Check(truth) for name, truth in figures(whole).items()}
            unique, bounds = build(folder, domain, MEASURE + UNIQUE + shards), []
            for number in range(options.samples):
                name = f"sample{number}"
                found, _, too_narrow = estimated(build(folder, domain, MEASURE + shards, name, options.share))
                for figure, check in checks.items():
                    estimate, low, high = found.get(figure, found[""])
                    check.estimates.append((estimate, low, high))
                    is_text = any(word in figure for word in ("bytes", "tokens"))
                    tally[is_text and too_narrow].append(low <= check.truth <= high)
                bounds.append(estimated(build(folder, domain, MEASURE + UNIQUE + shards, name, options.share))[1])
                shutil.rmtree(folder / f"{name}-sample-{options.share:g}")
            print(f"\n{domain}, {options.samples} samples of {100 * options.share:g} %\n")
            print("| figure | truth | estimate | interval | mean / truth | covered |\n|---|---|---|---|---|---|")
            for figure, check in checks.items():
                print(check.line(figure))
            print()
            check_bounds(unique, bounds)
    for too_narrow, held in tally.items():
        if held:
            which = "figures of text of samples that the report calls too small" if too_narrow else "figures"
            print(f"\ncovered: {sum(held):,} of {len(held):,} {which} ({sum(held) / len(held):.3f})")


if __name__ == "__main__":
    main()
