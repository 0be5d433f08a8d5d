"""Exports that are killed and resumed, and exports by several workers, give the same bytes; which files a
resumed export writes again.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import pipelines
import pipelines.export.export_directory as directory
import pipelines.export.export_formats as formats
import pipelines.export.text_export as texts
import pipelines.export.token_export as tokens
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import FileRecord
from gristmill.storage.object_store import RemotePath
from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.export.export_files import choose_workers
from pipelines.export.text_export import TextFile, export_corpus

CORPUS = """
name: pieces
output: {root}/out
sources:
  - {{name: web, root: {root}/web.jsonl, format: jsonl, part_bytes: 3000}}
  - {{name: code, root: {root}/code, format: text}}
steps:
  - quality_signals: {{}}
  - filter: [{{signal: word_count, at_least: 5}}]
  - learn_tokenizer: {{kind: bytes}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0.2, shard_bytes: 2000}}
"""
FORMATS = ("parquet", "jsonl", "webdataset", "mds", "nanogpt", "megatron", "litdata")
TEXTS = FORMATS[:4]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("pieces")
    lines = [json.dumps({"text": f"Line {n} {'of words ' * (n % 9)}", "n": n}) for n in range(160)]
    (root / "web.jsonl").write_text("\n".join(lines))
    (root / "code").mkdir()
    (root / "code" / "a.py").write_text("print('hello')  # and some words more\n")
    (root / "corpus.yaml").write_text(CORPUS.format(root=root))
    return pipelines.build(root / "corpus.yaml", in_process=True).corpus.directory


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    for name, each in formats.TEXT_FORMATS.items():
        monkeypatch.setitem(formats.TEXT_FORMATS, name, replace(each, file_bytes=3000))


def export(corpus, output, kind, *words):
    assert main(["export", str(corpus), str(output), "--format", kind, *words]) == 0


def tree(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in Path(root).rglob("*") if path.is_file()}


def killed(corpus, output, kind, monkeypatch, after):
    module, name = (texts, "write_text_file") if kind in TEXTS else (tokens, "write_token_file")
    real, count = getattr(module, name), 0

    def write(*words):
        nonlocal count
        count += 1
        if count > after:
            raise KeyboardInterrupt
        return real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, write)
        assert main(["export", str(corpus), str(output), "--format", kind]) != 0
    return {
        path.relative_to(output): path.stat().st_ino for path in output.rglob("*") if path.name != "unfinished.json"
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_command_goes_on_where_it_was_killed(corpus, tmp_path, monkeypatch, kind, capsys):
    export(corpus, tmp_path / "whole", kind)
    after = 1 if kind == "nanogpt" else 2
    written = killed(corpus, tmp_path / "e", kind, monkeypatch, after)
    assert len(read_json(LocalPath(tmp_path / "e" / "unfinished.json"))["finished"]) == after
    capsys.readouterr()
    export(corpus, tmp_path / "e", kind)
    assert f"{after} of " in capsys.readouterr().out
    assert tree(tmp_path / "e") == tree(tmp_path / "whole")
    for path, inode in written.items():
        assert (tmp_path / "e" / path).stat().st_ino == inode, f"{path} was written again"


@pytest.mark.long
@pytest.mark.parametrize("damage", ["flip", "shorten", "remove"])
def test_a_file_that_is_not_as_recorded_is_written_again(corpus, tmp_path, monkeypatch, damage):
    export(corpus, tmp_path / "whole", "jsonl")
    killed(corpus, tmp_path / "e", "jsonl", monkeypatch, 2)
    path = sorted((tmp_path / "e" / "data").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink() if damage == "remove" else path.write_bytes(data if damage == "flip" else data[:-1])
    export(corpus, tmp_path / "e", "jsonl")
    assert tree(tmp_path / "e") == tree(tmp_path / "whole")


def test_a_file_without_a_receipt_is_written_again(corpus, tmp_path, monkeypatch):
    export(corpus, tmp_path / "whole", "parquet")
    killed(corpus, tmp_path / "e", "parquet", monkeypatch, 1)
    third = sorted((tmp_path / "whole" / "data").iterdir())[2].name
    (tmp_path / "e" / "data" / third).write_bytes(b"there, and not what it should be")
    export(corpus, tmp_path / "e", "parquet")
    assert tree(tmp_path / "e") == tree(tmp_path / "whole")


@pytest.mark.long
def test_an_object_that_is_gone_is_not_finished(s3, tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path / "cache"))
    output = RemotePath("s3://bucket/gone", s3.remote)
    export = directory.UnfinishedExport(output, {}, {})
    record = output.write_file("a.txt", b"text")
    export.add("a.txt", "inputs", record)
    assert export.finished("a.txt", "inputs", FileRecord) == record
    (output / "a.txt").unlink()
    assert export.finished("a.txt", "inputs", FileRecord) is None


def test_two_exports_into_one_directory_both_end_well(corpus, tmp_path, monkeypatch):
    finish, both = texts.finish_output, tmp_path / "both"

    def after_another(output):
        monkeypatch.setattr(texts, "finish_output", finish)
        export(corpus, both, "jsonl")
        finish(output)

    monkeypatch.setattr(texts, "finish_output", after_another)
    export(corpus, both, "jsonl")
    export(corpus, tmp_path / "one", "jsonl")
    assert tree(both) == tree(tmp_path / "one")


def test_other_versions_and_other_parts_write_all_files_again(corpus, tmp_path, monkeypatch, capsys):
    for change in ("versions", "parts"):
        with monkeypatch.context() as patch:
            if change == "versions":
                patch.setattr(directory, "_versions", lambda: {"pyarrow": "0"})
            else:
                patch.setitem(formats.TEXT_FORMATS, "jsonl", replace(formats.TEXT_FORMATS["jsonl"], file_bytes=7000))
            killed(corpus, tmp_path / change, "jsonl", monkeypatch, 1)
        capsys.readouterr()
        export(corpus, tmp_path / change, "jsonl")
        assert "finished by an earlier run" not in capsys.readouterr().out
    assert tree(tmp_path / "versions") == tree(tmp_path / "parts")


@pytest.mark.faults
def test_a_process_killed_while_it_writes_a_file(corpus, tmp_path):
    """The second file is half written when the process is killed."""
    script = f"""
import os, signal
import pipelines.export.export_formats as formats
from dataclasses import replace
from gristmill.storage.disk import LocalPath
from pipelines.export.text_export import export_corpus
files = 0
def write(schema, sink, tables, real=formats.write_jsonl):
    global files
    files += 1
    if files == 2:
        sink.write(b"half")
        sink.sink.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    real(schema, sink, tables)
formats.TEXT_FORMATS["jsonl"] = replace(formats.TEXT_FORMATS["jsonl"], write=write, file_bytes=3000)
export_corpus(LocalPath({str(corpus)!r}), LocalPath({str(tmp_path / "e")!r}), "jsonl", None)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=os.environ, check=False)
    assert done.returncode == -9, done.stderr
    assert list((tmp_path / "e").rglob("*.tmp"))
    export(corpus, tmp_path / "e", "jsonl")
    export(corpus, tmp_path / "whole", "jsonl")
    assert tree(tmp_path / "e") == tree(tmp_path / "whole")


@pytest.mark.ray
@pytest.mark.parametrize("kind", ["parquet", "litdata"])
def test_workers_write_the_same_bytes(corpus, tmp_path, kind, capsys):
    export(corpus, tmp_path / "one", kind, "--workers", "1")
    assert "workers write" not in capsys.readouterr().out
    export(corpus, tmp_path / "two", kind, "--workers", "2")
    assert "2 workers write" in capsys.readouterr().out
    assert len(tree(tmp_path / "one")) > 5
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


@pytest.mark.ray
def test_an_error_of_a_worker_ends_the_export(corpus, tmp_path):
    """A part of the corpus is missing. Once the part is back, the export can be completed."""
    part = sorted(corpus.glob("read.web-*/parts/*.arrow"))[-1]
    aside = part.rename(f"{part}.aside")
    try:
        with pytest.raises(UserError, match="recorded in its manifest but missing"):
            export_corpus(corpus, LocalPath(tmp_path / "e"), "parquet", ["web"], workers=2)
    finally:
        aside.rename(part)
    assert not (tmp_path / "e" / "export.json").exists()
    export_corpus(corpus, LocalPath(tmp_path / "e"), "parquet", ["web"])
    export_corpus(corpus, LocalPath(tmp_path / "whole"), "parquet", ["web"])
    assert tree(tmp_path / "e") == tree(tmp_path / "whole")


def test_the_number_of_workers(monkeypatch, corpus, tmp_path, capsys):
    class Plan(TextFile):
        bytes_read = 700 << 20

    plans = [Plan(n, "web", "train", False, (), "jsonl", None) for n in range(12)]
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert [choose_workers(None, plans[:n]) for n in (0, 1, 3, 12)] == [1, 1, 2, 6]
    assert [choose_workers(n, plans[:3]) for n in (1, 2, 9)] == [1, 2, 3]
    assert main(["export", str(corpus), str(tmp_path / "e"), "--workers", "0"]) != 0
    assert "--workers: got 0, expected 1 or more" in capsys.readouterr().err
    assert not (tmp_path / "e").exists()


@pytest.mark.long
def test_an_earlier_build_is_exported(corpus, tmp_path):
    """A later build has replaced the corpus in the directory of the earlier one."""
    root = corpus.parent
    (root / "again.yaml").write_text(
        CORPUS.format(root=root).replace("root}/out", "root}/again").replace("/out", "/again")
    )
    first = pipelines.build(root / "again.yaml", in_process=True).corpus
    pipelines.build(root / "again.yaml", ["steps.filter[0].at_least=9"], in_process=True)
    (earlier,) = first.directory.glob("earlier-*.json")
    export(earlier, tmp_path / "earlier", "jsonl")
    export(first.directory, tmp_path / "now", "jsonl")
    documents = [
        read_json(LocalPath(tmp_path / name / "export.json"))["sources"]["web"]["documents"]
        for name in ("earlier", "now")
    ]
    assert documents[0] > documents[1] > 0
