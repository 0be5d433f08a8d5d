"""Render Jinja templates with the rows of a data set, in jinja2's sandbox."""

import ast
import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gristmill.errors import UserError
from gristmill.terminal import printable
from trainers.tasks.harness_format.harness_task import HarnessTask


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.filters["regex_replace"] = _replace
    return environment


def _replace(text: str, pattern: str, replacement: str, count: int = 0) -> str:
    return re.sub(pattern, replacement, text, count=count)


def render_text(place: str, template: str, row: Mapping[str, Any]) -> str:
    """Return a template filled with the columns of a row. Raises UserError if the template is invalid or
    cannot be filled.
    """
    try:
        return str(_environment().from_string(template).render(**row))
    except (
        TemplateError,
        ArithmeticError,
        AttributeError,
        KeyError,
        LookupError,
        TypeError,
        ValueError,
        re.error,
    ) as error:
        raise UserError(f"{place}: {printable(' '.join(str(error).split()))}; columns are {', '.join(row)}") from None


class RowTemplates:
    """Applies the templates of a task to the rows of its data, as lm-evaluation-harness does."""

    def __init__(self, task: HarnessTask) -> None:
        self._task = task

    def text(self, place: str, row: Mapping[str, Any]) -> str | int:
        """Return the text of a row or, if the choices are contexts (as in WinoGrande), the index of the
        correct choice.
        """
        value = self._value(f"{place}: doc_to_text", self._task.texts, row)
        digits = isinstance(value, str) and value.isdecimal() and self._task.choices is not None
        if digits and self._task.texts not in row:
            return int(value)
        return value if isinstance(value, int) and not isinstance(value, bool) else str(value)

    def target(self, place: str, row: Mapping[str, Any]) -> Any:
        """Return the target of a row: a text, the index of a choice, or a list of accepted texts."""
        template = self._task.targets
        value = self._value(f"{place}: doc_to_target", template, row)
        if not isinstance(value, str) or template in row:
            return value
        if value.isdecimal() and self._task.choices is not None:
            return int(value)
        return _literal(value) if value[:1] == "[" and value[-1:] == "]" else value

    def choices(self, place: str, row: Mapping[str, Any]) -> list[str]:
        """Return the choices of a row. Raises UserError unless there are two or more, none of them blank."""
        template = self._task.choices
        value = self._value(f"{place}: doc_to_choice", template, row)
        if isinstance(value, str):
            value = _literal(value)
        if not isinstance(value, list) or len(value) < 2 or not all(str(each).strip() for each in value):
            raise UserError(
                f"{place}: doc_to_choice: expected a list of two texts or more, none empty; correct the row"
            )
        return [str(each) for each in value]

    def _value(self, place: str, template: Any, row: Mapping[str, Any]) -> Any:
        """Return the value of the column that a template names or, if it names none, the rendered template. A
        template that is not a string is returned unchanged.
        """
        if not isinstance(template, str):
            return template
        value = row[template] if template in row else render_text(place, template, row)
        if value is None:
            raise UserError(f"{place}: column {template!r} is empty; correct the row")
        return value


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return text
