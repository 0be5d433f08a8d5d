"""Corpora that a study builds: what identifies them, what their runs read, and which metrics are comparable."""

import pytest

from gristmill.errors import ConfigError, UserError
from pipelines.contracts.manifest import load_corpus
from tests.trainers.studies.corpus_studies import build_variants, write_corpus_study
from tests.trainers.studies.study_files import opened, write_study
from trainers.__main__ import main
from trainers.studies.designs.study_entries import variants_of
from trainers.studies.running.build_corpora import corpora_lines
from trainers.studies.running.study_directory import load_study, root_of

WORDS = "steps.learn_tokenizer.vocab_size"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    file = write_corpus_study(tmp_path_factory.mktemp("corpora"))
    build_variants(file)
    return file


def test_each_entry_reads_its_own_corpus_in_proportion_to_its_tokens(file):
    study, _ = opened(file)
    runs = {run.entry: run for run in study.points}
    assert list(runs) == ["all", "long"]
    assert all(run.is_ready for run in study.points)
    corpora = {name: study.corpora.of(run.job) for name, run in runs.items()}
    assert corpora["all"].train["web"].tokens > corpora["long"].train["web"].tokens > 0
    for name, corpus in corpora.items():
        total = sum(source.tokens for source in corpus.train.values())
        assert runs[name].weights == pytest.approx({n: source.tokens / total for n, source in corpus.train.items()})
        assert runs[name].corpus == corpus.fingerprint
    assert study.metrics == ("held",)
    assert runs["all"].metrics.domains == ()  # all that is held out


def test_variants_share_the_steps_before_the_change(file):
    everything, long = (load_corpus(variant.manifest) for variant in variants_of(load_study(file)))
    shared = {step["directory"] for step in everything.steps} & {step["directory"] for step in long.steps}
    names = {directory.rpartition("-")[0] for directory in shared}
    assert names == {"read.web", "read.code", "read.held", *(f"quality_signals.{n}" for n in ("web", "code", "held"))}


def test_a_variant_is_named_by_its_fields_and_is_planned_until_it_exists(file, capsys):
    entries = "design.entries={all: {}, long: {corpus: {'steps.filter[0].at_least': 60}}, longer: {corpus: %s}}"
    study = load_study(file, [entries % "{'steps.filter[0].at_least': 80}"])
    lines = corpora_lines(study, root_of(study))
    assert [line.split(": ")[-1].split()[0] for line in lines] == ["built", "built", "to"]
    assert "steps.filter[0].at_least=80: to build" in lines[2]
    assert main(["study", "plan", str(file), entries % "{'steps.filter[0].at_least': 80}"]) == 0
    printed = capsys.readouterr().out
    assert "to build" in printed
    assert "proxies       6 runs, 6 to train: 24" in printed
    waiting = [run for run in opened(file, entries % "{'steps.filter[0].at_least': 80}")[0].points if not run.is_ready]
    assert [run.name for run in waiting] == ["longer/seed-0", "longer/seed-1"]
    same = load_study(file, ["design.entries={all: {}, same: {corpus: {'steps.filter[0].at_least': 5}}}"])
    assert len(variants_of(same)) == 1


def test_nothing_is_built_yet(tmp_path, capsys):
    file = write_corpus_study(tmp_path)
    assert main(["study", "plan", str(file)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("to build") == 2
    assert "`study run` builds these corpora first" in printed
    with pytest.raises(UserError, match=r"no corpus of .*small.yaml is built yet"):
        opened(file)
    assert not (tmp_path / "corpus").exists()


def test_a_grid_has_axes_of_the_corpus_file(file):
    grid = "design={kind: grid, axes: {model.layers: [1, 2]}, corpus: {'steps.filter[0].at_least': [5, 60]}, seeds: 2}"
    study, _ = opened(file, grid)
    assert len({run.entry for run in study.points}) == 4
    assert len({run.corpus for run in study.points}) == 2
    assert study.points[-1].entry == "model.layers=2,steps.filter[0].at_least=60"
    assert study.points[-1].job.model.layers == 2
    assert len(variants_of(study.study)) == 2


def test_metrics_compare_only_where_the_held_out_text_is_the_same(file):
    split = "design.entries={all: {corpus: {steps.shards.validation_share: 0.2}}, %s}"
    cut = "long: {corpus: {steps.shards.validation_share: 0.2, 'steps.filter[0].at_least': 60}}"
    build_variants(file, split % cut)
    study, _ = opened(file, split % cut)
    assert set(study.corpus.validation) == {"code", "held", "web"}
    assert study.metrics == ("code", "held")
    assert {run.metrics.domains for run in study.points} == {("code", "held")}
    with pytest.raises(ConfigError, match="the held-out text of web differs between the corpora"):
        opened(file, split % cut, "metrics.domains=[web]")


def test_tokenizers_compare_on_whole_documents(file):
    sizes = f"design={{kind: grid, corpus: {{{WORDS}: [400, 500]}}, seeds: 2}}"
    build_variants(file, sizes)
    with pytest.raises(ConfigError, match=r"metrics.measure: got bits_per_byte, .* have 2 tokenizers"):
        opened(file, sizes)
    study, _ = opened(file, sizes, "metrics.measure=document_bits_per_byte")
    assert len({run.corpus for run in study.points}) == 2


def test_a_mixture_design_builds_the_file_as_it_is(file):
    mixture = ["design={kind: swarm, runs: 12}", "target.tokens=20e3", "proposal.max_epochs=null"]
    study, _ = opened(file, *mixture)
    assert variants_of(study.study) == variants_of(load_study(file))[:1]
    assert study.domains == ("code", "web")


def test_weights_prior_caps_and_metrics_name_any_level(file):
    """The sources of the corpus are split by word count: `web` becomes `web:q1` and `web:q2`. The texts of
    any other source all have one length, so they are in q2.
    """
    groups = "corpus: {'steps.shards.group_by': [{column: word_count, quantiles: 2}]}"
    entries = (
        f"design.entries={{all: {{{groups}}}, more: {{{groups}, weights: {{web: 0.5, 'web:q2': 0.3, code: 0.2}}}}}}"
    )
    build_variants(file, entries)
    study, _ = opened(file, entries)
    assert study.domains == ("code:q2", "web:q1", "web:q2")
    assert study.metrics == ("held:q2",)
    more = next(run for run in study.points if run.entry == "more")
    assert more.weights == pytest.approx({"code:q2": 0.2, "web:q1": 0.5, "web:q2": 0.3})
    sizes = {name: source.tokens for name, source in study.corpus.train.items()}
    limits = ["proposal.prior={web: 0.6, code: 0.4}", "proposal.floors={web: 0.2}", "proposal.weights={held: 1}"]
    study, _ = opened(
        file, entries, *limits, "metrics.domains=[held]", "target.tokens=10e3", "proposal.max_epochs={web: 2}"
    )
    web = sizes["web:q1"] + sizes["web:q2"]
    assert study.prior == pytest.approx([0.4, 0.6 * sizes["web:q1"] / web, 0.6 * sizes["web:q2"] / web])
    assert study.constraints.lower[1:].sum() == pytest.approx(0.2)
    assert study.constraints.upper[1:] == pytest.approx([min(1, 2 * sizes[f"web:q{i}"] / 10e3) for i in (1, 2)])
    assert study.metrics == ("held:q2",)
    with pytest.raises(ConfigError, match=r"design: more.wob: no such domain; did you mean 'web'"):
        opened(file, entries.replace("{web: 0.5", "{wob: 0.5"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["corpora=[x]"], "corpora: set either corpora, to directories"),
        (["corpus_file=null"], "corpora: set either corpora, to directories"),
        (["corpus_file=none.yaml"], "none.yaml: no such file"),
        (["design.entries.long.corpus={output: x}"], "design: long.corpus.output: cannot differ between entries"),
        (["design.entries.long.corpus={steps.filtr.at_least: 3}"], "steps.filtr: no such entry; did you mean 'filter'"),
        (["design.entries.all.weights={maths: 1}"], "design: all.maths: no such domain; there are: code, web"),
    ],
)
def test_changes_that_do_not_fit_are_one_line(file, overrides, message):
    with pytest.raises(ConfigError, match=message):
        opened(file, *overrides)


def test_changes_need_a_corpus_file(tmp_path, corpus_directory):
    grid = "design={kind: grid, corpus: {steps.dedup_exact.where: [a, b]}}"
    with pytest.raises(ConfigError, match=r"corpus: needs a corpus file to change; set corpus_file"):
        opened(write_study(tmp_path, corpus_directory), "confirmation=null", grid)
