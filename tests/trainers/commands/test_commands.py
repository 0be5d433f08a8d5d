"""The command line: it starts fast, and reports errors that users can fix in one clear line."""

import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.errors import ConfigError
from gristmill.storage.store import write_json
from trainers.__main__ import main
from trainers.commands.settings import read_weights
from trainers.config.pretraining import Data, MixtureStage

ROOT = Path(__file__).parents[3]


def test_help_loads_nothing_heavy():
    heavy = "{'torch', 'ray', 'deepspeed', 'transformers', 'numba', 'pyarrow', 'numpy'}"
    code = f"import sys, trainers.__main__ as m; m.parser(); sys.exit(str({heavy} & set(sys.modules) or ''))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain", "bert"], "'bert': no such recipe; there are demo_decoder"),
        (["pretrain", "llama_tiny"], "data.corpora: names no corpus; give corpus=DIRECTORY"),
        (["pretrain", "llama_tiny", "corpus=/nowhere"], "/nowhere/manifest.json: no corpus here"),
        (["pretrain", "llama_tiny", "model.layer=3"], "model.layer: no such field in Model; did you mean 'layers'?"),
        (["pretrain", "llama_tiny", "--workers", "0"], "--workers: got 0, allowed 1 or more"),
        (["pretrain", "llama_tiny", "--workers", "1", "corpus=/nowhere"], "/nowhere/manifest.json: no corpus here"),
        (["pretrain", "missing.yaml"], "missing.yaml: no such file"),
        (["evaluate", "/nowhere", "korpus=x"], "'korpus=x': expected suite=, task=, text=, corpus=, data="),
        (["evaluate", "/nowhere"], "/nowhere: no run here"),
        (["generate", "/nowhere"], "/nowhere: no run here"),
        (["generate", "/nowhere", "--top-p", "2"], "generate: top_p: got 2.0"),
        (["export", "/nowhere"], "/nowhere: no run here"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["pretrain", "llama_tiny", "--wrkers", "2"], ["export", "a", "b=c"]])
def test_arguments_that_no_command_knows_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert "error: " in capsys.readouterr().err


def test_weights_of_the_data_and_of_its_stages_are_read_from_files(tmp_path):
    file = tmp_path / "proposal.yaml"
    file.write_text("weights: {web: 0.7, books: 0.3}")
    data = read_weights(Data(weights="uniform", stages=(MixtureStage(10, str(file)), MixtureStage(20, "uniform"))))
    assert [stage.weights for stage in data.stages] == [{"web": 0.7, "books": 0.3}, "uniform"]
    assert data.weights == "uniform"
    assert read_weights(Data(weights=str(file))).weights == {"web": 0.7, "books": 0.3}
    file.write_text("shares: {}")
    with pytest.raises(ConfigError, match=r"^data\.stages\[0\]\.weights: .* has no mapping `weights`"):
        read_weights(Data(stages=(MixtureStage(10, str(file)),)))


@pytest.mark.long
def test_a_finished_run_recomputes_nothing_without_loading_torch(corpus_directory, tmp_path):
    from trainers.data.packed_corpus import open_corpus
    from trainers.recipes import llama_tiny
    from trainers.runs.resolve import resolve
    from trainers.runs.run import open_run

    corpus = open_corpus((str(corpus_directory),), None)
    open_run(tmp_path / "run", resolve(llama_tiny(), corpus), corpus)
    write_json(tmp_path / "run" / "finished.json", {"step": 100, "tokens": 1})
    arguments = ["pretrain", "llama_tiny", f"corpus={corpus_directory}", f"run={tmp_path / 'run'}"]
    code = f"import sys, trainers.__main__ as m; r = m.main({arguments}); sys.exit(r or 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished at step 100, nothing to do" in done.stdout
