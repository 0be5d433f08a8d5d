"""Turn raw text into annotated documents and token shards. The public names of `pipelines.api` can also be
imported from here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.api import (
        EDITED_TEXT,
        TEXT,
        Bad,
        Column,
        CorpusStage,
        Entry,
        OpenCorpus,
        PartStage,
        Source,
        TextRecord,
        build,
        diff,
        index,
        open_corpus,
        plan,
        search,
        what_if,
    )

__all__ = [
    "EDITED_TEXT", "TEXT", "Bad", "Column", "CorpusStage", "Entry", "OpenCorpus", "PartStage", "Source", "TextRecord", "build",
    "diff", "index", "open_corpus", "plan", "search", "what_if",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return the object that `pipelines.api` exports under this name. That module loads Arrow, so it is
    imported only when one of its names is used.
    """
    if name in __all__:
        from pipelines import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
