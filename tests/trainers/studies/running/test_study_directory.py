"""The directory of a study: the decision rule is fixed before the first run, and other changes to the study
file are reported.
"""

import pytest

from gristmill.errors import ConfigError, ConflictError
from gristmill.storage.store import read_json
from tests.trainers.studies.study_files import finish, opened, write_study
from trainers.studies.running.study_directory import REGISTERED, RUNS, load_study, register, results_of, root_of


@pytest.fixture
def file(tmp_path, corpus_directory):
    return write_study(tmp_path, corpus_directory)


def test_a_study_is_read_from_its_file_and_from_its_directory(file):
    study, root = opened(file, "metrics.last=3")
    assert register(study.study, root) == []
    assert load_study(root) == study.study
    with pytest.raises(ConfigError, match=r"holds no study.yaml"):
        load_study(root.parent)
    with pytest.raises(ConfigError, match="did you mean 'proxies'"):
        load_study(file, ["proxiess={tokens: 3}"])


def test_the_directory_of_a_study_may_be_moved(file):
    study, root = opened(file)
    register(study.study, root)
    finish(root, study.proxies)
    moved = root.rename(root.parent / "moved")
    found = load_study(moved)
    assert root_of(found) == moved
    assert len(results_of(root_of(found), study.proxies)) == len(study.proxies)
    assert register(found, moved) == [f"output: {str(root)!r} -> {str(moved)!r}"]
    assert root_of(load_study(moved, ["output=elsewhere"])).name == "elsewhere"
    assert not root.exists()
    edited = moved / "study.yaml"
    edited.write_text(edited.read_text().replace(f"output: {moved}", 'output: "\\0"'))
    assert load_study(moved).output == "\0"  # refused where it is used


def test_a_rule_is_fixed_once_it_is_registered(file):
    study, root = opened(file)
    register(study.study, root)
    for change, named in (
        ("confirmation.margin=0.1", "confirmation"),
        ("metrics.last=5", "metrics"),
        ("proposal.weights={code: 1}", "proposal.weights"),
    ):
        with pytest.raises(ConflictError, match=f"{named} differs from what was registered before the first run"):
            register(opened(file, change)[0].study, root)
    assert read_json(root / REGISTERED)["rule"]["confirmation"]["margin"] == 0


def test_the_baseline_of_a_list_is_part_of_its_rule(file):
    def of(baseline):
        entries = "entries: {a: {}, b: {settings: {optimizer.learning_rate: 1.0e-3}}}"
        return opened(file, "confirmation=null", f"design={{kind: list, baseline: {baseline}, {entries}}}")

    study, root = of("a")
    register(study.study, root)
    with pytest.raises(ConflictError, match=r"design\.baseline differs from what was registered"):
        register(of("b")[0].study, root)


def test_a_changed_study_says_so_and_reuses_the_runs_that_are_the_same(file):
    study, root = opened(file)
    register(study.study, root)
    finish(root, study.proxies)
    longer, _ = opened(file, "design.runs=30")
    assert register(longer.study, root) == ["design.runs: 24 -> 30"]
    assert len(results_of(root, longer.proxies)) == len(study.proxies)
    other, _ = opened(file, "proxies.tokens=6e3")
    assert results_of(root, other.proxies) == {}


def test_a_damaged_row_is_made_again(file):
    study, root = opened(file)
    finish(root, study.proxies)
    damaged = root / RUNS / study.proxies[3].key / "result.json"
    damaged.write_bytes(damaged.read_bytes().replace(b"finished", b"finisheD"))
    assert len(results_of(root, study.proxies)) == len(study.proxies) - 1
