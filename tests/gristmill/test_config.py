"""Configuration errors name the file and the field and say what is wrong; overrides reach into lists."""

from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.config import dump_yaml, load_yaml, override, parse, parse_size, plain
from gristmill.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    name: str
    rate: float = 0.5
    kind: Literal["a", "b"] = "a"

    def check(self):
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate: got {self.rate}, expected 0 to 1")


@dataclass(frozen=True)
class Outer:
    size: int
    inner: tuple[Inner, ...] = ()
    shares: dict[str, float] | None = None
    flag: bool = False


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"size": 1, "iner": []}, "f.yaml: iner: no such field in Outer; did you mean 'inner'?"),
        ({}, "f.yaml: size: missing"),
        ({"size": "3"}, "f.yaml: size: got '3', expected a whole number"),
        ({"size": 1.5}, "f.yaml: size: got 1.5, expected a whole number"),
        ({"size": True}, "f.yaml: size: got True, expected a whole number"),
        ({"size": 1, "inner": {"name": "x"}}, "f.yaml: inner: got a mapping, expected a list"),
        (
            {"size": 1, "inner": [{"name": "x", "kind": "c"}]},
            r"f.yaml: inner\[0\].kind: got 'c', expected one of 'a', 'b'",
        ),
        (
            {"size": 1, "inner": [{"name": "x"}, {"name": "y", "rate": 2}]},
            r"f.yaml: inner\[1\].rate: got 2.0, expected 0 to 1",
        ),
        ({"size": 1, "shares": {"a": "b"}}, "f.yaml: shares.a: got 'b', expected a number"),
        ({"size": 1, "flag": 1}, "f.yaml: flag: got 1, expected true or false"),
        ({"size": float("inf")}, "f.yaml: size: got inf, expected a whole number"),
        ({"size": 1 << 64}, "f.yaml: size: got 18446744073709551616, expected a whole number of 64 bits"),
        ({"size": 1, "shares": {"a": 10**5000}}, "f.yaml: shares.a: got a number of 16,610 bits, expected a number"),
        ({"size": 1, "shares": {"a": float("nan")}}, "f.yaml: shares.a: got nan, expected a number"),
        ([], "f.yaml: the whole: got a list, expected a mapping"),
    ],
)
def test_errors_name_file_path_value_and_what_is_allowed(data, message):
    with pytest.raises(ConfigError, match=message):
        parse(Outer, data, "f.yaml")


CONFIGS = st.builds(
    Outer,
    st.integers(-5, 5),
    st.lists(st.builds(Inner, st.text(), st.floats(0, 1), st.sampled_from(["a", "b"]))).map(tuple),
    st.none() | st.dictionaries(st.text(), st.floats(0, 1)),
    st.booleans(),
)


@given(CONFIGS)
def test_plain_is_the_inverse_of_parse(config):
    assert parse(Outer, plain(config), "f.yaml") == config


def test_whole_numbers_may_be_written_with_an_exponent(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("size: 2e9\n")
    assert parse(Outer, load_yaml(path), "c.yaml").size == 2_000_000_000


def test_merge_keys_take_fields_of_other_mappings(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: {in: &b {<<: &a {x: 1, y: 2}, y: 3}}\nc: {<<: *b, x: 4}\nd: {<<: [*a, {z: 5}]}\ne: *b\n")
    merged = {"x": 1, "y": 3}
    assert load_yaml(path) == {"a": {"in": merged}, "c": {"x": 4, "y": 3}, "d": {"x": 1, "y": 2, "z": 5}, "e": merged}


def test_keys_stay_as_they_are_written(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("a: {08: 1, 3.10: 2, 1_0: 3, 1e3: 4, True: 5, null: 6, 0: 7}\nb: &n 08\nc: {*n : *n}\n")
    keys = ["08", "3.10", "1_0", "1e3", "True", "null", "0"]
    data = load_yaml(path)
    assert data == {"a": dict(zip(keys, range(1, 8), strict=True)), "b": 8, "c": {"08": 8}}
    assert override(data, ["a.08=5"])["a"]["08"] == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size: 1\nsize: 2\n", "the key 'size' occurs twice"),
        ("a: &x {b: 1}\nc: {<<: *x, d: 1, d: 2}\n", "the key 'd' occurs twice"),
        ("a: &x {b: 1, b: 2}\nc: {<<: *x}\n", "the key 'b' occurs twice"),
        ("a: {2019: 1, '2019': 2}\n", "line 1: the key '2019' occurs twice"),
        ("a: {<<: 5}\n", "not valid YAML"),
        ("- 1\n", "holds a list, expected a mapping of fields"),
        ("a: [", "not valid YAML"),
        ("a: " + "[" * 100_000, "not valid YAML"),
        ("a: !!python/object/apply:os.system ['true']\n", "not valid YAML"),
        ("a: &x [1]\nb: [" + "*x, " * 101 + "]\n", "more than 100 aliases"),
        (
            "l0: &l0 [1]\n" + "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 10)),
            "aliases that expand to more than 1,000,000 values",
        ),
        ("a: &x [1, [*x]]\n", "line 1: an alias that contains itself"),
    ],
)
def test_bad_yaml_is_refused_with_its_reason(tmp_path, text, message):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_yaml(path)


def test_missing_file_and_bytes_that_are_no_text(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_yaml(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 0"):
        load_yaml(tmp_path / "b.yaml")


DATA = {"a": 1, "steps": [{"language": None}, {"filter": [{"at_least": 1}], "name": "strict"}], "list": [1, 2]}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("a=2", {**DATA, "a": 2}),
        ("list.1=5", {**DATA, "list": [1, 5]}),
        ("list[0]=5", {**DATA, "list": [5, 2]}),
        ("steps.language.model=x", {**DATA, "steps": [{"language": {"model": "x"}}, DATA["steps"][1]]}),
        ("steps.language=x", {**DATA, "steps": [{"language": "x"}, DATA["steps"][1]]}),
        (
            "steps.strict.filter[0].at_least=0.7",
            {**DATA, "steps": [DATA["steps"][0], {"filter": [{"at_least": 0.7}], "name": "strict"}]},
        ),
        ("new.b=[1, x]", {**DATA, "new": {"b": [1, "x"]}}),
    ],
)
def test_override(assignment, expected):
    assert override(DATA, [assignment]) == expected


def test_override_of_a_field_beside_a_kind_that_a_text_is_short_for():
    assert override({"shape": "round"}, ["shape.radius=2"]) == {"shape": {"kind": "round", "radius": 2}}
    assert override({}, ["shape=square", "shape.side=3"]) == {"shape": {"kind": "square", "side": 3}}


def test_override_leaves_the_original_alone():
    override(DATA, ["steps.strict.filter[0].at_least=9", "list.0=9"])
    assert DATA["steps"][1]["filter"] == [{"at_least": 1}]
    assert DATA["list"] == [1, 2]


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("a", "expected a.b=value"),
        ("a.b=1", "lies inside 1, which has no fields"),
        ("steps.languag.x=1", "no such entry; did you mean 'language'"),
        ("list.7=1", "no such entry"),
        ("a=[", "not valid YAML"),
    ],
)
def test_bad_overrides_say_what_is_wrong(assignment, message):
    with pytest.raises(ConfigError, match=message):
        override(DATA, [assignment])


@dataclass(frozen=True)
class Round:
    kind: Literal["round"] = "round"
    radius: float = 1.0


@dataclass(frozen=True)
class Square:
    kind: Literal["square"] = "square"
    side: int = 1


@dataclass(frozen=True)
class Drawing:
    shape: Round | Square


def test_a_kind_tells_the_members_of_a_union_apart_and_its_name_alone_is_enough():
    assert parse(Drawing, {"shape": "square"}, "f.yaml") == Drawing(Square())
    drawing = parse(Drawing, {"shape": {"kind": "round", "radius": 2}}, "f.yaml")
    assert drawing == Drawing(Round(radius=2.0))
    assert parse(Drawing, plain(drawing), "f.yaml") == drawing


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("squar", "f.yaml: shape.kind: got 'squar', expected one of round, square; did you mean 'square'?"),
        ({"radius": 2}, "f.yaml: shape.kind: missing; expected one of round, square"),
        ({"kind": "square", "radius": 2}, "f.yaml: shape.radius: no such field in Square"),
        ({"kind": "square", "side": "wide"}, "f.yaml: shape.side: got 'wide', expected a whole number"),
        (3, "f.yaml: shape: got 3, expected a mapping with a kind, or one of round, square"),
    ],
    ids=["name", "missing", "field", "type", "number"],
)
def test_a_union_by_kind_says_what_is_wrong_in_the_member_that_was_meant(shape, message):
    with pytest.raises(ConfigError) as error:
        parse(Drawing, {"shape": shape}, "f.yaml")
    assert message in str(error.value)


def test_what_a_file_has_for_a_key_or_a_kind_is_shown_in_one_line():
    with pytest.raises(ConfigError, match=r"f.yaml: 'a\\nb': no such field in Outer"):
        parse(Outer, {"size": 1, "a\nb": 2}, "f.yaml")
    with pytest.raises(ConfigError, match=r"f.yaml: shape.kind: got \['x'\], expected one of round, square"):
        parse(Drawing, {"shape": {"kind": ["x"]}}, "f.yaml")


def test_yaml_as_its_users_read_it(tmp_path):
    """`null` can be a key and `no` a language code; YAML 1.1 would read them as null and false."""
    path = tmp_path / "c.yaml"
    path.write_text("{null: drop, ~: x, a: null, one_of: [no, on, y, yes], bounds: {no: 1}, kept: [true, False]}")
    assert load_yaml(path) == {
        "null": "drop", "~": "x", "a": None, "one_of": ["no", "on", "y", "yes"], "bounds": {"no": 1}, "kept": [True, False],
    }  # fmt: skip


def test_numbers_are_those_of_yaml_1_2_and_texts_that_look_like_them_are_written_in_quotes(tmp_path):
    """YAML 1.1 reads `010` as 8 and `12:30:00` as 45000."""
    path = tmp_path / "c.yaml"
    numbers = {
        "010": 10, "08": 8, "-07": -7, "0o10": 8, "0x1F": 31, "1_000": 1000, "2e9": 2e9, "-.5": -0.5, ".5e3": 500.0, "1.": 1.0,
        "12:30:00": "12:30:00", "1:30.5": "1:30.5", "0b11": "0b11", ".": ".",
    }  # fmt: skip
    path.write_text("".join(f"v{row}: {text}\n" for row, text in enumerate(numbers)))
    assert repr(list(load_yaml(path).values())) == repr(list(numbers.values()))
    path.write_text(dump_yaml({"texts": list(numbers), "weights": dict.fromkeys(numbers, 0.5)}))
    assert load_yaml(path) == {"texts": list(numbers), "weights": dict.fromkeys(numbers, 0.5)}


@dataclass(frozen=True)
class Sized:
    part_bytes: int = 1
    most_bytes: int | None = None
    parts: int = 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64MiB", 64 << 20),
        ("4GB", 4 * 10**9),
        ("1.5 KiB", 1536),
        ("2e6", None),
        ("100", 100),
        ("512k", 512_000),
        ("0.1t", 10**11),
    ],
)
def test_sizes_have_units(text, size):
    if size is None:
        with pytest.raises(ValueError, match="expected a size, such as 4GB or 512MiB"):
            parse_size(text)
    else:
        assert parse_size(text) == size
        assert parse(Sized, {"part_bytes": text, "most_bytes": text}, "a.yaml") == Sized(size, size)


def test_what_is_no_size_and_no_size_at_all_are_refused():
    with pytest.raises(
        ConfigError, match=r"a\.yaml: part_bytes: got '64 cats', expected a size, such as 4GB or 512MiB"
    ):
        parse(Sized, {"part_bytes": "64 cats"}, "a.yaml")
    with pytest.raises(ConfigError, match=r"parts: got '4GB', expected a whole number"):
        parse(Sized, {"parts": "4GB"}, "a.yaml")
    with pytest.raises(ConfigError, match="quote characters that have a meaning in YAML"):
        override({}, ["include=[*.parquet]"])
