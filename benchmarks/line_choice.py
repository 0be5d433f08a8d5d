"""Fit the weights of `extract: best`, and compare it by cross-validation with both extractors alone.

    python -m benchmarks.line_choice [--write] [--tables folds,readability]
          data: $GRISTMILL_DATA/raw_web

A line is content if it contains a snippet that must be kept, and not content if it contains only snippets
that must be dropped. Other lines are not used for training. The model is a logistic regression on
standardised features with C = 0.1: one fit to the lines of resiliparse alone and one to the merged lines.
Pages are divided at random into ten folds, and each page is judged by weights fitted to the other folds. F is
computed over all pages together (see benchmarks/extraction.py). C, the features, the threshold of one half
and the bounds of certainty were chosen from such tables of the same pages.

The second table tests the shipped weights on pages that played no part in these choices, those of Mozilla's
readability. Its precision and recall are of words (as a multiset) against the expected text, averaged over
pages.

"trafilatura, once" is trafilatura's own rules alone, as `best` runs them.

`--write` writes the weights fitted to all pages to pipelines/reading/web/choice/line_weights.json.
"""

import argparse
import gzip
import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.extraction import Snippets, payloads, score
from benchmarks.signals import machine
from pipelines.reading.web.charset import decode_page
from pipelines.reading.web.choice import best_extraction
from pipelines.reading.web.choice.best_extraction import (
    BOUNDS,
    Bounds,
    PageEvidence,
    Weights,
    all_features,
    choose_lines,
    read_page,
    shipped_weights,
)
from pipelines.reading.web.choice.line_features import BOTH_FEATURES, TEXT_FEATURES, text_features
from pipelines.reading.web.choice.merged_lines import Line, join_lines, merge_lines, split_lines
from pipelines.reading.web.extraction import extract_with_resiliparse, extract_with_trafilatura, rules_alone

FOLDS = 10
RULES = {
    "best": BOUNDS,
    "best, both always": Bounds(prose=1 << 60),
    "best, resiliparse only": Bounds(unsure=1e9, missing=1.0, prose=0),
}
WEIGHTS = Path(best_extraction.__file__).with_name("line_weights.json")


class Judged:
    """A page with the texts of both extractors, and the snippets by which lines are labelled."""

    def __init__(self, html: str, snippets: tuple[list[str], list[str]] | None = None) -> None:
        from resiliparse.parse.html import HTMLTree

        tree = HTMLTree.parse(html)
        self.first = extract_with_resiliparse(html, tree)
        page = read_page(tree, lambda: self.first, markdown=False)
        prose = page.prose()
        self.page: PageEvidence = replace(page, prose=lambda: prose)  # without the tree
        self.once = extract_with_trafilatura(html, options=rules_alone("text", False))
        self.whole = extract_with_trafilatura(html)
        self.second = split_lines(self.once)
        self.merged = merge_lines(self.page.lines, self.second)
        self.alone = text_features(self.page.lines, self.page.links)
        self.both = all_features(self.merged, self.page.links)
        self.snippets = snippets
        self.ran_second = False

    def labels(self, lines: list[Line]) -> list[int]:
        """Return a label for each line: 1 for content, 0 for other text, -1 for unknown."""
        wanted, unwanted = self.snippets or ([], [])
        return [
            1 if any(each in line.text for each in wanted) else 0 if any(each in line.text for each in unwanted) else -1
            for line in lines
        ]

    def text(self, weights: Weights, bounds: Bounds = BOUNDS) -> str:
        """Return the text that `extract: best` chooses, and set `ran_second` to whether it needed
        trafilatura.
        """
        self.ran_second = False
        return join_lines(choose_lines(self.page, self._extract_second, weights, bounds))

    def _extract_second(self) -> list[Line]:
        self.ran_second = True
        return self.second


def fit(rows: Sequence[Sequence[float]], labels: Sequence[int]) -> list[float]:
    """Fit a logistic regression to standardised features; return its constant and weights for the unscaled
    features.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    known = [(row, label) for row, label in zip(rows, labels, strict=True) if label >= 0]
    scaler = StandardScaler()
    model = LogisticRegression(C=0.1, max_iter=1000, tol=1e-8)
    model.fit(scaler.fit_transform([row for row, _ in known]), [label for _, label in known])
    weights = model.coef_[0] / scaler.scale_
    return [float(f"{each:.6g}") for each in (model.intercept_[0] - weights @ scaler.mean_, *weights)]


def fit_both(pages: list[Judged]) -> Weights:
    alone = fit([r for p in pages for r in p.alone], [y for p in pages for y in p.labels(p.page.lines)])
    both = fit([r for p in pages for r in p.both], [y for p in pages for y in p.labels(p.merged)])
    return {"alone": alone, "both": both}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--tables", default="folds,readability", help="names, divided by commas")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    root = Path(os.environ["GRISTMILL_DATA"]) / "raw_web"
    print(machine())
    if options.write or "folds" in options.tables:
        print_folds(root, options.write)
    if "readability" in options.tables:
        print_readability(root)


def print_folds(root: Path, write_weights: bool) -> None:
    judged = json.loads((root / "trafilatura_evaldata.json").read_text())
    snippets = [(page["with"], page["without"]) for page in judged.values()]
    htmls = [decode_page(page, "").text for page in payloads(root / "trafilatura_pages.warc.gz")]
    pages = [Judged(html, each) for html, each in zip(htmls, snippets, strict=True)]
    fold = np.random.default_rng(0).permutation(len(pages)) % FOLDS
    chosen = {name: [""] * len(pages) for name in RULES}
    runs = Counter[str]()
    for number in range(FOLDS):
        weights = fit_both([page for page, each in zip(pages, fold, strict=True) if each != number])
        for at in np.flatnonzero(fold == number):
            for name, bounds in RULES.items():
                chosen[name][at] = pages[at].text(weights, bounds)
                runs[name] += pages[at].ran_second
    print_table(pages, snippets, chosen)
    print("trafilatura ran on " + ", ".join(f"{runs[name]} ({name})" for name in RULES))
    print_interval(snippets, chosen["best"], [page.whole for page in pages])
    if write_weights:
        write(fit_both(pages))


def print_interval(snippets: Snippets, ours: list[str], theirs: list[str]) -> None:
    """Print the 95 % interval of the difference between our F and theirs, from 2,000 bootstrap samples of the pages."""
    counts = [
        [
            [sum(each in text for each in wanted), sum(each in text for each in unwanted), len(wanted)]
            for text, (wanted, unwanted) in zip(texts, snippets, strict=True)
        ]
        for texts in (ours, theirs)
    ]
    table = np.array(counts, np.float64)  # [side, page, (found of wanted, found of unwanted, wanted)]
    draws = np.random.default_rng(0).integers(len(snippets), size=(2000, len(snippets)))
    sums = table[:, draws].sum(2)  # [side, draw, 3]
    f = 2 * sums[..., 0] / (sums[..., 0] + sums[..., 1] + sums[..., 2])
    low, high = np.quantile(f[0] - f[1], [0.025, 0.975])
    print(f"best above trafilatura in F: 95 % interval {low:.4f} to {high:.4f}")


def print_table(pages: list[Judged], snippets: Snippets, chosen: dict[str, list[str]]) -> None:
    print(f"{len(pages)} pages            precision  recall      F")
    alone = {
        "resiliparse": [page.first for page in pages],
        "trafilatura": [page.whole for page in pages],
        "trafilatura, once": [page.once for page in pages],
    }
    for name, texts in {**alone, **chosen}.items():
        print(f"{name:22s} {score(texts, snippets)}")


def write(weights: Weights) -> None:
    names = {"alone": TEXT_FEATURES, "both": (*TEXT_FEATURES, *BOTH_FEATURES)}
    named = {kind: dict(zip(("constant", *names[kind]), weights[kind], strict=True)) for kind in names}
    WEIGHTS.write_text(json.dumps(named, indent=1) + "\n")


def print_readability(root: Path) -> None:
    from resiliparse.extract.html2text import extract_plain_text

    with gzip.open(root / "readability_expected.jsonl.gz") as lines:
        expected = [extract_plain_text(json.loads(line)["expected_html"], alt_texts=False) for line in lines]
    pages = [Judged(decode_page(page, "").text) for page in payloads(root / "readability_pages.warc.gz")]
    texts: dict[str, list[str]] = {
        "resiliparse": [page.first for page in pages],
        "trafilatura": [page.whole for page in pages],
        "trafilatura, once": [page.once for page in pages],
        "best": [page.text(shipped_weights()) for page in pages],
    }
    print(f"{len(pages)} pages of readability, words: precision  recall      F (means over pages)")
    for name, found in texts.items():
        shares = [_words(text, right) for text, right in zip(found, expected, strict=True)]
        print(f"{name:22s} " + " ".join(f"{statistics.mean(each):8.3f}" for each in zip(*shares, strict=True)))


def _words(text: str, right: str) -> tuple[float, float, float]:
    found, wanted = (Counter(re.findall(r"\w+", each)) for each in (text, right))
    common = (found & wanted).total()
    precision, recall = common / max(1, found.total()), common / max(1, wanted.total())
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


if __name__ == "__main__":
    main()
