"""The search index of a corpus: where the index of each part is, and which of these indexes are current.

The index of a part is a directory below `search-index/` in the output. It is named after the source, the
number of the part and the first digits of a fingerprint, as in `web-00003-5d41402abc4b`. The fingerprint
covers the indexed content: the documents of the part with all edits and redactions. Steps that only drop
documents do not change it. An index is current if its name matches a part of the corpus or of one of its
variants. `gc --delete` and `forget` remove all other indexes.
"""

from contextlib import suppress

from gristmill.errors import CorruptFileError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import digest
from pipelines.contracts.columns import EDITS_COLUMN
from pipelines.contracts.edits import COMPOSITION
from pipelines.contracts.lineage import Corpus, open_corpus
from pipelines.contracts.manifest import PartRecord, variants_in

INDEX_FOLDER = "search-index"
INDEX_FORMAT = "gristmill-search-index/1"
_DIGITS = 12  # as in the directories of steps


def unit_names(corpus: Corpus) -> dict[tuple[str, int], str]:
    """Return the name that each part's search index has, or would have once written, by (source, part index)."""
    return {
        (source, record.index): _unit_name(corpus, source, record)
        for source in corpus.manifest.sources
        for record in corpus.read_step(source).manifest.parts
    }


def _unit_name(corpus: Corpus, source: str, record: PartRecord) -> str:
    edits = []
    for step in corpus.steps:
        file = step.manifest.part_files.get((source, record.index))
        if file is not None and step.stage != "read" and EDITS_COLUMN in step.manifest.schema:
            edits.append([file.xxh3_128, step.manifest.fingerprint if step.stage == "pii" else ""])
    fingerprint = digest([INDEX_FORMAT, COMPOSITION, record.file.xxh3_128, edits])
    return f"{source}-{record.index:05d}-{fingerprint[:_DIGITS]}"


def current_units(directory: LocalPath) -> set[str]:
    """Return the names of the search indexes of the corpus in `directory` and of its variants, one for each
    part, whether or not the indexes have been written. A corpus or variant with a missing or corrupt step is
    skipped.
    """
    names: set[str] = set()
    for manifest in (directory / "manifest.json", *variants_in(directory)):
        if manifest.exists():
            with suppress(CorruptFileError):  # a corpus that cannot be opened cannot be searched
                names.update(unit_names(open_corpus(manifest)).values())
    return names
