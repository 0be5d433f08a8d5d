"""Repair of mojibake: the repaired texts equal those of ftfy, and the edits record where the repairs are."""

import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipelines
from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.contracts.edits import apply_edits, check_edits
from pipelines.reading.entries.normalise import normalise
from pipelines.stages.decide.mojibake import Mojibake, _differences

ftfy = pytest.importorskip("ftfy", reason="the extra ftfy is not installed")
ONLY_ENCODING = ftfy.TextFixerConfig(
    unescape_html=False, remove_terminal_escapes=False, fix_latin_ligatures=False, fix_character_width=False,
    uncurl_quotes=False, fix_line_breaks=False, fix_surrogates=False, remove_control_chars=False, normalization=None,
)  # fmt: skip
GOOD = "Schön, voilà — „Ωmega“ 中文 naïve 😀 don’t Čeština żółć Ñandú 5 € (½)\n"
ENCODINGS = ("latin-1", "cp1252", "cp1250", "cp1251", "cp437", "macroman")


def broken(text, encoding, times=1):
    for _ in range(times):
        text = text.encode().decode(encoding, "replace")
    return normalise(text)[0].decode()


def repaired(*documents):
    text = pa.array(documents, pa.large_string())
    table = Mojibake().annotate(pa.table({"text": text}))
    edits = table["edits"].combine_chunks()
    check_edits(text, edits)
    return apply_edits(text, edits).to_pylist(), edits.to_pylist(), table["mojibake_count"].to_pylist()


def test_places_are_exact_and_the_rest_of_the_line_is_no_part_of_them():
    text = "An ASCII line.\nDas ist schÃ¶n &amp; ﬁne, â€œsaidâ€\u00a0 he\nvoilÃ le travail\nnaïve café stays"
    (after,), (edits,), (count,) = repaired(text)
    assert after.split("\n")[0] == "An ASCII line."
    assert "Das ist schön &amp; ﬁne, “said" in after
    assert after.split("\n")[2:] == ["voilà le travail", "naïve café stays"]
    data = text.encode()
    places = [(data[edit["start"] : edit["end"]].decode(), edit["replacement"], edit["rule"]) for edit in edits]
    assert places[0] == ("Ã¶", "ö", "mojibake")
    assert places[1] == ("â€œ", "“", "mojibake")
    assert places[-1] == ("Ã", "à", "mojibake")
    assert count == len(edits)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_texts_are_those_of_ftfy(encoding, times):
    words = GOOD.split(" ")
    documents = [broken(" ".join(words[first:]), encoding, times) for first in range(len(words))]
    documents += [f"{each}{GOOD}{each}" for each in documents]
    expected = [normalise(ftfy.fix_text(each, ONLY_ENCODING))[0].decode() for each in documents]
    after, _, counts = repaired(*documents)
    assert after == expected
    assert any(counts)


@given(st.lists(st.text(st.sampled_from("aé ?Ã¶©â€œ\u00a0\n�Ð¿中\u0301x.")), min_size=1, max_size=3))
def test_any_text_becomes_that_of_ftfy(documents):
    documents = [normalise(each)[0].decode() for each in documents]
    after, _, _ = repaired(*documents)
    for text, found in zip(documents, after, strict=True):
        lines = [line if (fixed := ftfy.fix_encoding(line)) == line else normalise(fixed)[0].decode()
                 for line in text.splitlines(keepends=True)]  # fmt: skip
        assert found == "".join(lines)


@given(st.text("ab?é ö\u0301.", max_size=12), st.text("ab?é ö\u0301.", max_size=12))
def test_differences_turn_one_text_into_the_other(old, new):
    old = old or "é"
    pieces, at = [], 0
    for start, end, replacement in _differences(old, new):
        assert at <= start < end <= len(old)
        pieces += [old[at:start], replacement]
        at = end
    assert "".join([*pieces, old[at:]]) == new


def test_a_long_line_is_taken_in_pieces(monkeypatch):
    monkeypatch.setattr("pipelines.stages.decide.mojibake._LONGEST", 10)
    text = "schÃ¶n 12schÃ¶n 34"
    assert repaired(text)[0] == ["schön 12schön 34"]


def test_text_without_mojibake_has_no_edits():
    documents = [GOOD, "plain", "", "Ãngström-like names: São Tomé, Ærø", "a\n\nb"]
    after, _, counts = repaired(*documents)
    assert (after, counts) == (documents, [0] * len(documents))


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch):
    page = (Path(__file__).parents[4] / "docs/rule_sets.md").read_text()
    example = next(each for each in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "mojibake" in each)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pages").mkdir()
    for number, text in enumerate(["Ein schÃ¶ner Tag", "Ein schöner Tag", "Ã¤ Ã¶ Ã¼ " * 300]):
        (tmp_path / "pages" / f"{number}.txt").write_text(text)
    (tmp_path / "corpus.yaml").write_text(example)
    pipelines.build("corpus.yaml", in_process=True)
    kept = pipelines.open_corpus("out/repaired").documents().read_all()
    assert kept["text"].to_pylist() == ["Ein schöner Tag"]


def test_ftfy_is_asked_for_before_anything_is_read(monkeypatch, tmp_path):
    monkeypatch.setattr("pipelines.stages.decide.mojibake.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"ftfy is not installed; run: pip install .*'\.\[ftfy\]'"):
        parse(Mojibake, {}, "c.yaml")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert Mojibake().libraries() == (("ftfy", "pip install --constraint constraints.txt --editable '.[ftfy]'"),)
    assert list(Mojibake().depends()) == ["ftfy", "unicode"]
    assert issubclass(ConfigError, UserError)
