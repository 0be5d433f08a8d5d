"""A selection of the fine-tuning matrix, the page that shows the whole matrix, and the pairwise cover."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.trainers.adapters.finetuning_cells import AXES, Matrix, every_cell, is_sensible, pairs_of, pairwise_cover
from trainers.config.architecture import ARCHITECTURES
from trainers.inference import base

PAGE = Path(__file__).parents[3] / "docs" / "finetuning_matrix.md"
SENSIBLE = [cell for cell in every_cell() if is_sensible(*cell)]
CELLS = pairwise_cover(SENSIBLE)
REFUSED = {
    ("bitfit", "llama", "tag"): "method.kind: got bitfit, which trains biases, and llama has none",
    ("features", "t5", "generate"): "method.kind: got features, which trains only the head of the task",
    ("lora", "awd_lstm", "tag"): "method.kind: got lora, which adapts a transformer, and awd_lstm is none",
    ("head", "gpt", "generate"): "method.kind: got head, which trains only the head of the task",
    ("lora", "bert", "generate"): "tasks: toy is of kind generate, bert is an encoder and writes no text",
}


@pytest.fixture(scope="module")
def matrix(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRISTMILL_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(base, "published_weights", cache(base.published_weights))  # cells share a few bases
        yield Matrix(tmp_path_factory.mktemp("matrix"))


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("cell", CELLS, ids=" ".join)
def test_a_cell_trains_is_loaded_and_predicts_the_same(cell, matrix):
    assert matrix.make(*cell) is None


@pytest.mark.long
@pytest.mark.parametrize(("cell", "reason"), REFUSED.items(), ids=map(" ".join, REFUSED))
def test_a_cell_that_makes_no_sense_says_why(cell, reason, matrix):
    assert not is_sensible(*cell)
    assert matrix.make(*cell).reason.startswith(reason)


def test_the_selection_covers_every_pair_that_any_cell_covers():
    covered = set().union(*map(pairs_of, CELLS))
    assert covered == set().union(*map(pairs_of, SENSIBLE))
    left_out = {pair for cell in every_cell() for pair in pairs_of(cell)} - covered
    encoders = [name for name, traits in ARCHITECTURES.items() if traits.family == "encoder"]
    assert left_out == {
        *(((0, "bitfit"), (1, name)) for name in ("llama", "modernbert", "t5")),
        *(((0, method), (1, name)) for method in ("prefix", "p_tuning_v2") for name in ("deberta", "deberta_v2")),
        *(
            ((0, method), (1, "canine"))
            for method in ("prefix", "p_tuning_v2", "prompt", "p_tuning", "multitask_prompt")
        ),
        *(
            ((0, method), (1, "xlnet"))
            for method in ("prefix", "p_tuning_v2", "lora", "adalora", "loha", "lokr", "ia3")
        ),
        ((0, "adapter"), (1, "xlnet")),
        *(
            ((0, method), (1, name))
            for name in ("awd_lstm", "elmo", "gru")
            for method in AXES[0]
            if method not in ("bitfit", "features", "full", "head")
        ),
        *(((0, method), (2, "generate")) for method in ("features", "head")),
        *(((1, name), (2, "generate")) for name in encoders),
    }
    assert len(CELLS) < len(SENSIBLE) / 4


def test_the_page_shows_every_cell_of_the_product():
    """If this test fails, run `python docs/finetuning_matrix.py` to update the page."""
    parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.M)[1:]
    tables = dict(zip(parts[::2], parts[1::2], strict=True))
    reasons = re.findall(r"^\d+\. .+$", tables.pop("Why not"), re.M)
    assert tuple(tables) == AXES[2]
    shown = {}
    for kind, table in tables.items():
        header, _, *rows = [
            [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.split("\n") if "|" in line
        ]
        for method, *outcomes in rows:
            shown |= {(method, name, kind): outcome for name, outcome in zip(header[1:], outcomes, strict=True)}
    assert list(shown) == [(method, name, kind) for kind in AXES[2] for method in AXES[0] for name in AXES[1]]
    for cell, outcome in shown.items():
        assert (outcome == "yes") == is_sensible(*cell), cell
        assert outcome == "yes" or 1 <= int(outcome) <= len(reasons)
