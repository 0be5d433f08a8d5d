"""JSON Schemas of configurations, for editors that complete and check YAML files.

A schema does not cover the rules in the `check` methods of dataclasses.
"""

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS = {bool: "boolean", int: "integer", float: "number", str: "string"}
_SIZE = r"^\s*[0-9]+(\.[0-9]+)?\s*[kKmMgGtT]?[iI]?[bB]?\s*$"  # as in gristmill.config.parse_size


def schema_of(title: str, kind: Any) -> dict[str, Any]:
    """Return the schema of a file whose content is parsed as `kind`, a dataclass or a union of dataclasses."""
    definitions: dict[str, Any] = {}
    top = value_schema(kind, definitions)
    return {"$schema": _DRAFT, "title": title, **top, "$defs": definitions}


def value_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of values of the type `kind`. The schema of a dataclass is added to `definitions`,
    and a reference to it is returned.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(arguments, definitions)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (tuple, list):
        return {"type": "array", "items": value_schema(arguments[0], definitions)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": value_schema(arguments[1], definitions)}
    if dataclasses.is_dataclass(kind):
        return _reference(typing.cast(type, kind), definitions)
    return {"type": _SCALARS[kind]} if kind in _SCALARS else {}


def _union(options: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    members = [value_schema(option, definitions) for option in options if option is not type(None)]
    shorthands = [kind for option in options for kind in _kinds(option)]
    if shorthands:  # a bare string is short for a mapping with that kind
        members.insert(0, {"enum": shorthands})
    if type(None) in options:
        members.append({"type": "null"})
    return members[0] if len(members) == 1 else {"anyOf": members}


def _kinds(option: Any) -> tuple[str, ...]:
    hint = typing.get_type_hints(option).get("kind") if dataclasses.is_dataclass(option) else None
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _reference(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    name = cls.__name__.lstrip("_")
    if name not in definitions:
        definitions[name] = {}  # for dataclasses that contain themselves
        definitions[name].update(_dataclass(cls, definitions))
    return {"$ref": f"#/$defs/{name}"}


def _dataclass(cls: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, notes = typing.get_type_hints(cls), field_notes(cls)
    properties, required = {}, []
    for field in (field for field in dataclasses.fields(cls) if field.init):
        schema = value_schema(hints[field.name], definitions)
        if field.name.endswith("_bytes"):
            schema = {"anyOf": [schema, {"type": "string", "pattern": _SIZE}]}
        properties[field.name] = {**schema, **({"description": notes[field.name]} if field.name in notes else {})}
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.append(field.name)
    whole = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if not required:
        whole["type"] = ["object", "null"]  # an empty value means all defaults
    text = inspect.getdoc(cls) or ""
    if text.startswith(f"{cls.__name__}("):  # the signature, which a dataclass without a docstring gets
        return whole
    return {"description": text, **whole}


def field_notes(cls: type) -> dict[str, str]:
    """Return the documentation of the fields of a dataclass and its bases, by name. A field's documentation
    is the string literal that follows it.
    """
    bases = [base for base in cls.__bases__ if dataclasses.is_dataclass(base)]
    notes = {name: note for base in bases for name, note in field_notes(base).items()}
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for before, node in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
        ):
            notes[before.target.id] = " ".join(str(node.value.value).split())
    return notes
