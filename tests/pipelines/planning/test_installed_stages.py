"""Stages of other packages, tested with the template of the docs as if it were installed."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import pipelines
from gristmill.errors import ConfigError, UserError
from gristmill.libraries.provenance import _provenance, check_code, provenance
from pipelines.__main__ import main
from pipelines.building import annotate
from pipelines.contracts.stage import CorpusStage, PartStage
from pipelines.planning.corpus import load_corpus_config

TEMPLATE = Path(__file__).parents[3] / "docs" / "own_stage"
CORPUS = """
name: loud
output: {root}/out
sources:
  - {{name: web, root: {root}/web, format: text}}
steps:
  - {stage}: {{shortest: 3}}
  - filter: [{{signal: shouts, at_most: 0.3, null: keep}}]
"""


def install(root, name="shouting", version="1.0", point="shouts = shouting:Shouts", module=None):
    info = root / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[gristmill.stages]\n{point}\n")
    (info / "top_level.txt").write_text(f"{module or name}\n")
    (info / "RECORD").write_text(f"{module or name}/__init__.py,,\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    site = tmp_path / "site"
    shutil.copytree(TEMPLATE / "shouting", site / "shouting")
    install(site)
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("shouting", None)
    _provenance.cache_clear()


def corpus_file(root, stage="shouting:shouts"):
    (root / "web").mkdir(exist_ok=True)
    (root / "web" / "a.txt").write_text("THIS IS ALL SHOUTED OUT LOUD")
    (root / "web" / "b.txt").write_text("This is said in a LOUD but even voice, and not shouted")
    (root / "web" / "c.txt").write_text("1 2 3")
    (root / "corpus.yaml").write_text(CORPUS.format(root=root, stage=stage))
    return root / "corpus.yaml"


def test_the_template_measures_and_a_filter_decides(site, tmp_path, capsys):
    corpus = pipelines.build(corpus_file(tmp_path), in_process=True)
    rows = corpus.verdicts(["shouts"]).read_all().sort_by("id").to_pylist()
    assert [(row["drop"], row["shouts"]) for row in rows] == [
        ("shouts", 1.0),
        (None, pytest.approx(1 / 8)),
        (None, None),
    ]
    capsys.readouterr()
    assert main(["plan", str(tmp_path / "corpus.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "shouts: shouting 1.0, source" in shown
    assert "0 will run" in shown


def test_changed_code_runs_again_and_a_changed_version_too(site, tmp_path):
    """The steps that depend on the stage run again as well, but sources are not read again."""
    file = corpus_file(tmp_path)
    before = steps(pipelines.build(file, in_process=True))
    code = site / "shouting" / "__init__.py"
    code.write_text(code.read_text() + "\n# another line\n")
    forget(site)
    changed = steps(pipelines.build(file, in_process=True))
    assert {name for name in before if before[name] != changed[name]} == {"shouts.web", "filter.web", "funnel"}
    shutil.rmtree(site / "shouting-1.0.dist-info")
    install(site, version="1.1")
    forget(site)
    assert steps(pipelines.build(file, in_process=True))["shouts.web"] != changed["shouts.web"]


def steps(corpus):
    return {entry["step"]: entry["fingerprint"] for entry in corpus.corpus.manifest.steps}


def forget(site):
    import importlib

    sys.modules.pop("shouting", None)
    importlib.invalidate_caches()
    _provenance.cache_clear()
    annotate._READY.clear()


def test_a_worker_with_other_code_ends_the_build(site, tmp_path, monkeypatch):
    other = {"shouting": "0.9", "source": "0123456789abcdef"}
    monkeypatch.setattr("gristmill.libraries.provenance.provenance", lambda stage: other)
    with pytest.raises(
        UserError, match=r"shouts: a worker has other code .*\(shouting 0.9, source 0123456789ab, planned"
    ):
        pipelines.build(corpus_file(tmp_path), in_process=True)


@dataclass(frozen=True)
class Longest(CorpusStage):
    def reads(self):
        return (pipelines.TEXT,)

    def run(self, parts, out, cluster):
        return {"longest": max(length for _, length in cluster.map(longest_of, parts, lambda part: part.name))}


def longest_of(part):
    return max(map(len, part.table(["text"])["text"].to_pylist()))


@pytest.mark.long
def test_tasks_of_a_corpus_stage_check_their_worker_too(tmp_path, monkeypatch):
    file = corpus_file(tmp_path, "length")
    file.write_text(file.read_text() + "  - longest: {}\n")
    own = {"length": Length, "longest": Longest}
    corpus = pipelines.build(file, stages=own, in_process=True)
    assert next(step for step in corpus.corpus.steps if step.label == "longest").manifest.facts == {"longest": 54}
    other = tmp_path / "other"
    monkeypatch.setattr(
        "pipelines.building.same_code.check_code", lambda *given: check_code(*given[:2], {"source": "another source"})
    )
    with pytest.raises(UserError, match=r"longest: a worker has other code .* planned with source another sour\)"):
        pipelines.build(file, [f"output={other}"], stages=own, in_process=True)


def test_the_command_documents_it(site, capsys):
    assert main(["stages", "shouting:shouts"]) == 0
    assert "share of words in capitals" in capsys.readouterr().out
    assert main(["stages"]) == 0
    assert "shouting:shouts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ("shouting:shout", "no installed package has this stage; did you mean 'shouting:shouts'?"),
        (
            "nothing:alike",
            "no installed package has this stage; there are: broken:stage, odd:stage, shouting:shouts, twice:stage",
        ),
        (
            "twice:stage",
            "twice 1.0 declares this stage 2 times: shouting:Shouts and shouting:dataclass; give each a name of its own",
        ),
        ("shouting", "no such stage"),
        ("broken:stage", r"cannot be imported \(ModuleNotFoundError"),
        ("odd:stage", "expected a frozen dataclass on PartStage or CorpusStage"),
    ],
)
def test_stages_that_cannot_be_used_are_refused(site, tmp_path, stage, message):
    install(site, "broken", point="stage = nowhere:Stage")
    install(site, "odd", point="stage = shouting:dataclass")
    install(site, "twice", point="stage = shouting:Shouts\nstage = shouting:dataclass")
    with pytest.raises(ConfigError, match=f"corpus.yaml: steps\\[0\\].*{message}"):
        load_corpus_config(corpus_file(tmp_path, stage))


def test_a_module_with_two_owners_is_refused(site, tmp_path):
    """A second package has overwritten the module of the first."""
    install(site, "yelling", module="shouting")
    with pytest.raises(ConfigError, match="the module shouting belongs to shouting and yelling; uninstall all but one"):
        load_corpus_config(corpus_file(tmp_path))


def test_knobs_are_checked(site, tmp_path):
    with pytest.raises(ConfigError, match="shortest: got 0, expected 1 or more"):
        load_corpus_config(corpus_file(tmp_path), ["steps[0].shouting:shouts.shortest=0"])


@dataclass(frozen=True)
class Length(PartStage):
    shortest: int = 0

    def reads(self):
        return (pipelines.TEXT,)

    def writes(self):
        return pa.schema([("shouts", pa.float32())])

    def annotate(self, docs):
        return pa.table(
            [pa.array([len(text) / 100 for text in docs["text"].to_pylist()], pa.float32())], schema=self.writes()
        )


@pytest.mark.long
def test_a_class_of_a_script_needs_no_package(tmp_path):
    corpus = pipelines.build(corpus_file(tmp_path, "length"), stages={"length": Length}, in_process=True)
    assert corpus.verdicts(["shouts"]).read_all()["shouts"].to_pylist() == pytest.approx([0.28, 0.54, 0.05])
    assert set(provenance(Length())) == {"source"}
    with pytest.raises(ConfigError, match="the name of one of gristmill's stages; give Length another"):
        load_corpus_config(corpus_file(tmp_path, "text_hash"), stages={"text_hash": Length})
    with pytest.raises(ConfigError, match="has a colon; give Length another"):
        load_corpus_config(corpus_file(tmp_path), stages={"shouting:shouts": Length})


@dataclass(frozen=True)
class Careless(Length):
    """A stage whose `reads` returns a column's name instead of a `Column`."""

    def reads(self):
        return ("url",)


def test_a_stage_that_reads_names_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"reads 'url', expected Column\('url'\), TEXT or EDITED_TEXT"):
        load_corpus_config(corpus_file(tmp_path, "careless"), stages={"careless": Careless})


def test_our_own_stages_have_no_provenance():
    from pipelines.stages.measure.text_hash import TextHash

    assert provenance(TextHash()) == {}
