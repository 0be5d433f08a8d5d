"""Export the matches of evaluation items that `decontaminate` steps found in a corpus, as JSON lines, and
print how many items were found.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow.compute as pc

from gristmill.console import Page
from gristmill.errors import UserError
from gristmill.storage.location import Location
from gristmill.terminal import printable
from pipelines.contracts.columns import DROP
from pipelines.contracts.contamination.found_items import STAGE, evidence_column, items_of_texts
from pipelines.contracts.lineage import Corpus, PublishedStep, open_corpus


def write_contamination_report(corpus: Location, output: Location) -> None:
    """Write every match of an evaluation item in a document to `output` as a JSON line, and print how many
    items of each evaluation set each step found.

    Each line has the `step` that found the match, the `item`, its `field` (`prompt` or `answer`), the `score`
    (the share of the field's words that the document contains), the printed id of the `document`, and the
    `start` and `end` of the match in UTF-8 bytes of the text that was searched. `drop` is the rule that
    dropped the document, or null. If the source gives a split, the line also has the document's `split`. A
    match of a text that several items share has a line for each of them. The lines contain no text of
    documents or items.

    Raises UserError for a corpus without a decontaminate step, and for an output that already exists.
    """
    opened = open_corpus(corpus)
    steps = [step for step in opened.steps if step.stage == STAGE]
    if not steps:
        raise UserError(f"{corpus}: no step of this corpus looked for evaluation sets; add a step `decontaminate`")
    if output.exists():
        raise UserError(f"{output}: exists; name another file")
    matches = documents = 0

    def write(sink: BinaryIO) -> None:
        nonlocal matches, documents
        matches = documents = 0
        for facts, items in _contaminated_documents(opened, steps):
            documents += 1
            matches += len(items)
            for match in items:
                line = {**match, **facts}
                sink.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    output.write_atomic(write)
    page = Page()
    for step in steps:
        for name, fact in step.manifest.facts.get("sets", {}).items():
            page.field(name, f"{fact['items_found']:,} of {fact['items']:,} items found by {step.name}")
    page.line(f"{matches:,} matches in {documents:,} documents: {printable(str(output))}")


def _contaminated_documents(
    corpus: Corpus, steps: Sequence[PublishedStep]
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    items = {step.name: items_of_texts(step) for step in steps}
    for part in corpus.parts():
        searched = {annotation.step for annotation in part.annotations}
        columns = {step.name: evidence_column(step) for step in steps if step.name in searched}
        if not columns:
            continue
        table = part.table((*columns.values(), DROP))
        found: dict[int, list[dict[str, Any]]] = {}
        for step, column in columns.items():
            rows = pc.indices_nonzero(pc.greater(pc.list_value_length(table[column]), 0))
            for row, matches in zip(rows.to_pylist(), table[column].take(rows).to_pylist(), strict=True):
                found.setdefault(row, []).extend(
                    {"step": step, **match, "item": item}
                    for match in matches
                    for item in items[step].get((match["item"], match["field"]), [match["item"]])
                )
        names, splits = (corpus.printed_ids(part), part.splits()) if found else ([], None)
        for row, matches in sorted(found.items()):
            split = {} if splits is None else {"split": splits[row].as_py()}
            yield {"document": names[row], "drop": table[DROP][row].as_py(), **split}, matches
