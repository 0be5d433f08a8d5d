"""Compose the text of a record from several of its fields, which may be nested, or from the turns of a
conversation.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gristmill.config import ADDED
from pipelines.contracts.document import BORDER, TARGET_MARK

_PLACE = re.compile(r"\{([^{}\s]+)\}")


class NoTextError(Exception):
    """Raised if no text can be composed from a record. `reason` is `no_text` if the text is empty, or
    `text_not_string` if a field does not have the expected type.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class RecordText:
    """How the text of a record is composed: from several of its fields, from the turns of a conversation, or
    from both.

    The texts of `fields` are joined, followed by those of the turns. Missing, null and empty texts are left
    out. If nothing remains, and `target` is missing or empty too, the record has no text.
    """

    fields: tuple[str, ...] = ()
    """Fields with texts, in order; `a.b` is the field `b` in the object `a`, unless the record has a field named `a.b`."""
    turns: str = ""
    """Field with a list of objects, the turns of a conversation, such as `messages`."""
    template: str = "{role}: {content}"
    """Text of a turn. Names in braces are fields of the turn. A turn is left out if the last of these
    fields is missing or empty."""
    join: str = "\n\n"
    """What is put between two texts."""
    target: str = field(default="", metadata=ADDED)
    """Field with the other side of the text, such as its translation; the other fields are then its source. A document is the
    source, a line feed, U+2029 and the target; with `target: true`, `shards` finds the border between them. A record with only
    one side has no border."""

    def check(self) -> None:
        """Raise ValueError if the settings are incomplete or contradict each other."""
        if not self.fields and not self.turns:
            raise ValueError("fields: got none, expected `fields` or `turns`")
        if self.target and self.target in self.names()[:-1]:
            raise ValueError(f"target: got {self.target!r}, which is a field of the source too; name another one")
        if self.turns and not _PLACE.search(self.template):
            raise ValueError(
                f"template: got {self.template!r}, expected names of fields in braces, such as {{content}}"
            )

    def names(self) -> tuple[str, ...]:
        """Return the names of the record's fields from which the text is composed."""
        return (*self.fields, *((self.turns,) if self.turns else ()), *((self.target,) if self.target else ()))

    def take(self, record: dict[str, Any]) -> str:
        """Remove the fields from a record and return the text composed of them. Raises NoTextError if the
        text is empty, or if a field does not have the expected type.
        """
        pieces = [text for field in self.fields if (text := _text(_take(record, field.split("."), field)))]
        if self.turns:
            pieces += self._turns(_take(record, self.turns.split("."), self.turns))
        text = self.join.join(pieces)
        if self.target:
            text = self._with_target(text, _text(_take(record, self.target.split("."), self.target)))
        if not text:
            raise NoTextError("no_text")
        return text

    def _with_target(self, source: str, target: str) -> str:
        sides = [side.replace(TARGET_MARK, "\n") for side in (source, target) if side.strip()]
        return BORDER.join(sides)

    def _turns(self, turns: Any) -> Iterator[str]:
        if turns is None:
            return
        if not isinstance(turns, list):
            raise NoTextError("text_not_string")
        last = _PLACE.findall(self.template)[-1]
        for turn in turns:
            if not isinstance(turn, dict):
                raise NoTextError("text_not_string")
            if _text(_find(turn, last)):
                yield _filled(self.template, turn)


def _filled(template: str, turn: dict[str, Any]) -> str:
    return _PLACE.sub(lambda place: _text(_find(turn, place[1])), template)


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise NoTextError("text_not_string")
    return value


def _find(value: Any, name: str) -> Any:
    if isinstance(value, dict) and name in value:
        return value[name]
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _take(record: dict[str, Any], path: list[str], name: str) -> Any:
    """Remove a field and return its value, or None if the field is missing. `name` is the field's dotted
    name, and `path` is that name split at its dots. A key that equals the whole name takes precedence over a
    nested field. Enclosing objects that are empty afterwards are removed too.
    """
    if name in record:
        return record.pop(name)
    inner = record.get(path[0])
    if len(path) == 1 or not isinstance(inner, dict):
        return None
    value = _take(inner, path[1:], ".".join(path[1:]))
    if not inner:
        del record[path[0]]
    return value
