"""Find the optional libraries that a corpus needs, so that a missing one is reported before anything is read."""

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from gristmill.errors import UserError
from gristmill.libraries.extras import import_failures
from gristmill.storage.paths import is_url
from gristmill.storage.remote import library_of_scheme
from pipelines.planning.corpus import CorpusConfig
from pipelines.reading.web.page_process import optional_library


class Need(NamedTuple):
    """A module that an entry of a corpus file needs, and the command that installs it."""

    where: str
    module: str
    install: str


def needs_of(config: CorpusConfig) -> Iterator[Need]:
    """Yield the optional libraries that a corpus needs, each with the entry that needs it. A URL needs the
    library of its scheme, but URLs in the knobs of stages are not checked.
    """
    yield from _of_url("output", config.output)
    for source in config.sources:
        yield from _of_url(f"source {source.name!r}: root", source.root)
        yield from _of_url(f"source {source.name!r}: files", source.files or "")
        if library := optional_library(source):
            yield Need(f"source {source.name!r}: {library[0]}", *library[1:])
    for step in config.steps:
        yield from (Need(f"step {step.name}", *library) for library in step.stage.libraries())


def _of_url(where: str, place: str) -> Iterator[Need]:
    if is_url(place):
        yield Need(where, *library_of_scheme(urlsplit(place).scheme.lower()))


def refuse_missing(config: CorpusConfig) -> None:
    """Raise UserError if a library that `config` needs cannot be imported."""
    needs = list(needs_of(config))
    failed = import_failures(dict.fromkeys(need.module for need in needs)) if needs else {}
    for need in needs:
        if need.module in failed:
            raise UserError(
                f"{need.where}: needs the module {need.module}, which cannot be imported ({failed[need.module]}); "
                f"run: {need.install}"
            )
