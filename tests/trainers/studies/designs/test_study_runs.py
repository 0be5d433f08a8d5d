"""The runs of a study: what identifies them, what they read, and invalid study files."""

from dataclasses import replace

import pytest

from gristmill.config import plain
from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import digest, write_json
from tests.trainers.studies.study_files import opened, write_study
from trainers.config.pretraining import MixtureStage
from trainers.runs.resolve import identity
from trainers.studies.designs.study_entries import study_entries, variant_of
from trainers.studies.running.study_directory import load_study
from trainers.studies.schema.study_designs import Listed, ListEntry


@pytest.fixture
def file(tmp_path, corpus_directory):
    return write_study(tmp_path, corpus_directory)


def test_the_first_anchor_is_the_first_mixture(file):
    study, _ = opened(file)
    assert (len(study.points), len(study.anchors), len(study.proxies)) == (25, 3, 27)
    assert study.points[0].key == study.anchors[0].key
    assert len({run.key for run in study.proxies}) == 27
    assert {run.job.seed for run in study.points} == {0}


def test_a_key_depends_on_what_is_computed_and_on_nothing_else(file):
    study, _ = opened(file)
    keys = [run.key for run in study.proxies]
    for same in (
        "name=other",
        "question=why",
        "settings.log_every=7",
        "settings.execution.compile=true",
        "laws=[linear]",
    ):
        assert [run.key for run in opened(file, same)[0].proxies] == keys
    for other in (
        "proxies.tokens=6e3",
        "settings.model.layers=3",
        "metrics.last=3",
        "target.tokens=60e3",
    ):
        assert not set(keys) & {run.key for run in opened(file, other)[0].proxies}
    other_seed = {run.key for run in opened(file, "proxies.seed=1")[0].proxies}
    assert set(keys) & other_seed == {run.key for run in study.anchors[1:]}
    more = [run.key for run in opened(file, "design.runs=30")[0].proxies]
    assert set(keys) < set(more)  # a longer swarm begins with the shorter one


def test_a_key_depends_on_the_weights_that_a_run_begins_with(file, tmp_path):
    export, keys = LocalPath(tmp_path / "export"), []
    entries = f"entries: {{a: {{}}, b: {{settings: {{init.path: {export}}}}}}}"
    for checkpoint in ("one", "two", "one"):
        export.mkdir(exist_ok=True)
        write_json(export / "gristmill.json", {"checkpoint": checkpoint})
        study, _ = opened(file, "confirmation=null", f"design={{kind: list, baseline: a, seeds: 2, {entries}}}")
        keys.append({run.name: run.key for run in study.points})
    assert keys[0] == keys[2]
    assert [name for name in keys[0] if keys[0][name] != keys[1][name]] == ["b/seed-0", "b/seed-1"]


def test_keys_of_runs_of_one_kind_are_those_of_their_jobs(file):
    study, _ = opened(
        file,
        "confirmation=null",
        "design={kind: grid, axes: {model.layers: [1, 2], data.weights: [unimax, {code: 1}]}}",
    )
    for run in (*study.points, *opened(file)[0].proxies):
        assert run.key == digest([identity(run.job), plain(run.metrics), run.corpus])[:16]


def test_a_matched_proxy_reads_its_share_of_the_target(file):
    study, _ = opened(file)
    assert study.points[0].job.data.subset == pytest.approx(0.1)
    assert study.candidate("prior", {"code": 1.0}, 0).job.data.subset == pytest.approx(0.2)
    assert opened(file, "proxies.matched=false")[0].points[0].job.data.subset == 1
    assert opened(file, "target.tokens=100")[0].points[0].job.data.subset == 1
    entries = "{a: {}, longer: {settings: {budget.tokens: 10e3}}, own: {settings: {data.subset: 0.3}}}"
    study, _ = opened(file, "confirmation=null", f"design={{kind: list, baseline: a, seeds: 2, entries: {entries}}}")
    assert [run.job.data.subset for run in study.points[::2]] == pytest.approx([0.1, 0.2, 0.3])


def test_leaving_out_each_domain(file):
    compared = ["confirmation=null", "design={kind: leave_one_out, seeds: 2}"]
    study, _ = opened(file, *compared)
    entries = {run.entry: run.weights for run in study.points}
    assert list(entries) == ["prior", "without-code", "without-notes", "without-plays"]
    assert entries["without-code"]["code"] == 0
    assert sum(entries["without-code"].values()) == pytest.approx(1)
    assert [run.job.seed for run in study.points[:4]] == [0, 1, 0, 1]
    assert study.anchors == ()


def test_a_grid_and_a_list_change_fields_of_the_job(file):
    grid = "design={kind: grid, axes: {model.layers: [1, 2], optimizer.learning_rate: [0.001, 0.01]}, seeds: 2}"
    study, _ = opened(file, "confirmation=null", grid)
    assert len(study.points) == 8
    assert study.points[0].entry == "model.layers=1,optimizer.learning_rate=0.001"
    assert (study.points[-1].job.model.layers, study.points[-1].job.optimizer.learning_rate) == (2, 0.01)
    with pytest.raises(ConfigError, match=r"two combinations have the name init\.data=null; values such as"):
        opened(file, "confirmation=null", "design={kind: grid, axes: {init.data: [null, 'null']}}")
    entries = "{small: {}, large: {settings: {model.layers: 4}}, code: {weights: {code: 1}}, gpt: {recipe: tiny_gpt2}}"
    study, _ = opened(file, "confirmation=null", f"design={{kind: list, baseline: small, entries: {entries}}}")
    by_entry = {run.entry: run for run in study.points}
    assert by_entry["large"].job.model.layers == 4
    assert by_entry["code"].weights == {"code": 1}
    assert by_entry["gpt"].job.model.architecture == "gpt2"


def test_an_entry_that_sets_the_weights_of_its_job_is_listed_with_their_mixture(file):
    entries = "{a: {}, b: {settings: {data.weights: uniform}}, c: {settings: {data.weights: {code: 3, plays: 1}}}}"
    study, _ = opened(file, "confirmation=null", f"design={{kind: list, baseline: a, seeds: 2, entries: {entries}}}")
    prior, uniform, own = study.points[::2]
    assert prior.weights == prior.job.data.weights == study.prior_mixture
    assert (uniform.job.data.weights, uniform.weights) == ("uniform", {"code": 1, "notes": 1, "plays": 1})
    assert own.weights == own.job.data.weights == {"code": 3, "plays": 1}
    with pytest.raises(ConfigError, match=r"data\.weights\.cod: no such source .* did you mean 'code'\?"):
        _ = opened(file, "confirmation=null", LIST.replace("FIELD: 1", "data.weights: {cod: 1}"))[0].points


def test_an_entry_may_read_its_data_in_an_order_of_its_own(file):
    stages = "data.stages: [{until_tokens: 2000, weights: {plays: 1}}]"
    entries = f"{{a: {{}}, b: {{weights: {{code: 1}}, settings: {{{stages}}}}}}}"
    order = ["confirmation=null", f"design={{kind: list, baseline: a, entries: {entries}}}"]
    shuffled, ordered = (
        next(run.job for run in opened(file, *order)[0].points if run.entry == name) for name in ("a", "b")
    )
    assert shuffled.data.stages == ()
    assert ordered.data.stages == (MixtureStage(2000, {"plays": 1.0}),)
    assert ordered.data.weights == {"code": 1}
    with pytest.raises(
        ConfigError, match=r"design: b\.data\.stages: the study has anneal, which sets them; remove one"
    ):
        opened(file, *order, "anneal=0.2")


def test_values_may_have_any_character(file, tmp_path):
    text = "\U0001d4b3\u2028\x7f"
    study = replace(
        load_study(file), design=Listed({"a": ListEntry(), "b": ListEntry({"data.weights": {text: 1}})}, "a")
    )
    assert study_entries(study)["b"].job.data.weights == {text: 1.0}
    (tmp_path / "c.yaml").write_text("output: out\n")
    study = replace(study, corpus_file=str(tmp_path / "c.yaml"), corpora=())
    assert variant_of(study, {"name": text}).key == digest({"name": text})[:16]


LIST = "design={kind: list, baseline: a, entries: {a: {}, b: {settings: {FIELD: 1}}}}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["design.runs=4"], "design: has 4 mixtures and the prior; the law log_linear of 3 domains needs 10"),
        (["laws=[cubic]"], "laws: got 'cubic', allowed log_linear"),
        (["recipe=lama"], "recipe: got 'lama', allowed"),
        (["settings={seed: 3}"], "settings.seed: is set by the study; set proxies.seed"),
        (["settings={data.stages: []}"], "settings.data.stages: is set by the study; set anneal, or data.stages of an"),
        (["settings={data.weights: {code: 1}}"], "settings.data.weights: is set by the study"),
        (["settings={model.layerz: 3}"], "did you mean 'layers'"),
        (["proposal.floors={maths: 0.1}"], "floors.maths: no such domain; the runs have code, notes, plays"),
        (["proposal.prior={code: 1}"], "prior.notes: missing"),
        (["proposal.weights={maths: 1}"], "weights.maths: no such metric; there are code, plays"),
        (["metrics.domains=[notes]"], "metrics.domains: got 'notes', domains with held-out text are code, plays"),
        (["confirmation.own.more_code={maths: 1}"], "confirmation.own.more_code.maths: no such domain"),
        (["confirmation.own.more_code={code: 0}"], "own.more_code: all are 0"),
        (["confirmation.own.more_code={code: -1}"], "own.more_code.code: got -1.0, allowed 0 or more"),
        (["confirmation.candidates=[proposal, best]"], "candidates: got 'best', allowed proposal, prior"),
        (["confirmation.baseline=uniform"], "baseline: got 'uniform', allowed one of the candidates"),
        (["confirmation.seeds=1"], "seeds: got 1, allowed 2 to 10,000"),
        (["confirmation.seeds=9999999999999999"], "seeds: got 9999999999999999, allowed 2 to 10,000"),
        (["design.runs=9999999999999999"], "runs: got 9999999999999999, allowed 2 to 10,000"),
        (["design.seed=-1"], "seed: got -1, allowed 0 or more"),
        (["proxies.anchors=9999999999999999"], "anchors: got 9999999999999999, allowed 2 to 10,000"),
        (["target=null"], "target: missing; a design of kind swarm needs target.tokens"),
        (["design={kind: leave_one_out}"], "confirmation: the design leave_one_out compares its runs itself"),
        (["design={kind: swarms}"], "expected one of 'swarm'|design.kind: got 'swarms'"),
        (["confirmation=null", LIST.replace("FIELD", "seed")], "design: b.seed: is set by the study"),
        (["confirmation=null", LIST.replace("FIELD", "model.layerz")], "did you mean 'layers'"),
        (["confirmation=null", LIST.replace("FIELD: 1", "init.path: nowhere")], "init.path: .*nowhere has no run.json"),
        (["confirmation=null", "design={kind: grid, axes: {model.layers: [2, 2.0]}}"], "expected different values"),
        (["answered_by=notes"], "answered_by: got 'notes', allowed the candidates or entries .*: proposal, more_code"),
        (["corpora=[]"], "corpora: set either corpora, to directories"),
        (["proxies.anchors=1"], "anchors: got 1, allowed 2 to 10,000"),
    ],
)
def test_a_study_that_does_not_fit_is_an_error_of_one_line(file, overrides, message):
    with pytest.raises(UserError, match=message) as error:
        _ = opened(file, *overrides)[0].points
    assert "\n" not in str(error.value)


def test_a_corpus_of_one_domain_has_no_mixtures(file, corpus_directory):
    study, _ = opened(file)
    alone = replace(study.corpus, train={"code": study.corpus.train["code"]})
    with pytest.raises(ConfigError, match="leave 1 of 1 domains free"):
        _ = replace(study, corpus=alone, settings=replace(study.settings, tokens={"code": 10})).points
