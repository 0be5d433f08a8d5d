"""False finds: strings that `pii` finds but that are not personal data. false_finds.yaml lists patterns that
recognise them, with reasons and examples.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.config import load_yaml, parse
from gristmill.storage.store import file_checksum

if TYPE_CHECKING:
    import numpy as np

_LIST = Path(__file__).with_name("false_finds.yaml")
_REACH = 200  # bytes of text around a find


@dataclass(frozen=True)
class FalseFind:
    """A pattern that exposes false finds: a find of one of `entities` is false if it lies inside a match of
    `pattern`. `examples` are texts with such a find, and `kept` are similar texts whose finds are not false.
    """

    name: str
    why: str
    entities: tuple[str, ...]
    pattern: str
    examples: tuple[str, ...]
    kept: tuple[str, ...]


@dataclass(frozen=True)
class FalseFinds:
    """The content of false_finds.yaml."""

    false_finds: tuple[FalseFind, ...]


@cache
def read_list() -> tuple[FalseFind, ...]:
    """Return the entries of the list of false finds."""
    return parse(FalseFinds, load_yaml(_LIST), str(_LIST)).false_finds


def list_checksum() -> str:
    """Return the checksum of the list file, on which the finds of `pii` depend."""
    return file_checksum(_LIST)


@cache
def _patterns() -> dict[str, list[re.Pattern[str]]]:
    patterns = defaultdict(list)
    for entry in read_list():
        for entity in entry.entities:
            patterns[entity].append(re.compile(entry.pattern))
    return dict(patterns)


def is_false(entity: str, document: "np.ndarray", start: int, end: int) -> bool:
    """Return whether an `entity` found at bytes [start, end) of `document` (uint8) matches an entry of the
    list of false finds.
    """
    if not (patterns := _patterns().get(entity)):
        return False
    before = document[max(0, start - _REACH) : start].tobytes().decode(errors="ignore")
    text = before + document[start:end].tobytes().decode()
    last = len(text)
    text += document[end : end + _REACH].tobytes().decode(errors="ignore")
    return any(
        match.start() <= len(before) and last <= match.end() for pattern in patterns for match in pattern.finditer(text)
    )
