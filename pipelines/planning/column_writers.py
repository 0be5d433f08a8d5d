"""Find the stage that writes a column, and compare the definition of a column with those that a stage
accepts.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, cast

from gristmill.config import near_match
from gristmill.errors import ConfigError
from pipelines.contracts.columns import DROP, EDITS_COLUMN
from pipelines.contracts.reads_text import MeasuresText
from pipelines.planning.corpus import StepConfig
from pipelines.stages import STAGES


@cache
def writers() -> dict[str, str]:
    """Return a mapping from each column, except `drop` and `edits`, to the first stage that writes it with
    default knobs. A column that no stage writes by default is mapped to the first stage that writes it with
    one knob switched on, in the form `language with paragraphs: true`. Stages whose columns depend on a knob
    without a default are left out.
    """
    writer_of: dict[str, str] = {}
    for switched in (False, True):
        for stage, columns in _columns(switched=switched):
            for column in columns:
                if column not in (DROP, EDITS_COLUMN):
                    writer_of.setdefault(column, stage)
    return writer_of


def _columns(*, switched: bool) -> Iterator[tuple[str, list[str]]]:
    for name, kind in STAGES.items():
        knobs = dataclasses.fields(cast(Any, kind))
        switches = [knob.name for knob in knobs if knob.default is False] if switched else [""]
        for switch in switches:
            stage = kind.__new__(kind)
            if switch:
                object.__setattr__(stage, switch, True)
            try:
                yield f"{name} with {switch}: true" if switch else name, stage.writes().names
            except AttributeError:
                continue


def _writer(column: str, steps: Sequence[StepConfig]) -> tuple[str, str] | None:
    """Return a stage that can write a column, described as in `writers`, and its entry for the corpus file;
    None if there is no such stage.
    """
    if column in writers():
        stage, _, switch = writers()[column].partition(" with ")
        return writers()[column], f"{stage}: {{{switch}}}"
    for other in (entry.stage for entry in steps):
        if isinstance(other, MeasuresText) and other.prefix and column.startswith(other.prefix):
            name = writers().get(column.removeprefix(other.prefix), "")
            if name in STAGES and issubclass(STAGES[name], MeasuresText):
                return name, f"{name}: {{text: {other.text}, prefix: {other.prefix}}}"
    return None


def missing_column(column: str, step: str, steps: Sequence[StepConfig], known: Sequence[str]) -> str:
    """Return advice on a column that `step` reads but no earlier step writes, to be appended to an error
    message. `steps` are all steps, and `known` the names of the columns written so far.
    """
    later = [entry.name for entry in steps if column in entry.written and entry.name != step]
    if later:
        return f"; {later[0]}, a later step, writes it: move {later[0]} before {step}"
    writer = _writer(column, steps)
    if writer:
        stage, entry = writer
        return f"; the stage {stage} writes it: put `{entry}` before {step}"
    near = near_match(column, list(known))
    anywhere = near_match(column, list(writers()))
    return anywhere if "did you mean" in anywhere and "did you mean" not in near else near


def check_definitions(
    step: str,
    source: str,
    accepted: Mapping[str, Sequence[Mapping[str, Any]]],
    definitions: Mapping[str, Mapping[str, Any]],
) -> None:
    """Raise ConfigError if one of a source's columns has a definition (stage, version, knobs and
    dependencies) that the step does not accept. Both mappings are keyed by column; a column that is missing
    from either is not checked.
    """
    for column, known in accepted.items():
        here = definitions.get(column)
        if here is not None and here not in known:
            raise ConfigError(
                f"step {step}: the column {column!r} of {source} is not the one that the model of this step was trained on: "
                f"{_difference(known[0], here)}; measure it as there, or train the model again"
            )


def _difference(there: Any, here: Any, path: str = "") -> str:
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        name = next(key for key in (*there, *here) if there.get(key) != here.get(key))
        return _difference(there.get(name), here.get(name), f"{path}.{name}".lstrip("."))
    return f"{path} is {here!r} here and was {there!r} there"
