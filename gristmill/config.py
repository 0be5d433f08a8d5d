"""Read configurations. Frozen dataclasses define the schema of YAML files and of `a.b=value` arguments.

The command line overrides YAML, which overrides defaults. Data that does not fit the schema raises
ConfigError, which names the file and the field. A dataclass may define `check(self) -> None`, which rejects
values with ValueError("field: what is wrong").
"""

import dataclasses
import difflib
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from yaml.composer import Composer

from gristmill.errors import ConfigError

T = TypeVar("T")
_ALIAS_LIMIT = 100
_LARGEST_FLOAT = sys.float_info.max
_ADDED = "added"
ADDED: Final[Mapping[str, bool]] = types.MappingProxyType({_ADDED: True})
"""Metadata that marks a field as added after corpora or runs had been recorded with its dataclass. `plain` omits
the field at its default value, so that corpora and runs that do not use it keep their fingerprints and records.
"""
_REPLACED = ("bool", "int", "float", "timestamp")  # resolvers of YAML 1.1: `no`, the code of Norwegian, is false
_NODE_LIMIT = 1_000_000  # maximum number of values in a file with every alias expanded
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kMGT]?)(i?)B?", re.IGNORECASE)
_INT = re.compile(r"^[-+]?([0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^([-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
_BOOL = re.compile(r"^(true|True|TRUE|false|False|FALSE)$")
_YAML_TAG = "tag:yaml.org,2002:"


class _Loader(Composer, yaml.CSafeLoader):
    """SafeLoader that reads booleans and numbers as in YAML 1.2, whereas PyYAML follows YAML 1.1: `no` is
    text, `2e9` is a float, and `010` is 10. Numbers may contain underscores. Dates are read as text, and so
    are keys of mappings that look like numbers, booleans or null.

    Raises YAMLError for a key that occurs twice in a mapping, for too many aliases, for aliases that expand
    to too many values, and for an alias that contains itself.

    libyaml parses the text, but its composer is not used, because deep nesting makes it overflow the stack.
    """

    aliases = 0
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _REPLACED]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self.checked: set[int] = set()

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if self.aliases and _expanded(node, {}) > _NODE_LIMIT:
            raise yaml.YAMLError(f"aliases that expand to more than {_NODE_LIMIT:,} values")
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            self.aliases += 1
            if self.aliases > _ALIAS_LIMIT:
                raise yaml.YAMLError(f"more than {_ALIAS_LIMIT} aliases")
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: Any) -> None:
        if id(node) not in self.checked:  # a mapping that is merged into another (`<<`) comes here several times
            self.checked.add(id(node))
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: Any) -> None:
        seen = set()
        node.value = [(_as_name(key_node), value_node) for key_node, value_node in node.value]
        for key_node, _ in node.value:
            own = key_node.tag != f"{_YAML_TAG}merge"
            key = self.construct_object(key_node, deep=True) if own else "<<"
            if isinstance(key, str) and key in seen:
                raise yaml.YAMLError(f"line {key_node.start_mark.line + 1}: the key {key!r} occurs twice")
            if isinstance(key, str):
                seen.add(key)


def _as_name(key: yaml.Node) -> yaml.Node:
    """Return the node of a mapping's key, replaced by a string node if the key is a number, a boolean or
    null. An empty key stays null.
    """
    if key.tag.removeprefix(_YAML_TAG) in ("int", "float", "bool", "null") and key.value:
        # A new node: an alias of the old one keeps its value.
        return yaml.ScalarNode(f"{_YAML_TAG}str", key.value, key.start_mark, key.end_mark)
    return key


def _expanded(node: Any, known: dict[int, int]) -> int:
    """Return the number of nodes in a YAML tree with every alias expanded. Raises YAMLError if an alias
    contains itself.
    """
    if id(node) not in known:
        known[id(node)] = 0  # 0 marks "in progress": seeing it again means that the alias is recursive
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()
        inner = node.value if isinstance(node, yaml.SequenceNode) else [child for pair in pairs for child in pair]
        known[id(node)] = 1 + sum(_expanded(child, known) for child in inner)
    elif not known[id(node)]:
        raise yaml.YAMLError(f"line {node.start_mark.line + 1}: an alias that contains itself")
    return known[id(node)]


def _whole(loader: yaml.Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node).replace("_", "")
    return int(text, {"0o": 8, "0x": 16}.get(text.lstrip("+-")[:2], 10))


class _Dumper(yaml.CSafeDumper):
    """SafeDumper that also quotes texts that `_Loader` would read as numbers, such as `2e9` and `08`."""


for _each in (_Loader, _Dumper):  # integers first: `_FLOAT` matches them as well
    _each.add_implicit_resolver(f"{_YAML_TAG}int", _INT, list("-+0123456789"))
    _each.add_implicit_resolver(f"{_YAML_TAG}float", _FLOAT, list("-+.0123456789"))
_Loader.add_implicit_resolver(f"{_YAML_TAG}bool", _BOOL, list("tTfF"))
_Loader.add_constructor(f"{_YAML_TAG}int", _whole)


def dump_yaml(data: Any, width: int = 80, flow: bool | None = False) -> str:
    """Format plain data as YAML that `load_yaml` reads back. `flow` is PyYAML's `default_flow_style`."""
    return str(
        yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width, default_flow_style=flow)
    )


def load_yaml(path: Path) -> dict[str, Any]:
    """Load a YAML file whose content is a mapping. Raises ConfigError if the file does not exist, is not
    UTF-8 or valid YAML, or contains anything other than a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory, expected a YAML file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        data = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: holds {_kind(data)}, expected a mapping of fields")
    return data


def override(data: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return a copy of `data` with assignments such as `a.b=value` applied. Values are parsed as YAML.

    A list entry is selected by its index, by its field `name`, or by a key that it contains. For example,
    `steps.language.model=...` sets `model` under `language` in the entry of `steps` that has the key
    `language`. Raises ConfigError if an assignment is malformed, or if it does not select exactly one entry
    of a list.
    """
    result: dict[str, Any] = _copy(data)
    for assignment in assignments:
        path, equals, raw = assignment.partition("=")
        if not equals or not path:
            raise ConfigError(f"{assignment!r}: expected a.b=value")
        value = yaml_value(raw, repr(assignment))
        keys = re.sub(r"\[(\d+)\]", r".\1", path).split(".")
        target: Any = result
        for depth, key in enumerate(keys[:-1]):
            target = _descend(target, key, ".".join(keys[: depth + 1]), assignment)
        _assign(target, keys[-1], value, assignment)
    return result


def yaml_value(raw: str, where: str) -> Any:
    """Parse `raw` as YAML. Raises ConfigError if it is not valid; the message begins with `where`."""
    try:
        return yaml.load(raw, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError):  # ValueError: an impossible date
        raise ConfigError(
            f"{where}: the value is not valid YAML; quote characters that have a meaning in YAML: ['*.txt']"
        ) from None


def _descend(target: Any, key: str, path: str, assignment: str) -> Any:
    if isinstance(target, list):
        position = _position(target, key, path, assignment)
        entry = target[position]
        if _has_key(entry, key):
            if entry[key] is None:
                entry[key] = {}
            return entry[key]
        return entry
    if isinstance(target, dict):
        if target.get(key) is None:
            target[key] = {}
        elif isinstance(target[key], str):
            target[key] = {"kind": target[key]}  # expand the shorthand: a bare string is {kind: string}
        return target[key]
    raise ConfigError(f"{assignment!r}: {path} lies inside {_kind(target)}, which has no fields")


def _has_key(entry: Any, key: str) -> bool:
    """Return whether `key`, which selected a list entry, is one of the entry's own keys rather than its index
    or name.
    """
    return isinstance(entry, dict) and key in entry and entry.get("name") != key


def _assign(target: Any, key: str, value: Any, assignment: str) -> None:
    if isinstance(target, list):
        position = _position(target, key, key, assignment)
        if _has_key(target[position], key):
            target[position][key] = value
        else:
            target[position] = value
    elif isinstance(target, dict):
        target[key] = value
    else:
        raise ConfigError(f"{assignment!r}: {key} lies inside {_kind(target)}, which has no fields")


def _position(entries: list[Any], key: str, path: str, assignment: str) -> int:
    if key.isdecimal() and int(key) < len(entries):
        return int(key)
    found = [i for i, entry in enumerate(entries) if isinstance(entry, dict) and entry.get("name") == key]
    found = found or [i for i, entry in enumerate(entries) if isinstance(entry, dict) and key in entry]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(
            f"{assignment!r}: {path} matches {len(found)} entries; give them names, or select one by number"
        )
    names = [str(entry.get("name") or next(iter(entry), "")) for entry in entries if isinstance(entry, dict)]
    raise ConfigError(f"{assignment!r}: {path}: no such entry{near_match(key, names)}")


def parse(cls: type[T], data: Any, where: str) -> T:
    """Build an instance of `cls`, a dataclass or a union of dataclasses, from plain data. If the data does
    not fit, raises ConfigError with a message that begins with `where`.
    """
    return typing.cast(T, _value(cls, data, where, ""))


def plain(value: Any) -> Any:
    """Convert a configuration to plain YAML data: the inverse of `parse`. Fields with the metadata ADDED are
    omitted if they have their default value.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: (field, getattr(value, field.name)) for field in dataclasses.fields(value)}
        kept = {name: each for name, (f, each) in fields.items() if not (f.metadata.get(_ADDED) and each == f.default)}
        return {name: plain(each) for name, each in kept.items()}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value


def _value(kind: Any, data: Any, where: str, path: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        return _union(kind, data, where, path)
    if origin is typing.Literal:
        choices = typing.get_args(kind)
        if not any(data == choice and type(data) is type(choice) for choice in choices):
            near = near_match(data, [c for c in choices if isinstance(c, str)]) if isinstance(data, str) else ""
            raise ConfigError(f"{where}: {path}: got {data!r}, expected one of {', '.join(map(repr, choices))}{near}")
        return data
    if origin in (tuple, list):
        return _sequence(kind, data, where, path)
    if origin in (dict, Mapping):
        entry_type = typing.get_args(kind)[1]
        if not isinstance(data, Mapping):
            raise _wrong_type(where, path, data, "a mapping")
        return {str(key): _value(entry_type, entry, where, _below(path, key)) for key, entry in data.items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, data, where, path)
    return _scalar(kind, data, where, path)


def _union(kind: Any, data: Any, where: str, path: str) -> Any:
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    if data is None and len(options) < len(typing.get_args(kind)):
        return None
    if len(options) == 1:
        return _value(options[0], data, where, path)
    kinds = {choice: option for option in options for choice in _kinds(option)}
    if kinds:
        return _kind_of_union(kinds, data, where, path)
    for option in options:
        mapping = typing.get_origin(option) in (dict, Mapping) or dataclasses.is_dataclass(option)
        if isinstance(data, Mapping) and mapping:
            return _value(option, data, where, path)  # its error message names the entry
        try:
            return _value(option, data, where, path)
        except ConfigError:
            continue
    names = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise _wrong_type(where, path, data, names)


@lru_cache(maxsize=1024)
def _type_hints(kind: type) -> dict[str, Any]:
    """Return the type of each field of a dataclass, keyed by name. Cached, because resolving annotations is
    slow.
    """
    return typing.get_type_hints(kind)


def _kinds(option: Any) -> tuple[str, ...]:
    """Return the allowed values of a dataclass's field `kind`. Empty for a type without such a field."""
    record = isinstance(option, type) and dataclasses.is_dataclass(option)
    hint = _type_hints(option).get("kind") if record else None
    return typing.get_args(hint) if typing.get_origin(hint) is typing.Literal else ()


def _kind_of_union(kinds: Mapping[str, Any], data: Any, where: str, path: str) -> Any:
    """Parse data as one of the classes of a union, selected by the data's field `kind`. A bare string is
    short for a mapping with only this field.
    """
    data = {"kind": data} if isinstance(data, str) else data
    if not isinstance(data, Mapping):
        raise _wrong_type(where, path, data, f"a mapping with a kind, or one of {', '.join(kinds)}")
    if "kind" not in data:
        raise ConfigError(f"{where}: {_below(path, 'kind')}: missing; expected one of {', '.join(kinds)}")
    if not isinstance(data["kind"], str) or data["kind"] not in kinds:
        near = near_match(str(data["kind"]), list(kinds))
        raise ConfigError(
            f"{where}: {_below(path, 'kind')}: got {data['kind']!r}, expected one of {', '.join(kinds)}{near}"
        )
    return _value(kinds[data["kind"]], data, where, path)


def _sequence(kind: Any, data: Any, where: str, path: str) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise _wrong_type(where, path, data, "a list")
    entry_type = typing.get_args(kind)[0]
    return tuple(_value(entry_type, entry, where, f"{path}[{number}]") for number, entry in enumerate(data))


def _dataclass(kind: Any, data: Any, where: str, path: str) -> Any:
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise _wrong_type(where, path, data, f"a mapping of the fields of {kind.__name__}")
    hints = _type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    for key in data:
        if key not in fields:
            near = near_match(str(key), list(fields))
            raise ConfigError(f"{where}: {_below(path, key)}: no such field in {kind.__name__.lstrip('_')}{near}")
    values = {}
    for name, field in fields.items():
        at = _below(path, name)
        if name in data:
            value = data[name]
            if name.endswith("_bytes") and isinstance(value, str):
                value = _size(value, where, at)
            values[name] = _value(hints[name], value, where, at)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}: {at}: missing; {kind.__name__} needs it")
    result = kind(**values)
    if hasattr(result, "check"):
        try:
            result.check()
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{where}: {f'{path}.' if path else ''}{error}") from None
    return result


def parse_size(text: str) -> int:
    """Parse a size and return it in bytes: `4GB` is 4e9, `4GiB` is 2**32, `512k` is 512,000."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"got {text!r}, expected a size, such as 4GB or 512MiB")
    power = " kmgt".index(match[2].lower() or " ")
    return int(Fraction(match[1]) * (1024 if match[3] else 1000) ** power)


def _size(text: str, where: str, path: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{where}: {path}: {error}") from None


def _below(path: str, key: Any) -> str:
    shown = key if isinstance(key, str) and key.isprintable() and key.strip() else repr(key)
    return f"{path}.{shown}" if path else shown


def _scalar(kind: Any, data: Any, where: str, path: str) -> Any:
    if kind is bool and isinstance(data, bool):
        return data
    if kind is int and isinstance(data, (int, float)) and not isinstance(data, bool) and data % 1 == 0:
        if not -(1 << 63) <= data < 1 << 64:
            raise _wrong_type(where, path, data, "a whole number of 64 bits")
        return int(data)
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool) and abs(data) <= _LARGEST_FLOAT:
        return float(data)
    if kind is str and isinstance(data, str):
        return data
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    raise _wrong_type(where, path, data, names.get(kind, str(kind)))


def _wrong_type(where: str, path: str, data: Any, expected: str) -> ConfigError:
    return ConfigError(f"{where}: {path or 'the whole'}: got {_kind(data)}, expected {expected}")


def _kind(data: Any) -> str:
    if isinstance(data, Mapping):
        return "a mapping"
    if isinstance(data, (list, tuple)):
        return "a list"
    if isinstance(data, int) and data.bit_length() > 256:  # Python refuses to write very large ones
        return f"a number of {data.bit_length():,} bits"
    return "nothing" if data is None else repr(data)


def near_match(name: str, names: Sequence[str]) -> str:
    """Return the end of an error message about an unknown name: the closest match or, if none is close, all
    existing names.
    """
    matches = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if matches:
        return f"; did you mean {matches[0]!r}?"
    return f"; there are: {', '.join(sorted(names))}" if names else ""


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copy(entry) for entry in value]
    return value
