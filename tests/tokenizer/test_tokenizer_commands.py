import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokenizer.__main__ import main
from tokenizer.encode import Encoder
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.texts import read_texts

ROOT = Path(__file__).parents[2]
TEXTS = [f"number {number} and the other\r\nnumbers, naïve 🙂" for number in range(40)]


@pytest.fixture
def corpus(tmp_path) -> list[str]:
    """Divide TEXTS among three files: plain text, gzipped JSON Lines, and JSON Lines with another field and
    blank lines. Return their paths.
    """
    plain, lines, more = tmp_path / "a.txt", tmp_path / "b.jsonl.gz", tmp_path / "c.jsonl"
    plain.write_text(TEXTS[0], encoding="utf-8", newline="")
    lines.write_bytes(gzip.compress("\n".join(json.dumps({"text": text}) for text in TEXTS[1:20]).encode()))
    more.write_text("\n\n".join(json.dumps({"id": 1, "text": text}) for text in TEXTS[20:]), encoding="utf-8")
    return [str(plain), str(lines), str(more)]


def test_files_are_read_as_they_are(corpus):
    assert [text for file in corpus for text in read_texts(file)] == TEXTS


def test_train_then_inspect(corpus, tmp_path, capsys):
    folder = str(tmp_path / "out")
    assert main(["train", *corpus, "--vocab-size", "405", "--output", folder]) == 0
    assert Path(folder, "tokenizer.json").read_bytes() == train_byte_bpe(TEXTS, 405)
    assert sorted(path.name for path in Path(folder).iterdir()) == ["tokenizer.json"]
    capsys.readouterr()
    arguments = ["inspect", folder, "--text", f"lines={corpus[1]}", "--text", f"plain={corpus[0]}", "--longest", "3"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["vocab_size"], found["kind"], len(found["longest_tokens"])) == (405, "byte_bpe", 3)
    assert found["texts"]["lines"]["documents"] == 19
    assert found["texts"]["plain"]["round_trip_failures"] == 0
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert "exact" in table
    assert "lines" in table


def test_only_bytes_need_no_size(corpus, tmp_path, capsys):
    arguments = ["train", *corpus, "--output", str(tmp_path / "out")]
    assert main([*arguments, "--kind", "bytes"]) == 0
    assert Encoder.load(str(tmp_path / "out")).vocab_size == 384
    assert main([*arguments, "--kind", "unigram", "--overwrite"]) == 2
    assert "--vocab-size: not given, but unigram requires it" in capsys.readouterr().err


def test_a_tokenizer_is_not_replaced_by_accident(corpus, tmp_path, capsys):
    arguments = ["train", *corpus, "--vocab-size", "400", "--output", str(tmp_path)]
    assert main(arguments) == 0
    assert main(["train", corpus[1], "--vocab-size", "390", "--output", str(tmp_path)]) == 2
    assert "exists already; choose another --output, or replace it with --overwrite" in capsys.readouterr().err
    assert Encoder.load(str(tmp_path)).vocab_size == 400
    assert main(["train", corpus[1], "--vocab-size", "390", "--output", str(tmp_path), "--overwrite"]) == 0
    assert Encoder.load(str(tmp_path)).vocab_size == 390


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("a.txt.gz", gzip.compress(b"text " * 1000, mtime=0)[:-20], "damaged gzip"),
        ("a.txt.gz", b"no gzip at all", "damaged gzip"),
        ("a.jsonl", b'{"text": "x"}\nnot json\n', "a.jsonl:2: not JSON"),
        ("a.jsonl", b'{"body": "x"}\n', "a.jsonl:1: no text in field 'text'; name the right one with --field"),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: no text"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "a.jsonl:1: lone surrogate"),
    ],
)
def test_bad_files_are_named(tmp_path, capsys, name, content, message):
    file = tmp_path / name
    file.write_bytes(content)
    assert main(["train", str(file), "--vocab-size", "384", "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "missing.txt", "--vocab-size", "384", "--output", "out"], "missing.txt: no such file"),
        (["inspect", "missing"], "missing: no such tokenizer"),
    ],
)
def test_missing_files_are_named(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_text_arguments_need_a_name(encoder, capsys):
    assert main(["inspect", encoder.definition.path, "--text", "file.txt"]) == 2
    assert "--text: got 'file.txt', expected NAME=FILE" in capsys.readouterr().err


@pytest.mark.long
def test_run_as_a_module():
    finished = subprocess.run([sys.executable, "-m", "tokenizer", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0
    assert "train" in finished.stdout
    assert "inspect" in finished.stdout
