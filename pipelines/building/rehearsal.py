"""Configure a rehearsal: a build of a share of the records in a separate directory, to estimate the
documents, text and tokens of the whole corpus.
"""

from dataclasses import replace

from gristmill.errors import UserError
from pipelines.building.build import ensure_owner
from pipelines.contracts.tombstone import forgotten, read_tombstone, write_tombstone
from pipelines.planning.corpus import CorpusConfig


def rehearsal(config: CorpusConfig, share: float) -> CorpusConfig:
    """Return a copy of `config` that reads only the given share of the records and writes to
    `OUTPUT-sample-SHARE`. Documents that OUTPUT has forgotten are recorded as forgotten there, too.

    Raises UserError unless the share is above 0 and below 1.
    """
    if not 0 < share < 1:
        raise UserError(f"--sample: got {share:g}, expected a share of the records above 0 and below 1, such as 0.001")
    sources = tuple(replace(source, sample=source.sample * share) for source in config.sources)
    rehearsed = replace(config, sources=sources, output=f"{config.output.rstrip('/')}-sample-{share:g}")
    if gone := forgotten(config.place):
        ensure_owner(rehearsed.place, config.name, write=True)
        tombstone = read_tombstone(rehearsed.place)
        known = tombstone["records"]
        records = {name: sorted({*known.get(name, ()), *gone.get(name, ())}) for name in sorted({*known, *gone})}
        if records != known:
            write_tombstone(rehearsed.place, {**tombstone, "records": records})
    return rehearsed
