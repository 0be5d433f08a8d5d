"""A URL is never taken for a local file or directory. `~` and `$HOME` at the start of a path are expanded."""

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gristmill.errors import ConfigError
from gristmill.storage.object_store import RemotePath
from gristmill.storage.parsing import location_argument, parse_location
from gristmill.storage.paths import is_url, local_path
from pipelines.planning.corpus import load_corpus_config
from tests.conftest import FASTTEXT_BEGIN
from tokenizer.__main__ import check_named_path
from tokenizer.texts import read_texts
from tokenizer.vocabulary.definition import read_definition

URLS = ("s3://bucket/x", "S3://bucket/x", "s3:/bucket/x", "gs://b/x", "hf://datasets/a/b", "hdfs://host/x",
        "http://host/x", "file:///tmp/x", "file:/tmp/x")  # fmt: skip
PATHS = (
    "x",
    "/x/y",
    "./s3:/bucket",
    "a:b",
    "c:/x",
    "web-00000.jsonl.gz",
    "out/s3://x",
    "a/~/x",
    "./~",
    "./$HOME",
    "a$HOME",
    "$",
    "$5",
    "",
)
# Arguments that take words, which are no paths: what is not listed here has a type that refuses URLs.
WORDS = {
    "pipelines": {
        "overrides", "memory_per_worker", "address", "doc", "rule", "cluster", "format", "sources", "columns", "changes", "sweep",
        "rule_sets", "without", "slot", "python", "exclude", "env", "words", "job",
        "text", "variant", "name", "shard_set", "rules", "reference", "word", "seeds", "old", "kind",
    },
    "trainers": {
        "recipe", "task", "overrides", "prompt", "text", "metric", "higher_is_better", "law", "split", "require", "layers",
        "checkpoints", "settings", "key", "pooling", "at", "file",
    },
    "tokenizer": {"kind", "field", "pattern", "by", "unknown"},
}  # fmt: skip


def arguments(parser: argparse.ArgumentParser, trail: str = "") -> Iterator[tuple[str, argparse.Action]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from arguments(command, f"{trail} {name}")
        elif action.nargs != 0:
            yield trail.strip(), action


@pytest.mark.parametrize("package", WORDS)
def test_every_argument_that_is_no_word_or_number_refuses_urls(package: str, capsys) -> None:
    seen = set()
    for command, action in arguments(importlib.import_module(f"{package}.__main__").parser()):
        where = f"{package} {command}: {action.dest}"
        if action.type in (int, float):
            continue
        if action.dest in WORDS[package] and action.type not in (Path, str):
            seen.add(action.dest)
            continue
        assert action.type in (local_path, location_argument, check_named_path), (
            f"{where}: give it type=local_path or type=location_argument"
        )
    assert seen == WORDS[package]


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_no_local_path(url: str) -> None:
    assert is_url(url)
    with pytest.raises(argparse.ArgumentTypeError, match=r"got a (file: )?URL"):
        local_path(url)
    with pytest.raises(ValueError, match=r"expected a (local )?path"):
        read_definition(url)
    with pytest.raises(ValueError, match=r"expected a (local )?path"):
        list(read_texts(url))


def test_paths_are_paths() -> None:
    for path in PATHS:
        assert local_path(path) == Path(path) == parse_location(path)


@pytest.mark.parametrize(
    ("name", "rest"),
    [("~", ""), ("~/x y", "/x y"), ("$HOME", ""), ("$HOME/x/$HOME", "/x/$HOME"), ("${HOME}/~", "/~"), ("~/$x", "/$x")],
)
def test_the_home_directory_is_expanded(name: str, rest: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert str(local_path(name)) == str(parse_location(name)) == f"{tmp_path}{rest}"


@pytest.mark.parametrize("name", ["$SCRATCH/x", "$HOMER", "${DATA}/x", "$_", "~nobody-of-this-name/x"])
def test_other_variables_and_users_are_refused_before_they_name_a_directory(name: str) -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"only ~ and \$HOME are expanded: write the path out|no such home"
    ):
        local_path(name)
    with pytest.raises(
        ConfigError, match=r"corpus: got (a path that begins with the variable \$|.*no such home directory)"
    ):
        parse_location(name)


def test_a_corpus_file_names_files_below_the_home_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("items.jsonl", "words.txt", "key"):
        (tmp_path / name).write_text("x" * 64)
    (tmp_path / "model.bin").write_bytes(FASTTEXT_BEGIN)
    (tmp_path / "data").mkdir()
    path = tmp_path / "c.yaml"
    path.write_text("""
name: c
output: ~/out
sources: [{name: web, root: $HOME/data, format: text}]
steps:
  - decontaminate: {sets: [{name: a, file: ~/items.jsonl, prompts: [~name, $id]}]}
  - word_list: {files: [~/words.txt]}
  - pii: {key: file:~/key, actions: {EMAIL_ADDRESS: hmac}}
  - language: {models: [~/model.bin]}
  - text_hash: {}
  - dedup_exact: {against: [~/other, s3://bucket/x]}
""")
    config = load_corpus_config(path)
    assert (config.output, config.sources[0].root) == (f"{tmp_path}/out", f"{tmp_path}/data")
    sets, words, pii, model, _, dedup = (step.stage for step in config.steps)
    assert (sets.sets[0].file, sets.sets[0].prompts) == (f"{tmp_path}/items.jsonl", ("~name", "$id"))
    assert words.files == (f"{tmp_path}/words.txt",)
    assert (pii.key, model.models) == (f"file:{tmp_path}/key", (f"{tmp_path}/model.bin",))
    assert dedup.against == (f"{tmp_path}/other", "s3://bucket/x")
    for field in ("output", "sources.web.root", "steps.language.models"):
        with pytest.raises(
            ConfigError, match=r"(output|root|models): got a path that begins with the variable \$SCRATCH"
        ):
            load_corpus_config(path, [f"{field}=$SCRATCH/x"])


def test_a_place_is_a_path_or_a_url_that_can_be_opened() -> None:
    for url in ("s3://bucket/x/", "S3://bucket/x"):
        place = parse_location(url)
        assert isinstance(place, RemotePath)
        assert str(place) == "s3://bucket/x"
    for url, message in (
        ("s3:/bucket/x", "expected two in a URL, as in s3://bucket/prefix"),
        ("hdfs://host/x", "'hdfs', expected a local directory or one of s3, gs, hf"),
        ("http://host/x", "'http', expected a local directory"),
        ("file:///tmp/x", "write the path without file://"),
        ("s3://me:secret@bucket/x", "holds a user name or password"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            parse_location(url)
        assert "secret" not in str(caught.value)
        with pytest.raises(argparse.ArgumentTypeError, match=message):
            location_argument(url)


COMMANDS = {
    "pipelines": (
        "export s3:/b/c OUT", "export data/c s3:/b/OUT --columns x", "export data/c hdfs://b/OUT",
        "inspect file:///c --doc x", "plan s3://b/c.yaml",
        "whatif c.yaml --sweep x --output s3://b/x.html", "compare-rules data/c --json s3://b/x.json",
        "classifier train gs://b/c.yaml", "doctor --directory s3://b/x", "doctor --fetch-lid s3://b/lid.ftz",
        "forget data/c --ids s3://b/ids", "forget data/c --runs S3://b/runs", "gc s3://b/c.yaml --delete",
        "submit --directory s3://b/x -- python -V", "plan c.yaml --rates s3:/b/out",
    ),
    "trainers": (
        "pretrain tiny_gpt2 run=s3://b/runs/x", "pretrain tiny_gpt2 run=s3:/b/runs/x", "pretrain s3://b/resolved.yaml",
        "pretrain tiny_gpt2 corpus=s3:/b/c", "pretrain tiny_gpt2 corpus=hdfs://b/c", "pretrain tiny_gpt2 run=gs://b/x",
        "report s3://b/run", "report run --output s3://b/x.html", "export run --output s3://b/x", "blame s3://b/run --step 1",
        "evaluate s3://b/run", "generate s3://b/run", "fill-mask s3://b/run --text x", "evaluate run corpus=file:///x",
        "pretrain tiny_gpt2 --exclude-documents s3://b/ids",
    ),
    "tokenizer": (
        "train s3://b/x.txt --vocab-size 400 --output t", "train x.txt --vocab-size 400 --output s3://b/t",
        "inspect s3://b/t", "inspect t --text a=s3://b/x.txt", "compare a=s3://b/t --text x.txt",
        "compare s3://b/t --text x.txt", "compare t --text s3://b/x.txt", "compare t --text x.txt --chart s3:/b/c.html",
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", [f"{package} {line}" for package, lines in COMMANDS.items() for line in lines])
def test_commands_refuse_them_before_anything_is_done(line: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    package, *words = line.split()
    main = importlib.import_module(f"{package}.__main__").main
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    assert status == 2
    said = capsys.readouterr().err.splitlines()
    error = said[-1]
    assert "error: " in error
    assert "URL" in error
    assert ", expected " in error or "allowed are" in error
    assert not any("Traceback" in text for text in said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("output", "s3:/bucket/out", "output: got s3:/ with one slash, expected two"),
        ("output", "file:///tmp/out", "output: got a file: URL, expected a path"),
        ("root", "s3:/bucket/raw", r"root: got s3:/ with one slash, expected two"),
        (
            "language.models",
            ["s3://bucket/lid.ftz"],
            r"steps\[0\].language.models: got a URL \(s3:\), expected a local path",
        ),
        ("word_list.files", ["gs://bucket/words"], r"word_list.files: got a URL \(gs:\), expected a local path"),
        ("decontaminate.sets", [{"name": "x", "file": "s3://b/x.jsonl"}], r"decontaminate.sets: got a URL \(s3:\)"),
        ("shards.tokenizer", "s3://bucket/t", "tokenizer: got a URL, expected a local path"),
        ("dedup_exact.against", ["s3:/bucket/out"], "against: got s3:/ with one slash, expected two"),
        ("dedup_minhash.against", ["hdfs://host/out"], "against: got a URL of the scheme 'hdfs'"),
    ],
)
def test_fields_of_a_corpus_file(corpus_file: Path, field: str, value, message: str) -> None:
    data = yaml.safe_load(corpus_file.read_text())
    stage, dot, knob = field.partition(".")
    if dot:
        data["steps"] = [{stage: {knob: value}}, *(step for step in data["steps"] if stage not in step)]
    elif field == "root":
        data["sources"][0]["root"] = value
    else:
        data[field] = value
    corpus_file.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigError, match=message):
        load_corpus_config(corpus_file)
