"""Compare the verdicts of gristmill and datatrove on each document of the same input, and print why they
differ.

`benchmarks.end_to_end` calls this after both have built.
"""

import difflib
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.storage.disk import LocalPath
from pipelines import EDITED_TEXT, open_corpus

FAMILIES = ("language", "gopher_repetition", "gopher_quality", "fineweb", "c4", "minhash", "kept")
_PII = re.compile(r"<(EMAIL_ADDRESS|IP_ADDRESS)>|(firstname\.lastname|email)@example\.(com|org)|\b\d+(\.\d+){3}\b")
_SHOWN = 12


@dataclass(frozen=True)
class Verdict:
    """The outcome of a document: one of FAMILIES, the rule that dropped it, and its text if it was kept."""

    family: str
    reason: str
    text: str | None = None


def show_differences(corpus: Path, inputs: Path, peer: Path, kind: str) -> None:
    """Print both funnels side by side, how many verdicts agree, and the differences in rules and texts by
    cause.

    `corpus` was built here from `inputs`; `peer` is the output of datatrove's script. Documents of prose are
    matched by source and `id`, pages by URL.
    """
    ours, theirs = dict(_ours(corpus, inputs, kind)), dict(_theirs(peer, kind))
    print(f"\n{'documents':20} {'here':>9} {'datatrove':>9}")
    print(f"{'read':20} {len(ours):9,} {len(theirs):9,}")
    counts = [Counter(verdict.family for verdict in side.values()) for side in (ours, theirs)]
    for family in FAMILIES:
        if any(side[family] for side in counts):
            print(f"{family:20} {counts[0][family]:9,} {counts[1][family]:9,}")
    shared = ours.keys() & theirs.keys()
    for name, side, other in (("here", ours, theirs), ("datatrove", theirs, ours)):
        if alone := side.keys() - other.keys():
            families = Counter(side[each].family for each in alone).most_common()
            print(f"only {name}: {len(alone):,} ({_listed(families)})")
    pairs = [(ours[each], theirs[each]) for each in shared]
    alike = [(one, other) for one, other in pairs if (one.text is None) == (other.text is None)]
    print(
        f"kept or dropped alike: {len(alike):,} of {len(pairs):,} ({len(alike) / max(1, len(pairs)):.2%}). The others:"
    )
    _show_causes(
        f"{one.reason or 'kept'} here, {other.reason or 'kept'} there"
        for one, other in pairs
        if (one.text is None) != (other.text is None)
    )
    print("dropped by both, but first by rules of different families:")
    _show_causes(f"{one.family} here, {other.family} there" for one, other in alike if one.family != other.family)
    texts = Counter(text_cause(o.text, t.text) for o, t in pairs if o.text is not None and t.text is not None)
    print(f"texts of the {sum(texts.values()):,} documents that both keep: {_listed(texts.most_common())}")


def _show_causes(causes: Iterable[str]) -> None:
    counts = Counter(causes)
    shown = counts.most_common(_SHOWN)
    for cause, number in shown:
        print(f"  {number:6,}  {cause}")
    if rest := counts.total() - sum(number for _, number in shown):
        print(f"  {rest:6,}  other pairs")


def text_cause(here: str, there: str) -> str:
    """Return how the two texts of a document differ.

    Equal texts and differences in replaced personal data or white space have causes of their own. Other texts
    are compared by lines.
    """
    if here == there:
        return "equal"
    if _PII.sub("*", here) == _PII.sub("*", there):
        return "personal data replaced by other words"
    lines = [[line.strip() for line in _PII.sub("*", text).splitlines() if line.strip()] for text in (here, there)]
    if lines[0] == lines[1]:
        return "white space"
    if _squeezed(lines[0]) == _squeezed(lines[1]):
        return "white space within lines"
    kinds = {kind for kind, *_ in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()} - {"equal"}
    if kinds == {"insert"}:
        return "lines only there"
    if kinds == {"delete"}:
        return "lines only here"
    return "lines that differ"


def _squeezed(lines: Iterable[str]) -> str:
    return "".join("".join(lines).split())


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {number:,}" for name, number in counts)


def _ours(directory: Path, inputs: Path, kind: str) -> Iterator[tuple[str, Verdict]]:
    corpus = open_corpus(LocalPath(directory)).corpus
    keys = _ids(inputs) if kind == "prose" else {}
    for part in corpus.parts():
        table = part.table(["url", EDITED_TEXT])
        columns = (table["url"].to_pylist(), table[EDITED_TEXT.name].to_pylist(), part.drop().to_pylist())
        rows = zip(corpus.printed_ids(part), *columns, strict=True)
        for printed, url, text, drop in rows:
            yield keys.get(printed, url), Verdict(_family(drop), drop or "", None if drop else text)


def _family(drop: str | None) -> str:
    if drop is None:
        return "kept"
    name = drop.partition(".")[0]
    return {"dedup_minhash": "minhash", "language_score": "language", "c4_lines": "c4"}.get(name, name)


def _ids(inputs: Path) -> dict[str, str]:
    """Map `source/file#record` to `source/id`, for files of JSON lines."""
    found = {}
    for path in sorted(inputs.glob("*.jsonl.gz")):
        source = path.name.rpartition("-")[0]
        for number, record in enumerate(_records(path)):
            found[f"{source}/{path.name}#{number}"] = f"{source}/{record['id']}"
    return found


def _theirs(output: Path, kind: str) -> Iterator[tuple[str, Verdict]]:
    for folder in sorted((output / "removed").iterdir()):
        for record in _documents(folder):
            reason = record["metadata"].get("filter_reason", "")
            yield _key(record, kind), Verdict(folder.name, f"{folder.name}: {reason}".removesuffix(": "))
    for record in _documents(output / "final"):
        yield _key(record, kind), Verdict("kept", "", record["text"])


def _key(record: dict[str, Any], kind: str) -> str:
    if kind == "web":
        return str(record["metadata"]["url"])
    return f"{Path(record['metadata']['file_path']).name.rpartition('-')[0]}/{record['id']}"


def _documents(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.rglob("*.jsonl.gz")):
        yield from _records(path)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
