"""The studies of table 2 of the T5 paper: its ten rows, as many tokens for every row, and losses that cannot
be compared.
"""

from pathlib import Path

import pytest

from gristmill.errors import ConfigError
from tests.trainers.studies.study_files import opened
from trainers.data.packed_corpus import stream_length
from trainers.objectives.causal import Causal
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.spans.span_corruption import SpanCorruption
from trainers.runs.resolve import resolve
from trainers.studies.planning.plan_study import plan_study

FOLDER = Path(__file__).parents[3] / "corpora_configs" / "studies"
NAMES = ("encoder_decoder", "shared", "half_the_layers", "language_model", "prefix_lm")


@pytest.fixture(params=["t5_denoising", "t5_language_models"])
def study(request, corpus_directory, tmp_path):
    return opened(FOLDER / f"{request.param}.yaml", f"corpora=[{corpus_directory}]", f"output={tmp_path}")[0]


def test_entries_are_the_rows_of_the_paper(study):
    assert tuple(study.entries) == NAMES
    jobs = {name: entry.job for name, entry in study.entries.items()}
    both, shared, half, language, prefix = (jobs[name].model for name in NAMES)
    assert [model.family for model in (both, shared, half)] == ["encoder_decoder"] * 3
    assert (shared.tied_stacks, shared.layers) == (True, both.layers)
    assert (half.tied_stacks, half.layers) == (both.tied_stacks, both.layers // 2)
    assert (language.family, language.layers, language.width) == ("decoder", both.layers, both.width)
    assert (prefix.architecture, prefix.layers, prefix.width) == (language.architecture, both.layers, both.width)
    noise = SpanCorruption(noise="tokens")
    published = {
        "t5_denoising": [*[noise] * 4, SpanCorruption(noise="tokens", bidirectional_prefix=True)],
        "t5_language_models": [*[PrefixLM()] * 3, Causal(), PrefixLM()],
    }
    assert [jobs[name].objective for name in NAMES] == published[study.study.name]


def test_every_run_reads_rows_of_as_many_tokens_and_as_many_of_them(study):
    jobs = [resolve(run.job, study.corpus) for run in study.points]
    assert len({stream_length(job) for job in jobs}) == 1
    assert {run.job.budget.tokens for run in study.points} == {400_000}
    assert len({job.batch.sequences for job in jobs}) == 1
    assert all(job.data.sequence_length <= job.model.positions for job in jobs)


def test_losses_of_different_targets_are_not_compared(corpus_directory, tmp_path):
    file = FOLDER / "t5_language_models.yaml"
    study, root = opened(file, f"corpora=[{corpus_directory}]", f"output={tmp_path}", "metrics.measure=loss")
    message = "metrics.measure: got loss, but encoder_decoder learns prefix_lm and language_model causal, whose targets differ"
    with pytest.raises(ConfigError, match=message):
        plan_study(study, root, 1)
