"""Perplexity under a handwritten model of a few words, small enough to compute the expected values by hand."""

import gzip
import importlib.util
import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.stages.score import perplexity as module
from pipelines.stages.score.perplexity import Perplexity

needs_kenlm = pytest.mark.skipif(importlib.util.find_spec("kenlm") is None, reason="the extra kenlm is not installed")

ARPA = """\
\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.5\t<unk>\t0
-99\t<s>\t-0.5
-0.9\t</s>
-0.6\tmill\t-0.2
-0.8\tstone\t-0.1

\\2-grams:
-0.3\t<s> mill
-0.4\tmill stone
-0.25\tstone </s>

\\end\\
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny.arpa"
    path.write_text(ARPA)
    return path


def annotated(stage, *texts):
    stage.check()
    stage.setup()
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    result = stage.annotate(pa.table({"id": ids, "text": pa.array(texts, pa.large_string())}))
    assert result.schema == stage.writes()
    return result[0].to_pylist()


@needs_kenlm
@pytest.mark.parametrize(
    ("text", "logarithm", "tokens"),
    [
        ("mill stone", -0.3 - 0.4 - 0.25, 3),  # three bigrams
        ("stone", -0.5 - 0.8 - 0.25, 2),  # the back-off of <s>, stone, the end
        ("wind", -0.5 - 1.5 - 0.9, 2),  # an unknown word has no back-off
        ("mill stone\n\n \nstone", -0.95 - 1.55, 5),  # lines add up, blank ones are none
        (" mill\t stone  ", -0.95, 3),
    ],
)
def test_by_hand(text, logarithm, tokens, model, capfd):
    assert annotated(Perplexity(str(model)), text) == [pytest.approx(10 ** (-logarithm / tokens), rel=1e-5)]
    assert capfd.readouterr() == ("", "")


@needs_kenlm
def test_knobs_and_documents_without_tokens(model):
    assert annotated(Perplexity(str(model), column="surprise"), "", "\n \n") == [None, None]
    plain, lower = Perplexity(str(model)), Perplexity(str(model), lower=True)
    assert annotated(lower, "Mill STONE") == annotated(plain, "mill stone") != annotated(plain, "Mill STONE")
    assert list(plain.depends()) == ["kenlm", "model xxh3_128"]
    assert list(lower.depends()) == ["kenlm", "model xxh3_128", "unicode"]


@needs_kenlm
def test_a_file_that_is_no_model_or_changed_is_an_error(model):
    stage = Perplexity(str(model))
    stage.depends()
    model.write_text("nothing of the kind")
    with pytest.raises(UserError, match=r"tiny\.arpa: its xxh3_128 is"):
        pickle.loads(pickle.dumps(stage)).setup()
    with pytest.raises(UserError, match=r"tiny\.arpa: not a KenLM model"):
        Perplexity(str(model)).setup()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"model": "nowhere.bin"}, "model: got 'nowhere.bin', which is not a file"),
        ({"column": "1"}, "column: got '1'"),
        ({"text": "meta"}, "text: got 'meta'"),
    ],
)
def test_knobs_out_of_range(knobs, message, model, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: "found")
    with pytest.raises(UserError, match=message):
        parse(Perplexity, {"model": str(model), **knobs}, where="corpus.yaml")


def test_files_that_do_not_begin_as_a_model_are_refused_before_the_step_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: "found")
    path = tmp_path / "model"
    for begin in (pickle.dumps({}), b"", b"ngram 1=5\n", b"mmap lm of another kind"):
        path.write_bytes(begin)
        with pytest.raises(UserError, match=r"model: .*model does not begin as a KenLM model does"):
            parse(Perplexity, {"model": str(path)}, where="corpus.yaml")
    binary = b"mmap lm http://kheafield.com/code format version 5\n\0"
    for begin in (
        ARPA.encode(),
        b"\n \n" + ARPA.encode(),
        b"# a comment\n" + ARPA.encode(),
        gzip.compress(ARPA.encode()),
        binary,
    ):
        path.write_bytes(begin)
        assert parse(Perplexity, {"model": str(path)}, where="corpus.yaml").model == str(path)


def test_without_the_library_the_message_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "kenlm", None)
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"KenLM is not installed; run: pip install .*'\.\[kenlm\]'"):
        parse(Perplexity, {"model": str(Path(model))}, where="corpus.yaml")
