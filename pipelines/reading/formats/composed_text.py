"""Records whose text is composed of several fields or of the turns of a conversation (`text` of a source)."""

from typing import Any

from pipelines.reading.entries.records import Bad, TextRecord, to_json
from pipelines.reading.sources.record_text import NoTextError
from pipelines.reading.sources.source import Source


def composed_record(record: dict[str, Any], size: int, source: Source) -> TextRecord | Bad:
    """Return a record of a source that has `text`, from its fields, which are changed. The rest of them goes to `meta`.

    Raises ValueError if `meta` holds what JSON lacks.
    """
    assert source.text is not None
    names = tuple(record)
    try:
        text = source.text.take(record)
    except NoTextError as error:
        return Bad(error.reason, size, names)
    if len(text) > source.max_document_bytes:
        return Bad("oversized", size)
    url = record.pop(source.url_field, None)
    if url is not None and not isinstance(url, str):
        record[source.url_field], url = url, None
    return TextRecord(text, size, url, to_json(record) if record else None)
