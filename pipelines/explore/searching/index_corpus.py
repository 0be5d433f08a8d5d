"""Write the search index of a corpus, part by part."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from gristmill.console import ProgressDisplay
from gristmill.storage.location import Location
from gristmill.terminal import human_bytes, quantity
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import check_mark
from pipelines.contracts.search_index.index_units import INDEX_FOLDER, unit_names
from pipelines.contracts.tombstone import forgotten, mark_of
from pipelines.explore.searching.part_index import is_finished, text_bytes, write_part_index
from pipelines.explore.searching.search_corpus import shown_texts


@dataclass(frozen=True)
class IndexReport:
    """The result of `index_corpus`: the number of parts indexed now (`written`), the number that already had
    a current index (`reused`), and the sizes in bytes of the newly indexed text (in UTF-8) and of its
    indexes.
    """

    written: int
    reused: int
    text_bytes: int
    index_bytes: int


def index_corpus(corpus: Location, sources: Sequence[str] | None = None) -> IndexReport:
    """Write the search index of all documents, kept and dropped, in `sources` or, by default, in all sources
    of a corpus. Parts that already have a current index are skipped. Raises UserError for an unknown source
    or an unfinished `forget`, and ConflictError if documents are forgotten in the meantime.
    """
    mark = mark_of(forgotten(corpus.parent if corpus.suffix == ".json" else corpus))
    opened = open_corpus(corpus)
    names = unit_names(opened)
    parts = [part for source in opened.choose_sources(sources, "--sources") for part in opened.parts(source)]
    check = partial(check_mark, opened.directory, mark)
    (opened.directory / INDEX_FOLDER).remove_temporaries()  # of killed commands
    written = size = index_bytes = 0
    with ProgressDisplay() as display:
        for done, part in enumerate(parts):
            display.progress("index", done, len(parts))
            directory = opened.directory / INDEX_FOLDER / names[part.source, part.index]
            if not is_finished(directory):
                texts = shown_texts(opened, part, pa.array(range(part.rows), pa.int64()))
                index_bytes += write_part_index(directory, texts, check)
                written, size = written + 1, size + text_bytes(texts)
        report = IndexReport(written, len(parts) - written, size, index_bytes)
        display.say(
            f"{quantity(written, 'part')} indexed, {human_bytes(size)} of text in {human_bytes(index_bytes)}; "
            f"{report.reused} had a current index"
        )
    return report
