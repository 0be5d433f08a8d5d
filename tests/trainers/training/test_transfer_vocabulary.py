"""Weights of a parent with another vocabulary: the row with which each token starts, in every architecture
and in a run.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.events import read_events
from tests.trainers.conftest import build_corpus
from tests.trainers.models.test_models import SPECIAL_IDS, TINY
from tokenizer.kinds.byte_bpe import train_byte_bpe
from tokenizer.vocabulary.definition import Definition, read_definition
from trainers.__main__ import main
from trainers.config.architecture import fill
from trainers.models import build_model
from trainers.training.transfer_vocabulary import parent_rows, transfer_vocabulary, vocabulary_tables

pytestmark = pytest.mark.long

TEXTS = ("the cat sat on the mat with the other cat", "der Kater saß auf der Matte mit dem anderen Kater")


@pytest.fixture(scope="module")
def definitions(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabularies")
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.json").write_bytes(train_byte_bpe([text] * 5, 400))
    return [read_definition(str(folder / f"{number}.json")) for number in range(2)]


def test_a_known_token_keeps_its_row_and_a_new_one_is_divided(definitions):
    theirs, ours = definitions
    rows = parent_rows(theirs, ours, "decoder")
    assert len(rows) == ours.vocab_size
    special = set(ours.specials.values())
    known = {theirs.token_bytes(i): i for i in theirs.tokens if i not in set(theirs.specials.values())}
    new = 0
    for number in set(ours.tokens) - special:
        content = ours.token_bytes(number)
        assert b"".join(theirs.token_bytes(piece) for piece in rows[number]) == content
        assert (rows[number] == [known.get(content)]) == (content in known)
        new += content not in known
    assert new >= 10
    assert rows[ours.roles["<mask>"]] == [theirs.roles["<mask>"]]
    half = "ß".encode()[:1]  # not UTF-8 by itself
    assert rows[{ours.token_bytes(i): i for i in ours.tokens}[half]] == [known[half]]


@pytest.mark.parametrize(
    ("family", "marks"),
    [("encoder", ("<cls>", "<sep>")), ("decoder", ("<bos>", "<eos>")), ("encoder_decoder", ("<bos>", "<eos>"))],
)
def test_a_special_token_of_two_roles_takes_the_row_of_the_role_in_which_the_family_reads_it(
    definitions, family, marks
):
    theirs, data = definitions[0], json.loads(definitions[1].json)
    names = {"<bos>": "<s>", "<eos>": "</s>"}  # as in RoBERTa and BART
    data["added_tokens"] = [
        {**token, "content": names.get(token["content"], token["content"])}
        for token in data["added_tokens"]
        if token["content"] not in ("<cls>", "<sep>")
    ]
    ours = Definition("roberta", data)
    assert ours.roles["<bos>"] == ours.roles["<cls>"]
    rows = parent_rows(theirs, ours, family)
    assert [rows[ours.specials[name]] for name in ("<s>", "</s>")] == [[theirs.roles[mark]] for mark in marks]
    tokens = [token for token in theirs.data["added_tokens"] if token["content"] != marks[0]]
    without = Definition("without", {**theirs.data, "added_tokens": tokens})
    other = "<bos>" if family == "encoder" else "<cls>"
    assert parent_rows(without, ours, family)[ours.specials["<s>"]] == [theirs.roles[other]]


@pytest.mark.parametrize("name", TINY)
def test_the_tables_of_every_architecture_are_found_and_nothing_else_changes(name, definitions):
    theirs, ours = definitions
    model, other = (fill(replace(TINY[name], vocab_size=None), size) for size in (theirs.vocab_size, 500))
    weights = {n: p.detach() for n, p in build_model(model, SPECIAL_IDS, 0).named_parameters()}
    wanted = {n: p.shape for n, p in build_model(other, SPECIAL_IDS, 0).named_parameters()}
    tables = vocabulary_tables(other, SPECIAL_IDS)
    assert tables
    result = transfer_vocabulary(weights, other, SPECIAL_IDS, theirs, ours)
    assert {n: weight.shape for n, weight in result.items()} == wanted
    rows = parent_rows(theirs, ours, model.family)
    for n, weight in result.items():
        if n not in tables:
            assert torch.equal(weight, weights[n])
            continue
        for number in (140, 300, len(rows) - 1):
            torch.testing.assert_close(weight[number], weights[n][rows[number]].mean(dim=0))
        torch.testing.assert_close(weight[-1], weights[n][: theirs.vocab_size].mean(dim=0))  # no token has this row


def test_the_same_vocabulary_changes_nothing(definitions):
    theirs, _ = definitions
    model = fill(replace(TINY["llama"], vocab_size=None), theirs.vocab_size)
    weights = {n: p.detach() for n, p in build_model(model, SPECIAL_IDS, 0).named_parameters()}
    result = transfer_vocabulary(weights, model, SPECIAL_IDS, theirs, theirs)
    used = sorted(theirs.tokens)
    for n, weight in result.items():
        rows = used if n in vocabulary_tables(model, SPECIAL_IDS) else slice(None)
        assert torch.equal(weight[rows], weights[n][rows])


@pytest.fixture(scope="module")
def renamed_directory(tmp_path_factory):
    """The tiny corpus with a vocabulary of other merges, so that the same ids stand for other texts."""
    words = ["".join(letters) for letters in np.random.default_rng(2).choice(list("efghijkl"), (60, 6))]
    return build_corpus(tmp_path_factory.mktemp("renamed"), tokenizer=train_byte_bpe([" ".join(words)] * 3, 420))


SHORT = ["budget.steps=2", "schedule.warmup_steps=0", "batch.sequences=2", "validation.tokens=128", "log_every=1"]


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["run", "export", "hugging_face"])
def test_a_run_begins_with_the_transferred_weights(kind, unbroken, renamed_directory, tmp_path, capsys):
    parent = unbroken if kind == "run" else unbroken / "export"
    if kind == "hugging_face":
        parent = tmp_path / "hub"
        shutil.copytree(unbroken / "export", parent)
        (parent / "gristmill.json").unlink()
    words = ["pretrain", "llama_tiny", f"corpus={renamed_directory}", f"init.path={parent}", *SHORT]
    assert main([*words, f"run={tmp_path / 'refused'}"]) == 2
    assert "tokenizer" in capsys.readouterr().err
    run = tmp_path / "run"
    assert main([*words, "init.vocabulary=transfer", f"run={run}"]) == 0
    (begun,) = read_events(run / "log.jsonl", "init")
    assert begun["parent"]["kind"] == kind
    assert [event["step"] for event in read_events(run / "log.jsonl", "step")] == [1, 2]


@pytest.mark.deepspeed
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("alone")
def test_a_corpus_with_the_tokenizer_of_an_export_fits_a_run_that_begins_with_it(unbroken, tmp_path_factory, tmp_path):
    """The export's tokenizer file has additions for other libraries, but the tokens are the same."""
    file = unbroken / "export" / "tokenizer.json"
    assert file.read_bytes() != (unbroken / "tokenizer.json").read_bytes()
    corpus = build_corpus(tmp_path_factory.mktemp("exported"), tokenizer=file.read_bytes())
    words = ["pretrain", "llama_tiny", f"corpus={corpus}", f"init.path={unbroken / 'export'}", *SHORT]
    assert main([*words, f"run={tmp_path / 'run'}"]) == 0


def test_what_cannot_be_transferred_is_one_line(unbroken, renamed_directory, tmp_path, capsys):
    words = ["pretrain", "llama_tiny", f"corpus={renamed_directory}", f"run={tmp_path / 'run'}", *SHORT]
    words += [f"init.path={unbroken}", "init.vocabulary=transfer"]
    assert main([*words, "init.data=continue"]) == 2
    assert "vocabulary: got transfer, so the parent's optimizer state and samples do not fit" in capsys.readouterr().err
    export = tmp_path / "export"
    shutil.copytree(unbroken / "export", export)
    (export / "tokenizer.json").unlink()
    assert main([*words, f"init.path={export}"]) == 2
    error = capsys.readouterr().err
    assert "has no tokenizer.json" in error
    assert error.count("\n") == 1
