"""Any value anywhere in a corpus file or a recipe gives either a configuration that survives a round trip, or an error that
names a field.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import load_yaml, override, parse, plain
from gristmill.errors import ConfigError
from pipelines.planning.corpus import load_corpus_config, plain_config
from trainers.config.pretraining import Pretraining
from trainers.recipes import RECIPES

CORPORA = sorted((Path(__file__).parents[2] / "corpora_configs").glob("*.yaml"))
NAMES_A_FIELD = re.compile(r"[^:]+: .+: .+")  # `file: a.b[3].c: what is wrong`, in one line

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.sampled_from([0, -1, 1, 2**31, 2**63, 2**200, 0.0, -0.5, 1e308, float("inf"), float("-inf"), float("nan")])
WORDS = st.sampled_from(
    ["", "null", "text", "jsonl", "gzip", "utf-16", "idna", "**", "[", "s3://", "http://[", "//", "..", "/"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | NUMBERS
    | st.integers()
    | st.floats()
    | TEXTS
    | WORDS
    | st.dates()
    | st.binary(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(SCALARS.filter(lambda key: key == key), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values within plain data, each a tuple of keys and indices from the outside in."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in pairs for place in places(inner, (*path, key)))]


def with_value(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = with_value(copy[path[0]], path[1:], value)
    return copy


@st.composite
def changed(draw, all_data: list[Any]) -> Any:
    data = draw(st.sampled_from(all_data))
    for _ in range(draw(st.integers(1, 2))):
        if not isinstance(data, (dict, list)):
            break
        path = draw(st.sampled_from(places(data)[1:] or [()]))
        if draw(st.integers(0, 9)) == 0:
            path = path[:-1]
            found = data
            for key in path:
                found = found[key]
            if isinstance(found, dict):
                data = with_value(data, path, {**found, draw(SCALARS.filter(lambda key: key == key)): draw(VALUES)})
                continue
        data = with_value(data, path, draw(VALUES))
    return data


def taken(call: Callable[[], Any]) -> tuple[Any, str]:
    """Return the result of a call and an empty string, or None and the message of its ConfigError."""
    try:
        return call(), ""
    except ConfigError as error:
        return None, str(error)


RECIPE_DATA = [plain(recipe()) for recipe in RECIPES.values()]


@given(changed(RECIPE_DATA))
def test_any_value_in_a_recipe_is_taken_or_named(data):
    config, message = taken(lambda: parse(Pretraining, data, "r.yaml"))
    if config is None:
        assert NAMES_A_FIELD.fullmatch(message)
    else:
        assert parse(Pretraining, plain(config), "r.yaml") == config
        assert parse(Pretraining, yaml.safe_load(yaml.safe_dump(plain(config))), "r.yaml") == config


# Recipes that name a file to be fetched are not valid without it.
CORPUS_DATA = [plain_config(load_corpus_config(path)) for path in CORPORA if "models/" not in path.read_text()]


@pytest.mark.long
@given(changed(CORPUS_DATA))
def test_any_value_in_a_corpus_file_is_taken_or_named(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "c.yaml"
    path.write_text(yaml.safe_dump(data, allow_unicode=True))
    config, message = taken(lambda: load_corpus_config(path))
    if config is None:
        assert NAMES_A_FIELD.fullmatch(message)
    else:
        path.write_text(yaml.safe_dump(plain_config(config)))
        assert load_corpus_config(path) == config


def written(path: tuple[Any, ...]) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")


@given(st.data())
def test_an_override_is_the_edit_of_the_file(tmp_path_factory, data):
    before = data.draw(st.sampled_from([*CORPUS_DATA, *RECIPE_DATA]))
    edits = [(data.draw(st.sampled_from(places(before)[1:])), data.draw(VALUES)) for _ in range(2)]
    assignments = [f"{written(path)}={yaml.safe_dump(value, default_flow_style=True)}" for path, value in edits]
    path = tmp_path_factory.getbasetemp() / "o.yaml"
    path.write_text(yaml.safe_dump({"edits": [value for _, value in edits]}))
    values = load_yaml(path)["edits"]  # some are written as another: 1e+300 and dates
    first = with_value(before, edits[0][0], values[0])
    assert repr(override(before, assignments[:1])) == repr(first)
    if edits[1][0] in places(first):
        assert repr(override(before, assignments)) == repr(with_value(first, edits[1][0], values[1]))


@given(st.lists(st.text("abc.=[]0", max_size=8) | TEXTS, max_size=3), st.sampled_from(CORPUS_DATA))
def test_any_override_is_taken_or_named(assignments, data):
    made, message = taken(lambda: override(data, assignments))
    if made is None:
        assert any(repr(assignment) in message for assignment in assignments)
        assert "\n" not in message


@given(
    st.text("ab:-[]{},&*!? \n'\"|>%@#~0", max_size=30).map(str.encode) | TEXTS.map(str.encode) | st.binary(max_size=20)
)
def test_any_bytes_are_a_mapping_or_no_configuration(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    made, message = taken(lambda: load_yaml(path))
    assert isinstance(made, dict) or (str(path) in message and "\n" not in message)
