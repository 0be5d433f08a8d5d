"""Excluded documents keep their places in the rows and lose their targets. The tokens and targets of other
documents do not change.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gristmill.errors import UserError
from pipelines.contracts.document import file_key, split_id
from trainers.config.architecture import fill
from trainers.config.pretraining import Data
from trainers.data.packed_corpus import corpus_of, open_corpus, training_data
from trainers.data.sequence_documents import documents_of, ids_of
from trainers.engine.forward import Forward, tensors
from trainers.engine.losses import losses_of
from trainers.models import build_model
from trainers.recipes import RECIPES, llama_tiny
from trainers.rows.batch import IGNORED, PADDING
from trainers.runs.exclusion import exclude, read_excluded


@pytest.fixture(scope="module")
def corpus(corpus_directory):
    return open_corpus((str(corpus_directory),), None)


def data(corpus, length, excluded=frozenset(), packing="concatenate"):
    weights = dict.fromkeys(sorted(corpus.train), 1.0)
    return training_data(
        corpus, replace(llama_tiny(), data=Data(sequence_length=length, weights=weights, packing=packing)), excluded
    )


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
@pytest.mark.parametrize("length", [7, 64, 1000])
def test_each_segment_is_its_recorded_document(corpus, length, packing, tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path))
    read = data(corpus, length, packing=packing)
    samples = read.order.take(0, 40)
    batch = read.rows(samples)
    for row, (index, sequence) in enumerate(zip(samples.source, samples.sequence, strict=True)):
        source = read.sources[index]
        found = documents_of(source, int(sequence), length)
        held = batch.targets[row] != IGNORED
        assert len(found) == batch.segments[row][held].max() + 1
        for segment, (number, place) in enumerate(found):
            shard = source.shard(number)
            document = [*shard.tokens[shard.offsets[place] : shard.offsets[place + 1]].tolist(), 2]
            targets = batch.targets[row][(batch.segments[row] == segment) & held].tolist()
            assert targets
            assert targets in (document[start : start + len(targets)] for start in range(len(document)))
            if 0 < segment < len(found) - 1 and (packing == "concatenate" or len(document) <= length):
                assert targets == document


@pytest.mark.parametrize("packing", ["concatenate", "best_fit"])
def test_excluded_documents_lose_their_targets_and_every_other_token_stays(corpus, packing, tmp_path, monkeypatch):
    monkeypatch.setenv("GRISTMILL_CACHE", str(tmp_path))
    length, count = 64, 60
    whole = data(corpus, length, packing=packing)
    samples = whole.order.take(0, count)
    ids = [ids_of(whole.sources[s], int(n), length) for s, n in zip(samples.source, samples.sequence, strict=True)]
    excluded = frozenset({ids[0][0], ids[7][-1], ids[20][0]})
    one, other = whole.rows(samples), data(corpus, length, excluded, packing).rows(samples)
    for name in ("inputs", "positions", "source"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for row in range(count):
        out = [segment for segment, identifier in enumerate(ids[row]) if identifier in excluded]
        silenced = np.isin(one.segments[row], out)
        np.testing.assert_array_equal(other.targets[row][~silenced], one.targets[row][~silenced])
        assert (other.targets[row][silenced] == IGNORED).all()
        np.testing.assert_array_equal(other.segments[row], np.where(silenced, PADDING, one.segments[row]))
    assert (one.targets != other.targets).any()


@pytest.mark.parametrize("isolation", [True, False])
def test_what_an_excluded_document_says_reaches_no_other(corpus, isolation):
    """The tokens of an excluded document do not affect the losses of other documents, even if the documents
    of a row attend to one another.
    """
    length, count = 64, 12
    whole = data(corpus, length)
    samples = whole.order.take(0, count)
    ids = [ids_of(whole.sources[s], int(n), length) for s, n in zip(samples.source, samples.sequence, strict=True)]
    row = next(row for row, found in enumerate(ids) if len(found) > 2)
    excluded = frozenset({ids[row][1]})
    batch, segments = data(corpus, length, excluded).rows(samples), whole.rows(samples).segments
    out = np.array([[s >= 0 and found[s] in excluded for s in its] for its, found in zip(segments, ids, strict=True)])
    assert out.any()
    config = fill(llama_tiny().model, corpus.tokenizer.vocab_size)
    forward = Forward(build_model(config, corpus.tokenizer.specials, 0).eval(), config.architecture, isolation)
    said = replace(batch, inputs=np.where(out, 300, batch.inputs))
    assert (said.inputs != batch.inputs).any()
    with torch.no_grad():
        one, other, kept = (forward(**tensors(b, "cpu"))["loss"] for b in (batch, said, whole.rows(samples)))
    torch.testing.assert_close(one, other, atol=0, rtol=0)
    assert not one[torch.from_numpy(out)].any()
    rest = torch.from_numpy(~out)
    assert torch.allclose(one[rest], kept[rest], atol=1e-5) == isolation


def test_no_loss_of_an_objective_has_targets_in_excluded_documents(corpus_directory):
    recipe = RECIPES["tiny_spanbert"]()
    weights = {"plays": 1.0}
    recipe = replace(recipe, data=Data(corpora=(str(corpus_directory),), sequence_length=64, weights=weights))
    read = training_data(corpus_of(recipe), recipe)
    samples, length = read.order.take(0, 12), read.packed_phases[0].length
    excluded = frozenset(ids_of(read.sources[0], int(n), length)[0] for n in samples.sequence)
    whole, rows = read.rows(samples), replace(read, excluded=excluded).rows(samples)
    left = rows.segments != PADDING
    for loss in losses_of(recipe.objective.losses):
        assert (loss.targets(whole) & ~left).any()
        np.testing.assert_array_equal(loss.targets(rows), loss.targets(whole) & left)


def test_ids_are_kept_in_the_run_and_added_to(corpus, corpus_directory, tmp_path):
    run, file = tmp_path / "run", tmp_path / "garbage.txt"
    run.mkdir()
    assert read_excluded(run) == frozenset()
    first = corpus.train["plays"].shard(0).doc_ids[3].as_py()
    file.write_text(f"plays/train-0#3\n\n{first.hex()}\n")
    assert exclude(run, file, corpus) == 1
    file.write_text("\ufeffcode/train-0#7\r\n")  # as Windows writes it
    assert exclude(run, file, corpus) == 2
    assert first in read_excluded(run)
    assert (file_key("code", "train-0"), 7) in {split_id(identifier) for identifier in read_excluded(run)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("plays/train-9#3", r"'plays/train-9#3': in no training shard of the corpus"),
        ("plays/validation-0#0", "in no training shard of the corpus"),
        ("plays/a\u2028b\x85c#3", r"'plays/a\\u2028b\\x85c#3': in no training shard of the corpus"),
        ("nonsense", r"garbage\.txt, line 2: 'nonsense': not a document id"),
    ],
)
def test_lines_that_name_no_training_document_are_refused(corpus, tmp_path, line, message):
    (tmp_path / "garbage.txt").write_text(f"plays/train-0#3\n{line}\n")
    with pytest.raises(UserError, match=message):
        exclude(tmp_path, tmp_path / "garbage.txt", corpus)
    assert read_excluded(tmp_path) == frozenset()
