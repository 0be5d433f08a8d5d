"""`tokenizer compare`: counts against a direct implementation of the definitions, groups, and the files that
it writes.
"""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from tokenizer.__main__ import main
from tokenizer.chart import MEASURES
from tokenizer.chart import render_page as chart_page
from tokenizer.compare import ALL, Row, compare, count_threads, read_groups
from tokenizer.encode import Encoder
from tokenizer.kinds.train import train

ENGLISH = ["The mill stands at the river.", "It turns the wheel of the mill.", "The river is old."]
RUSSIAN = ["Мельница стоит у реки.", "Она вращает колесо."]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Return the paths of a byte-level BPE, a byte tokenizer, and a WordPiece that has seen no Cyrillic
    letter.
    """
    found = {}
    for kind, size in (("byte_bpe", 400), ("bytes", 384), ("wordpiece", 180)):
        found[kind] = tmp_path_factory.mktemp(kind) / "tokenizer.json"
        found[kind].write_bytes(train(kind, ENGLISH * 20, size, coverage=1))
    return found


@pytest.fixture
def files(tmp_path):
    for name, texts in (("a", ENGLISH), ("b", RUSSIAN)):
        lines = [
            json.dumps({"text": text, "source": name, "meta": {"language": "en" if name == "a" else "ru"}})
            for text in texts
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, json.dumps({"text": "", "source": name})]) + "\n")
    (tmp_path / "c.txt").write_text("Plain text.")
    return tmp_path


def test_every_number_is_what_it_says(tokenizers):
    texts = {"en": pa.array(ENGLISH, pa.large_string()), "ru": pa.array([*RUSSIAN, "mill"], pa.large_string())}
    encoders = {kind: Encoder.load(str(path)) for kind, path in tokenizers.items()}
    rows = compare(encoders, texts)
    assert [(row.tokenizer, row.group) for row in rows] == [(k, g) for k in encoders for g in ("en", "ru", ALL)]
    for row in rows:
        encoder = encoders[row.tokenizer]
        mine = [text for group, some in texts.items() if row.group in (group, ALL) for text in some.to_pylist()]
        ids = [encoder.encode(pa.array([text], pa.large_string()))[0].tolist() for text in mine]
        words = [word for text in mine for word in text.split()]
        assert (row.documents, row.words, row.tokens) == (len(mine), len(words), sum(map(len, ids)))
        assert row.bytes == sum(len(text.encode()) for text in mine)
        assert row.tokens_per_word == row.tokens / row.words
        assert row.bytes_per_token == row.bytes / row.tokens
        known = [w for w in words if 3 not in (i := encoder.encode(pa.array([w], pa.large_string()))[0].tolist()) and i]
        assert row.coverage == len(known) / len(words)
        used = {number for some in ids for number in some if number >= 128}
        assert row.vocabulary_used == len(used) / (encoder.vocab_size - 128)
        assert row.megabytes_per_second > 0
        assert row.threads == count_threads(encoder)
    by_name = {(row.tokenizer, row.group): row for row in rows}
    assert by_name["bytes", "en"].bytes_per_token == by_name["bytes", "ru"].bytes_per_token == 1
    assert by_name["wordpiece", "en"].coverage == by_name["byte_bpe", "ru"].coverage == 1
    assert by_name["wordpiece", "ru"].coverage == 1 / 8


def test_a_word_that_gives_no_token_is_not_covered(tokenizers):
    encoder = Encoder.load(str(tokenizers["wordpiece"]))
    (row,) = compare({"w": encoder}, {"x": pa.array(["mill \x00"], pa.large_string())})
    assert (row.words, row.coverage) == (2, 0.5)


def test_threads_are_those_of_the_library(tokenizers, monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    monkeypatch.setenv("RAYON_NUM_THREADS", "3")
    assert [count_threads(Encoder.load(str(tokenizers[kind]))) for kind in ("byte_bpe", "bytes", "wordpiece")] == [
        1,
        1,
        3,
    ]
    encoder = Encoder.load(str(tokenizers["wordpiece"]))
    for value, threads in [*((value, 1) for value in ("false", "F", "no", "n", "OFF", "0", "")), ("true", 3), ("1", 3)]:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", value)
        assert count_threads(encoder) == threads, value


def test_groups(files):
    pairs = [(name, str(files / file)) for name, file in (("a", "a.jsonl"), ("b", "b.jsonl"), ("c", "c.txt"))]
    sizes = {group: len(texts) for group, texts in read_groups(pairs, [], 1000).items()}
    assert sizes == {"a": 3, "b": 2, "c": 1}
    assert set(read_groups(pairs, ["source", "meta.language"], 1000)) == {"a / en", "b / ru", "c"}
    assert read_groups(pairs, ["source"], 1)["a"].to_pylist() == ENGLISH[:1]
    assert Counter(len(texts) for texts in read_groups(pairs, ["meta.language"], 50).values()) == {2: 2, 1: 1}
    with pytest.raises(ValueError, match="--by: no record has a field 'langauge'"):
        read_groups(pairs, ["source", "langauge"], 1000)
    (files / "many.jsonl").write_text("\n".join(json.dumps({"text": "x", "id": n}) for n in range(65)))
    with pytest.raises(ValueError, match=r"--by: .*many\.jsonl: more than 64 groups"):
        read_groups([("x", str(files / "many.jsonl"))], ["id"], 1000)
    with pytest.raises(ValueError, match="--text: the files hold no text"):
        read_groups([], [], 1000)


def test_the_command(tokenizers, files, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    named = [f"{kind}={path}" for kind, path in tokenizers.items()]
    texts = ["--text", str(files / "a.jsonl"), "--text", str(files / "b.jsonl"), "--by", "meta.language"]
    assert main(["compare", *named, *texts, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["tokenizer"], row["group"]) for row in rows} == {(k, g) for k in tokenizers for g in ("en", "ru", ALL)}
    page, image = files / "c.html", files / "c.svg"
    assert main(["compare", *named, *texts, "--chart", str(page)]) == 0
    table = capsys.readouterr().out
    assert all(word in table for word in ("byte_bpe", "wordpiece", "ru", ALL, "numpy, threads: 1"))
    content = page.read_text()
    assert content.count("<tr>") == 10
    assert all(title in content for title in MEASURES.values())
    assert content.count("<svg") == 1
    assert "<script" not in content
    assert 'href="http' not in content
    assert main(["compare", str(tokenizers["bytes"]), "--text", str(files / "c.txt"), "--chart", str(image)]) == 0
    assert ET.fromstring(image.read_text()).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in image.read_text()
    assert str(tokenizers["bytes"].parent.name) in capsys.readouterr().out


def test_all_text_may_be_read(tokenizers, files, capsys):
    arguments = ["--text", str(files / "a.jsonl"), "--most-mb", "inf", "--json"]
    assert main(["compare", str(tokenizers["bytes"]), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)[0]["tokens"] == sum(map(len, ENGLISH))


def test_tokenizers_are_named_after_their_directories(tokenizers, files, capsys, monkeypatch):
    content = tokenizers["bytes"].read_bytes()
    for name in ("llama-3.1", "llama-3.2", "here"):
        (files / name).mkdir()
        (files / name / "tokenizer.json").write_bytes(content)
    (files / "other.v2.json").write_bytes(content)
    monkeypatch.chdir(files / "here")
    for paths, names in (
        (
            ["../llama-3.1", "../llama-3.2/", "./tokenizer.json", "../other.v2.json"],
            ["llama-3.1", "llama-3.2", "here", "other"],
        ),
        (["."], ["here"]),
        (["../llama-3.1/tokenizer.json", "other=."], ["llama-3.1", "other"]),
    ):
        assert main(["compare", *paths, "--text", str(files / "c.txt"), "--json"]) == 0
        assert [row["tokenizer"] for row in json.loads(capsys.readouterr().out)] == names


def test_values_of_records_steer_neither_the_terminal_nor_the_page(tokenizers, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    steer = "\x1b]52;c;ZXZpbA==\x07<script>alert(1)</script>\u202e[red]=1+1"
    texts = tmp_path / "a.jsonl"
    texts.write_text(json.dumps({"text": "words of strangers", "language": steer}))
    page = tmp_path / "c.html"
    command = [
        "compare",
        str(tokenizers["bytes"]),
        "--text",
        str(texts),
        "--by",
        "language",
        "--chart",
        str(page),
    ]
    assert main(command) == 0
    assert main(["inspect", str(tmp_path / steer)]) == 2
    shown, content = "".join(capsys.readouterr()), page.read_text()
    assert r"\x1b]52;c;ZXZpbA==\x07<script>alert(1)</script>\u202e[red]=1+1" in shown
    assert "<script" not in content
    for each in (shown, content):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", each)


@pytest.mark.parametrize("columns", ["20", "80"])
def test_a_narrow_console_loses_no_column(columns, tokenizers, files, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    named = [f"{kind}={path}" for kind, path in tokenizers.items()]
    assert main(["compare", *named, "--text", str(files / "c.txt")]) == 0
    head, table = capsys.readouterr().out.split("─", 1)
    titles = [title.split(" ", 1) for title in MEASURES.values()]
    assert [(first in head, rest in head) for first, rest in titles] == [(True, True)] * len(MEASURES)
    assert all(kind in table.split("threads:")[0] for kind in tokenizers)
    assert main(["inspect", str(tokenizers["bytes"]), "--text", f"plain={files / 'c.txt'}"]) == 0
    facts = capsys.readouterr().out
    assert "plain" in facts
    assert "exact" in facts


def test_names_are_escaped(tokenizers, files):
    page = files / "c.html"
    named = f"<b>x 中</b>={tokenizers['bytes']}"
    assert main(["compare", named, "--text", f"<i>={files / 'c.txt'}", "--chart", str(page)]) == 0
    assert "<b>" not in page.read_text()
    assert "<i>" not in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{bytes}", "{bytes}", "--text", "{files}/a.jsonl"], "tokenizers: got"),
        (["{bytes}", "--text", "x={files}/a.jsonl", "--text", "x={files}/b.jsonl"], "--text: got"),
        (["{bytes}", "--text", "{files}/a.jsonl", "--chart", "x.pdf"], "--chart: got 'x.pdf'"),
        (["{bytes}", "--text", "{files}/a.jsonl", "--most-mb", "0"], "--most-mb: got 0.0"),
        (["{files}/none-1.1", "{files}/none-1.2", "--text", "{files}/a.jsonl"], "no such tokenizer"),
        (["{bytes}", "--text", "{files}/none.jsonl"], "no such file"),
    ],
)
def test_wrong_requests_say_what_is_wrong(tokenizers, files, capsys, arguments, message):
    filled = [argument.format(files=files, bytes=tokenizers["bytes"]) for argument in arguments]
    assert main(["compare", *filled]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "size", "knobs"),
    [
        ("wordpiece", 170, ["--lowercase", "--coverage", "1"]),
        ("bytes", 384, []),
        ("bpe", 160, ["--min-frequency", "3"]),
    ],
)
def test_other_kinds_are_trained_from_the_command_line(files, kind, size, knobs, capsys):
    file = files / "more.txt"
    file.write_text(" ".join(ENGLISH * 5))
    out = files / "out"
    assert main(["train", str(file), "--kind", kind, "--vocab-size", str(size), "--output", str(out), *knobs]) == 0
    assert Encoder.load(str(out)).kind == kind
    assert Encoder.load(str(out)).vocab_size == size
    assert main(["inspect", str(out), "--text", f"x={file}"]) == 0
    assert kind in capsys.readouterr().out


def test_a_chart_of_one_group_of_a_published_tokenizer(shared_data, files):
    bert = shared_data / "models" / "bert_uncased"
    assert main(["compare", str(bert), "--text", str(files / "a.jsonl"), "--chart", str(files / "b.html")]) == 0
    assert "bert_uncased" in Path(files / "b.html").read_text()


def test_a_logarithmic_axis_has_plain_labels_and_at_least_two_of_them():
    rows = [
        Row(name, group, 1, 100, 1000, 300, 3.0, 3.3, 0.9, 0.5, speed, 2)
        for name, group, speed in [("a", "en", 3.0), ("a", "zh", 65.0), ("b", "en", 4.0), ("b", "zh", 25.0)]
    ]
    content = chart_page(rows).decode()
    assert "$" not in content
    assert "math" not in content
    assert ">1<>10<>100<" in "".join(re.findall(r">[\d,.]+<", content))
