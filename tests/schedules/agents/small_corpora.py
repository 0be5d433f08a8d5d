"""The corpora that agents build: two sources on the real disk, and configurations of toy stages."""

import json
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from pipelines.planning.corpus import CorpusConfig, StepConfig
from pipelines.planning.inventory import take_inventory
from pipelines.reading.sources.source import Source
from tests.schedules.agents.toy_stages import Elect, Learn, Length, Pack, Short
from tests.schedules.memory_disk import ROOT

OUTPUT = f"{ROOT}/corpus"
EXPORT = f"{ROOT}/export"
SECRET = "the text that is to be forgotten, word for word"
"""The whole text of one document, `FORGOTTEN`."""
FORGOTTEN, ANOTHER = "web/1.jsonl#1", "web/0.jsonl#0"
TEXTS = {FORGOTTEN: SECRET, ANOTHER: "document web 0 0 which is long enough to keep"}
"""The text of each document that agents forget."""
_kept_directories: list[tempfile.TemporaryDirectory] = []


@cache
def sources_directory(parts: int = 3) -> Path:
    """Return a directory with the sources `web` and `books`, each with `parts` files of three documents. With
    the default `part_bytes` of `corpus`, each file becomes one part.
    """
    directory = tempfile.TemporaryDirectory(prefix="schedules-")
    _kept_directories.append(directory)
    for name in ("web", "books"):
        for number in range(parts):
            place = Path(directory.name, name)
            place.mkdir(exist_ok=True)
            texts = [f"document {name} {number} {row} which is long enough to keep" for row in range(3)]
            texts[2] = f"short {number}"
            if f"{name}/{number}.jsonl#1" == FORGOTTEN:
                texts[1] = SECRET
            (place / f"{number}.jsonl").write_text(
                "".join(f'{{"text": {" " * 150}{json.dumps(text)}}}\n' for text in texts)
            )
    return Path(directory.name)


STEPS = (
    StepConfig("length", Length(), "length"),
    StepConfig("short", Short(), "short"),
    StepConfig("elect", Elect(), "elect"),
    StepConfig("learn", Learn(), "learn"),
    StepConfig("pack", Pack(), "pack"),
)


SHAPES = {
    "whole": ("length short elect learn pack", ("web", "books"), 3),
    "small": ("length short learn", ("web",), 2),
}
"""Name -> (names of steps, sources, parts of each source). Reading a source is a step too, and so is the funnel."""
_shape = SHAPES["whole"]


def choose_shape(name: str) -> None:
    global _shape
    _shape = SHAPES[name]


def parts_of_each() -> int:
    return _shape[2]


def corpus(least: int = 30, part_bytes: int = 800) -> CorpusConfig:
    """Return the configuration of the chosen shape. `least` is a knob of one of its steps."""
    return _corpus(*_shape, least, part_bytes)


@cache
def _corpus(names: str, sources: tuple[str, ...], parts: int, least: int, part_bytes: int) -> CorpusConfig:
    root = sources_directory(parts)
    sources = tuple(
        Source(name, str(root / name), "jsonl", licence="CC0-1.0", part_bytes=part_bytes, max_document_bytes=800)
        for name in sources
    )
    steps = tuple(step for step in STEPS if step.name in names.split())
    steps = tuple(replace(step, stage=Short(least)) if step.name == "short" else step for step in steps)
    return CorpusConfig("toy", OUTPUT, sources, steps)


@cache
def inventories(sources):
    """Return the result of `take_inventory`, which is the same in every schedule."""
    from gristmill.storage.disk import LocalPath

    return take_inventory(sources, LocalPath("/nonexistent"))
