"""The JSON schemas accept all shipped files, and refuse what the parser refuses."""

import contextlib
import copy
import io
import json
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from gristmill.config import load_yaml, plain
from gristmill.errors import ConfigError
from pipelines.__main__ import main as pipelines
from pipelines.planning.corpus import load_corpus_config
from tests.conftest import FASTTEXT_BEGIN
from trainers.__main__ import main as trainers
from trainers.config.job_kinds import parse_job
from trainers.recipes import RECIPES

ROOT = Path(__file__).parents[2]
CORPORA = sorted((ROOT / "corpora_configs").glob("*.yaml"))
TASKS = sorted((ROOT / "trainers/tasks/shipped").glob("*.yaml"))
STUDIES = sorted((ROOT / "corpora_configs/studies").glob("*.yaml"))
RUNS = sorted((ROOT / "docs/glue").glob("*.yaml"))


@cache
def validator(main, *arguments):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["schema", *arguments]) == 0
    schema = json.loads(printed.getvalue())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.long
@pytest.mark.parametrize(
    ("main", "arguments", "files"),
    [
        (pipelines, (), CORPORA),
        (trainers, ("task",), TASKS),
        (trainers, ("study",), STUDIES),
        (trainers, ("training",), RUNS),
    ],
    ids=["corpus", "task", "study", "training"],
)
def test_shipped_files_are_valid(main, arguments, files):
    check = validator(main, *arguments)
    assert files
    for file in files:
        assert not [error.message for error in check.iter_errors(load_yaml(file))], file


@pytest.mark.long
def test_recipes_are_valid():
    check = validator(trainers, "training")
    for name, recipe in RECIPES.items():
        assert check.is_valid(json.loads(json.dumps(plain(recipe())))), name


def mappings(value, path=()):
    if isinstance(value, dict):
        yield path
        for key, entry in value.items():
            yield from mappings(entry, (*path, key))
    if isinstance(value, list):
        for number, entry in enumerate(value):
            yield from mappings(entry, (*path, number))


def spoiled(data, path):
    result = copy.deepcopy(data)
    target = result
    for key in path:
        target = target[key]
    target["no_such_field"] = 1
    return result


def accepted_by_the_parser(tmp_path, data):
    (tmp_path / "c.yaml").write_text(json.dumps(data))
    try:
        load_corpus_config(tmp_path / "c.yaml")
    except ConfigError:
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize("file", CORPORA, ids=lambda file: file.stem)
def test_an_unknown_field_is_refused_where_the_parser_refuses_it(tmp_path, monkeypatch, file):
    for name in ("models/lid.176.ftz", "lists/ldnoobw/en"):  # files that users fetch: without them nothing is accepted
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("word\n")
    (tmp_path / "models/lid.176.ftz").write_bytes(FASTTEXT_BEGIN)
    monkeypatch.chdir(tmp_path)
    check, data = validator(pipelines), load_yaml(file)
    for path in mappings(data):
        wrong = spoiled(data, path)
        assert check.is_valid(wrong) == accepted_by_the_parser(tmp_path, wrong), path


@pytest.mark.long
@pytest.mark.parametrize(
    ("field", "value", "valid"),
    [
        ("max_document_bytes", "64MiB", True),
        ("max_document_bytes", "4MIB", True),
        ("max_document_bytes", "4KIb", True),
        ("max_document_bytes", "64 miles", False),
        ("include", "a.txt", False),
        ("split", "validation", True),
        ("split", {"kind": "field", "field": "x", "validation": ["dev"]}, True),
        ("split", "dev", False),
        ("format", "xlsx", False),
        ("tokenizer_share", True, False),
        ("part_bytes", 1.6e7, True),
        ("files", None, True),
    ],
)
def test_values_are_accepted_as_by_the_parser(tmp_path, field, value, valid):
    data = load_yaml(ROOT / "corpora_configs/small_english.yaml")
    data["sources"][0][field] = value
    assert validator(pipelines).is_valid(data) == valid
    assert accepted_by_the_parser(tmp_path, data) == valid


def test_a_job_of_another_kind():
    check = validator(trainers, "training")
    data = {**load_yaml(RUNS[0]), "kind": "finetuning"}
    assert not check.is_valid(data)
    with pytest.raises(ConfigError):
        parse_job(data, "x")
