"""The T5 paper's table in small: its rows, the same text for all of them, and the command from end to end."""

import json

import pytest

from gristmill.errors import ConfigError
from trainers.__main__ import main
from trainers.data.packed_corpus import stream_length
from trainers.objectives.causal import Causal
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.span_corruption import SpanCorruption
from trainers.studies.t5_grid import cells, table

# Raffel et al. 2020, table 2, without the scores: architecture, objective, parameters, cost.
PUBLISHED = [
    (architecture, objective, parameters, cost)
    for objective in ("Denoising", "LM")
    for architecture, parameters, cost in [
        ("Encoder-decoder", "2P", "M"),
        ("Enc-dec, shared", "P", "M"),
        ("Enc-dec, half the layers", "P", "M/2"),
        ("Language model", "P", "M"),
        ("Prefix LM", "P", "M"),
    ]
]


def test_rows_are_the_papers():
    grid = cells()
    assert [(cell.architecture, cell.objective, cell.parameters, cell.cost) for cell in grid] == PUBLISHED
    assert len({cell.name for cell in grid}) == 10
    both, shared, half, language, prefix = (cell.config for cell in grid[:5])
    assert (shared.model.tied_stacks, half.model.layers) == (True, both.model.layers // 2)
    assert (both.model.layers, both.model.width) == (language.model.layers, language.model.width)
    noise = SpanCorruption(noise="tokens")
    assert [one.objective for one in (both, shared, half, language)] == [noise] * 4
    assert prefix.objective == SpanCorruption(noise="tokens", bidirectional_prefix=True)
    assert [cell.config.objective for cell in grid[5:]] == [*[PrefixLM()] * 3, Causal(), PrefixLM()]


@pytest.mark.parametrize("overrides", [(), ("data.sequence_length=64",), ("model.layers=4", "batch.sequences=3")])
def test_every_run_reads_rows_of_as_many_tokens(overrides):
    grid = cells((), overrides)
    assert len({stream_length(cell.config) for cell in grid}) == 1
    assert len({(cell.config.batch, cell.config.budget, cell.config.seed) for cell in grid}) == 1
    for cell in grid:
        assert cell.config.data.sequence_length <= cell.config.model.positions


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("objective=causal", "the rows of the grid set this field"),
        ("model.architecture=gpt2", "the rows of the grid set this field"),
        ("model.layers=3", "model.layers: got 3, allowed even numbers"),
        ("model.layerz=2", "did you mean 'layers'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        cells((), (setting,))


def test_the_table_is_laid_out_like_the_papers():
    rows = [
        {
            "architecture": a,
            "objective": o,
            "params": p,
            "cost": c,
            "parameters": 1234,
            "loss": 1.5,
            "unigram_loss": 2.0,
        }
        for a, o, p, c in PUBLISHED
    ]
    lines = table(rows).splitlines()
    assert lines[0].split() == ["Architecture", "Objective", "Params", "Cost", "parameters", "loss", "unigram"]
    assert lines[3].split("  ")[0] == "Enc-dec, half the layers"
    assert lines[3].split()[-5:] == ["P", "M/2", "1,234", "1.5000", "2.0000"]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_one_command_trains_the_grid_and_prints_it(corpus_directory, tmp_path, capsys, alone, monkeypatch):
    tiny = ["budget.steps=2", "batch.sequences=2", "execution.micro_batch=2", "validation.every=2", "log_every=2"]
    tiny += ["validation.tokens=128", "checkpoints.every=2", "schedule.warmup_steps=1", "data.sequence_length=32"]
    command = ["t5-grid", f"corpus={corpus_directory}", f"output={tmp_path}", *tiny]
    assert main(command) == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "grid.json").read_text())["rows"]
    assert [(row["architecture"], row["objective"], row["params"], row["cost"]) for row in rows] == PUBLISHED
    assert table(rows) in printed
    sizes = [row["parameters"] for row in rows]
    assert sizes[:5] == sizes[5:]
    assert sizes[0] > sizes[1] > sizes[2]
    assert (tmp_path / "report.html").exists()
    # A run that lost its mark of being finished continues from its last checkpoint; the others are not trained again.
    (tmp_path / "lm_prefix_lm" / "finished.json").unlink()
    assert main(command) == 0
    again = capsys.readouterr().out
    assert again.count("start  step 2") == 1
    assert again.count("finished") == 1
    assert table(rows) in again
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(command) == 2
