"""Names of sources: those of crawls are valid, and a name is never confused with a longer one that begins
with it.
"""

import pytest

from gristmill.errors import ConfigError
from pipelines.__main__ import main
from pipelines.building.build import build
from pipelines.classifiers.class_sources import open_sources
from pipelines.cluster.local import LocalCluster
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.published import explain

CRAWL, LONGER = "CC-MAIN-2024-10", "CC-MAIN-2024-10-2"


@pytest.fixture
def crawls(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
    for name in (CRAWL, LONGER):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.txt").write_text(f"Document {number} of {name}.")
    sources = "\n".join(f"  - {{name: {name}, root: {tmp_path}/{name}, format: text}}" for name in (CRAWL, LONGER))
    path = tmp_path / "crawls.yaml"
    steps = "  - text_hash: {}\n  - dedup_exact: {}\n"
    steps += "  - learn_tokenizer: {kind: bytes}\n  - shards: {tokenizer: learn_tokenizer}\n"
    path.write_text(f"name: crawls\noutput: {tmp_path}/out\nsources:\n{sources}\nsteps:\n{steps}")
    return path


def planned(path, *overrides):
    config = load_corpus_config(path, overrides)
    return make_plan(config, take_inventory(config.sources, config.place))


def test_a_plan_explains_the_source_that_changed_and_no_other(crawls, tmp_path):
    build(planned(crawls), LocalCluster(), lambda line: None)
    changed = planned(crawls, f"sources.{CRAWL}.unicode_form=none", f"sources.{LONGER}.encoding=latin-1")
    assert explain(changed.step(f"read.{CRAWL}"), tmp_path / "out") == "unicode_form: NFC -> none"
    assert explain(changed.step(f"read.{LONGER}"), tmp_path / "out") == "encoding: utf-8 -> latin-1"
    for directory in (tmp_path / "out").glob(f"*.{CRAWL}-????????????"):  # nothing of the shorter name is left
        (directory / "manifest.json").unlink()
    assert explain(changed.step(f"read.{CRAWL}"), tmp_path / "out") == "not built yet"


def test_documents_of_such_sources_are_found_and_exported(crawls, tmp_path, capsys):
    build(planned(crawls), LocalCluster(), lambda line: None)
    output = str(tmp_path / "out")
    assert main(["inspect", output, "--doc", f"{LONGER}/1.txt#0"]) == 0
    assert f"Document 1 of {LONGER}." in capsys.readouterr().out
    assert main(["export", output, str(tmp_path / "jsonl"), "--format", "jsonl", "--sources", CRAWL]) == 0
    assert [path.name for path in (tmp_path / "jsonl" / "data").iterdir()] == [f"00000-{CRAWL}.jsonl.gz"]
    assert main(["gc", str(crawls)]) == 0
    assert [source for _, source in open_sources([f"{output}:{CRAWL}"], "positive")] == [CRAWL]


def test_normalising_tweets_reads_a_source_again_and_the_default_is_no_part_of_its_identity(crawls, tmp_path):
    build(planned(crawls), LocalCluster(), lambda line: None)
    changed = planned(crawls, f"sources.{CRAWL}.normalisation=tweets")
    assert explain(changed.step(f"read.{CRAWL}"), tmp_path / "out").startswith("normalisation: nothing -> tweets")
    assert changed.step(f"read.{LONGER}").fingerprint == planned(crawls).step(f"read.{LONGER}").fingerprint
    step = planned(crawls, f"sources.{CRAWL}.normalisation=none").step(f"read.{CRAWL}")
    assert step.fingerprint == planned(crawls).step(f"read.{CRAWL}").fingerprint
    assert "normalisation" not in str(step.identity)


@pytest.mark.parametrize("name", ["a.b", "2024-10", "-a", "_a", "a b", "a/b", "a~", "é", "a[0]", "a:b", "a\n", "''"])
def test_other_names_are_refused(crawls, name):
    with pytest.raises(ConfigError, match="expected letters, digits, - and _, a letter first"):
        load_corpus_config(crawls, [f"sources.0.name={name!r}" if name != "''" else "sources.0.name=''"])


def test_names_that_differ_only_in_case_are_refused(crawls):
    with pytest.raises(ConfigError, match=f"'{CRAWL}' and 'cc-main-2024-10' differ only in case, and would share"):
        load_corpus_config(crawls, ["sources.1.name=cc-main-2024-10"])
    with pytest.raises(ConfigError, match=f"the name '{CRAWL}' occurs twice"):
        load_corpus_config(crawls, [f"sources.1.name={CRAWL}"])
