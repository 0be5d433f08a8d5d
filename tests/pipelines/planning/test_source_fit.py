"""Warnings of plan and report about sources: rules that do not suit their texts, and HTML that is read as
text.
"""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.storage.store import read_json
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.source_fit import find_tests, fit_notices, measure_texts, published_sample

SENTENCE = "The mill at the river grinds corn for the village, and they have bread with it. "
ONE_LINE = [SENTENCE * (5 + n % 3) + f"Number {n}." for n in range(20)]
LINES = [text.replace("it. ", "it.\n") for text in ONE_LINE]
TITLES = [f"Bread of the village, number {n}" for n in range(40)]
CHINESE = [
    f"河邊的磨坊為村子磨玉米，他們全年都有麵包。這是第{n}篇文章，寫於二〇二六年，共有三句話。" * 4 for n in range(20)
]
THAI = [f"โรงสีริมแม่น้ำบดข้าวโพดให้หมู่บ้านและพวกเขามีขนมปังกินตลอดทั้งปี เรื่องที่ {n}\nจบแล้ว" for n in range(20)]
KOREAN = [
    f"강가의 방앗간은 마을을 위해 옥수수를 빻는다. 그들은 일 년 내내 빵을 먹는다. {n}번째 글이다.\n끝."
    for n in range(20)
]
NUMBERS = ["\n".join(" ".join(str((n * k) % 10) for k in range(30)) for _ in range(9)) for n in range(20)]
LONG = ["a b\n" * 30_000, *LINES]  # 60,000 words of 120 kB beside 9 kB

COLUMNS = {
    "text_bytes": pa.array([100] * 60),
    "source": pa.array(["web"] * 60),
    "drop_step": pa.array(["short"] * 40 + [None] * 20),
}

LINE_RULES = "filter: [{rules: fineweb@datatrove}]"
FEW_RULES = "filter: [{signal: stop_word_count, at_least: 1}, {signal: ellipsis_line_ratio, at_most: 0.9, null: keep}]"
CAP = "filter: [{signal: word_count, at_most: 50000}]"


def notices(folder: Path, texts: list[str], *steps: str) -> list[str]:
    config = load_corpus_config(corpus(folder, {"web": texts, "other": LINES}, *steps))
    return list(fit_notices("web", find_tests(config, "web"), measure_texts(config, texts)))


def corpus(folder: Path, sources: dict[str, list[str]], *steps: str) -> Path:
    for name, texts in sources.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    entries = "".join(f"  - {{name: {name}, root: {folder}/{name}.jsonl, format: jsonl}}\n" for name in sources)
    listed = "".join(f"  - {step}\n" for step in ("quality_signals: {}", "peer_signals: {}", *steps))
    path = folder / "corpus.yaml"
    path.write_text(f"name: trial\noutput: {folder}/out\nsources:\n{entries}steps:\n{listed}")
    return path


@pytest.mark.parametrize("steps", [[LINE_RULES], ["c4_lines: {rules: tfds}"], ["refinedweb_lines: {}"]])
def test_documents_of_one_line(tmp_path, steps):
    (notice,) = notices(tmp_path, ONE_LINE, *steps)
    assert "web has no lines to judge: 20 of 20 documents" in notice
    assert "`sources`" in notice
    assert SENTENCE[:20] not in notice
    assert notices(tmp_path, LINES, *steps) == []
    assert notices(tmp_path, TITLES, *steps) == [], "one line because they have one sentence"


def test_the_notice_names_only_the_rules_of_lines(tmp_path):
    (notice,) = notices(tmp_path, ONE_LINE, "filter: [{rules: gopher_quality@massivetext}, {rules: fineweb@paper}]")
    for name in ("bullet_line_ratio", "ellipsis_line_ratio", "terminal_line_ratio", "dup_line_char_ratio and 1 more"):
        assert name in notice
    assert "word_count" not in notice


def test_a_mixed_source_has_lines(tmp_path):
    assert notices(tmp_path, ONE_LINE + LINES[:3], LINE_RULES) == []
    assert len(notices(tmp_path, ONE_LINE + LINES[:2], LINE_RULES)) == 1


def test_a_cap_that_drops_most_bytes(tmp_path):
    (notice,) = notices(tmp_path, LONG, CAP)
    assert "word_count, at most 50,000, would drop 9" in notice
    assert "(1 of its first 21 documents)" in notice
    assert notices(tmp_path, LINES, CAP) == []
    assert notices(tmp_path, [LONG[0], *LINES * 20], CAP) == [], "less than half of the bytes"


@pytest.mark.parametrize(
    ("bounds", "count"),
    [
        ("per: source, at_most: {web: 100000, default: 50000}", 0),
        ("per: source, at_most: {other: 100000, default: 50000}", 1),
        ("at_most: 50000, when: {source: [other]}", 0),
        ("per: language, at_most: {en: 100, default: null}", 0),
        ("at_least: 50000", 0),
    ],
)
def test_a_cap_by_source(tmp_path, bounds, count):
    steps = ["language: {}", f"filter: [{{signal: word_count, {bounds}}}]"]
    assert len(notices(tmp_path, LONG, *steps)) == count


def test_a_step_of_other_sources_says_nothing(tmp_path):
    steps = ["filter: [{rules: fineweb@paper}]\n    sources: [other]", "c4_lines: {rules: tfds}\n    sources: [other]"]
    assert notices(tmp_path, ONE_LINE, *steps) == []


@pytest.mark.parametrize("texts", [CHINESE, THAI])
def test_words_that_are_not_separated(tmp_path, texts):
    (notice,) = notices(tmp_path, texts, "filter: [{signal: mean_word_length, at_least: 3}]")
    assert "web does not separate its words" in notice
    assert "multilingual.yaml" in notice
    assert not set(notice) & set("".join(texts)) - set(map(chr, range(128)))


@pytest.mark.parametrize("texts", [LINES, KOREAN, NUMBERS])
def test_words_that_are_separated(tmp_path, texts):
    assert notices(tmp_path, texts, "filter: [{signal: mean_word_length, at_least: 3}]") == []


@pytest.mark.parametrize(
    ("step", "count"),
    [
        ("filter: [{rules: gopher_quality@massivetext, when: {language: [en]}}]", 0),
        ("filter: [{signal: mean_word_length, per: language, at_least: {zh: 1, default: 3}}]", 0),
        ("filter: [{signal: mean_word_length, at_least: 1, when: {source: [web]}}]", 0),
        ("filter: [{rules: gopher_quality@massivetext, when: {source: [web]}}]", 1),
        ("filter: [{rules: gopher_repetition@massivetext}]", 0),
        ("filter: [{rules: gopher_repetition@datatrove}]", 1),
        ("c4_lines: {rules: tfds}", 1),
        ("c4_lines: {rules: tfds, without: [few_words, terminal_punctuation]}", 0),
    ],
)
def test_bounds_made_for_a_language(tmp_path, step, count):
    texts = [text.replace("。", "。\n") for text in CHINESE]
    assert len(notices(tmp_path, texts, "language: {}", step)) == count


def lines_of_plan(path: Path, capsys) -> list[str]:
    assert main(["plan", str(path)]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]


@pytest.mark.long
def test_plan_and_report_say_the_same(tmp_path, capsys):
    texts = {"web": ONE_LINE, "books": LONG, "zh": CHINESE, "plain": LINES}
    path = corpus(tmp_path, texts, f"{CAP}\n    name: cap", f"{FEW_RULES}\n    sources: [web, books, zh]")
    planned = lines_of_plan(path, capsys)
    assert len(planned) == 4
    config = load_corpus_config(path)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    built = lines_of_plan(path, capsys)
    assert built == [line.replace("its first 2", "2").replace(" documents)", " sampled documents)") for line in planned]
    report = read_json(tmp_path / "out" / "report.json")
    assert [f"warning: {line}" for line in report["warnings"]] == built
    page = (tmp_path / "out" / "report.html").read_text()
    for words in ("web has no lines to judge", "would drop 9", "zh does not separate its words"):
        assert words in page


def test_documents_that_an_earlier_step_drops_are_not_judged(tmp_path):
    drops = "filter: [{signal: word_count, at_least: 60}]\n    name: short"
    config = load_corpus_config(corpus(tmp_path, {"web": TITLES + ONE_LINE}, drops, LINE_RULES))
    tests, measured = find_tests(config, "web"), measure_texts(config, TITLES + ONE_LINE)
    assert list(fit_notices("web", tests, measured)) == [], "what is short is known once it is dropped"
    table = measured.signals["text"]
    for name in ("text_bytes", "source", "drop_step"):
        table = table.append_column(name, COLUMNS[name])
    (notice,) = fit_notices("web", tests, published_sample(config, "web", table))
    assert "web has no lines to judge: 20 of 20 documents" in notice
    assert "(60 sampled documents)" in notice


POSTS = [
    f"<p>{SENTENCE}</p>\n\n<pre><code>x = {n}\n</code></pre>\n<ul>\n<li>{SENTENCE}</li>\n</ul>\n" for n in range(20)
]
CODE = [f"if a < {n} and b > c: print('<b>')  # see <p> and List<Row>\n{SENTENCE}" for n in range(20)]


@pytest.mark.long
def test_plan_and_report_name_sources_of_html(tmp_path, capsys):
    texts = {"posts": POSTS, "mixed": POSTS[:4] + LINES, "code": CODE}
    path = corpus(tmp_path, texts, "c4_lines: {rules: tfds}\n    name: c4")
    said = "posts holds HTML, which is read as text, tags included: 20 of its first 20 documents have block tags such as </p>; "
    judged = "c4 would judge lines of tags and drop or empty most documents; read it with `text_is: html`"
    (planned,) = [line for line in lines_of_plan(path, capsys) if "HTML" in line]
    assert said + judged in planned
    config = load_corpus_config(path)
    build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
    (built,) = [line for line in read_json(tmp_path / "out" / "report.json")["warnings"] if "HTML" in line]
    assert f"warning: {built}" == planned.replace("its first 20 documents", "20 sampled documents")
    assert built.replace("<", "&lt;").replace(">", "&gt;") in (tmp_path / "out" / "report.html").read_text()


def test_html_is_not_judged_before_its_text_is_extracted(tmp_path, capsys):
    path = corpus(tmp_path, {"posts": [f"<p>{SENTENCE}</p>" * 3] * 20}, LINE_RULES)
    assert any("posts has no lines to judge" in line for line in lines_of_plan(path, capsys))
    path.write_text(path.read_text().replace("format: jsonl", "format: jsonl, text_is: html"))
    assert lines_of_plan(path, capsys) == []


def test_files_of_html_are_read_by_their_format(tmp_path, capsys):
    for number, text in enumerate(POSTS):
        (tmp_path / f"{number}.txt").write_text(text)
    path = tmp_path / "corpus.yaml"
    source = f"{{name: pages, root: {tmp_path}, include: ['*.txt'], format: text}}"
    path.write_text(f"name: t\noutput: {tmp_path}/out\nsources: [{source}]\nsteps: [text_hash: {{}}]\n")
    (line,) = lines_of_plan(path, capsys)
    assert line.endswith("have block tags such as </p>; read files that are pages with `format: html`")
