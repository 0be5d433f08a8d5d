"""Markdown: each file is a document and keeps its markup; YAML front matter goes to `meta`."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from pipelines.reading.entries.archives import Entry
from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.formats.plain import read_text
from pipelines.reading.sources.source import Source

_FRONT_MATTER_BYTES = 1 << 16
_FRONT_MATTER = re.compile(r"---[ \t]*\r?\n(.*?)^(?:---|\.\.\.)[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)


class _Loader(yaml.BaseLoader):
    """A YAML loader that reads every scalar as a string. It rejects aliases, because a few lines of them can
    expand to gigabytes.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def read_markdown(entry: Entry, source: Source) -> Iterator[TextRecord | Bad]:
    """Yield the records that `read_text` yields, but without the front matter of the file. Markup is kept.

    Front matter is a YAML mapping without aliases. It lies between `---` on the first line and a later line
    `---` or `...` within the first 65,536 characters. If the field named by `url_field` is a string, it
    becomes the URL. The other fields become `meta`, with values as written (`true` is the string "true").
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
    match = _FRONT_MATTER.match(text, 0, _FRONT_MATTER_BYTES)
    # The end of what is searched is no end of a line.
    if match and (match.end() < _FRONT_MATTER_BYTES or match[0].endswith("\n") or match.end() == len(text)):
        try:
            fields = yaml.load(match[1], _Loader)
        except (yaml.YAMLError, RecursionError, ValueError, OverflowError):  # the last: the escape \UFFFFFFFF
            return {}, text
        if isinstance(fields, dict) and all(isinstance(name, str) for name in fields):
            return fields, text[match.end() :]
    return {}, text
