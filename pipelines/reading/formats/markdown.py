"""Markdown: a file is a document as it stands, but for YAML front matter, which is kept as `meta`."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.entries.source import SourceSpec
from pipelines.reading.formats.plain import read_text

_FRONT_MATTER_BYTES = 1 << 16
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


class _Loader(yaml.BaseLoader):
    """Strings, lists and mappings of them; no aliases, with which a few lines can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def read_markdown(entry: Entry, source: SourceSpec) -> Iterator[TextRecord | Bad]:
    """The whole file as one document, markup and all, as in text.

    Front matter is a block that the first line `---` opens, a line `---` or `...` closes within 64 KiB, and that is a
    YAML mapping without aliases. Its fields are `meta`, values as they are written (`true` is the string "true"), and
    the one that `url_field` names is the URL. A block that is anything else, a rule between two lines for example,
    stays in the text.
    """
    fields: dict[str, Any] = {}
    for number, record in enumerate(read_text(entry, source)):
        if isinstance(record, TextRecord):
            text = record.text
            if number == 0:
                fields, text = _front_matter(text)
            meta = dict(fields)
            url = meta.pop(source.url_field) if isinstance(meta.get(source.url_field), str) else None
            record = record._replace(text=text, url=url, meta=to_json(meta) if meta else None)
        yield record


def _front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The fields of a document's front matter, and the text without it."""
    if match := _FRONT_MATTER.match(text, 0, _FRONT_MATTER_BYTES):
        try:
            fields = yaml.load(match[1], _Loader)
        except (yaml.YAMLError, RecursionError, ValueError):
            return {}, text
        if isinstance(fields, dict) and all(isinstance(name, str) for name in fields):
            return fields, text[match.end() :]
    return {}, text
