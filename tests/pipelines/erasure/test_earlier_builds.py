"""Earlier builds: which manifests a build keeps, what `diff` and `inspect --builds` show, and what `gc` and `forget` leave."""

import json
from dataclasses import replace

import pytest

import pipelines
from gristmill.errors import UserError
from gristmill.storage.disk import LocalPath
from pipelines.__main__ import main
from pipelines.building import earlier_builds as kept
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus, save_corpus
from pipelines.explore.build_history import builds_of

LONGER = "steps.filter=[{signal: word_count, at_least: 20}]"
LONGEST = ("steps.filter=[{signal: word_count, at_least: 200}]", "steps.learn_tokenizer.vocab_size=500")


@pytest.fixture
def out(built_corpus_file, tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
    return LocalPath(tmp_path / "out")


@pytest.fixture
def build(built_corpus_file):
    def run(*words):
        assert main(["build", str(built_corpus_file), "--in-process", *words]) == 0

    return run


def names(out):
    return sorted(path.name for path in out.glob("earlier-*"))


def short(location):
    return load_corpus(location).fingerprint[:12]


@pytest.mark.long
def test_a_build_keeps_what_it_replaces(out, build, capsys):
    first, content = short(out), (out / "manifest.json").read_bytes()
    build()
    assert names(out) == []  # nothing has changed
    build(LONGER)
    assert names(out) == [f"earlier-0001-{first}.json"]
    assert (out / names(out)[0]).read_bytes() == content
    assert f"python -m pipelines diff previous {out}" in capsys.readouterr().out
    second = short(out)
    build(*LONGEST)
    build(LONGER)  # again: the first time does not count any more
    build(*LONGEST)
    assert [name[8:12] for name in names(out)] == ["0001", "0003", "0004"]
    assert [name[13:25] for name in names(out)] == [first, short(out), second]
    assert kept.find_earlier(out, "previous").name == names(out)[2]
    assert kept.find_earlier(out / names(out)[2], "previous").name == names(out)[1]
    assert kept.find_earlier(out, first[:6]).name == names(out)[0]
    for name in names(out):
        open_corpus(out / name)


@pytest.mark.long
def test_diff_with_the_build_before(out, build, tmp_path, capsys):
    build(*LONGEST)
    first = names(out)[0].split("-")[2][:12]
    capsys.readouterr()
    assert main(["diff", "previous", str(out), "--json", str(tmp_path / "diff.json")]) == 0
    shown = capsys.readouterr().out
    assert "went out" in shown
    figures = json.loads((tmp_path / "diff.json").read_text())
    change = pipelines.diff("previous", out)
    assert {name: source.went_out for name, source in change.sources.items()} == {
        name: source["went_out"] for name, source in figures["sources"].items()
    }
    assert change.old.manifest.fingerprint.startswith(first)
    assert pipelines.diff(first, out).documents.equals(change.documents)
    assert sum(change.sources["web"].went_out.values()) > 0


@pytest.mark.long
def test_the_list_of_builds(out, build, capsys):
    build(LONGER)
    build(*LONGEST)
    builds = list(builds_of(out))
    assert [build.fingerprint for build in builds] == [load_corpus(build.file).fingerprint for build in builds]
    assert [build.replaced is None for build in builds] == [False, False, True]
    assert builds[0].changed is None
    assert all("filter.web" in build.changed and "read.web" not in build.changed for build in builds[1:])
    assert builds[0].documents > builds[2].documents
    capsys.readouterr()
    assert main(["inspect", str(out), "--builds"]) == 0
    shown = capsys.readouterr().out
    assert [build.fingerprint[:12] in shown for build in builds] == [True] * 3
    assert "the published build" in shown
    assert main(["inspect", str(out / "manifest.json"), "--builds"]) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.long
def test_messages(out, build):
    with pytest.raises(UserError, match="no earlier build of it is kept; a build keeps the manifest that it replaces"):
        kept.find_earlier(out, "previous")
    build(LONGER)
    with pytest.raises(
        UserError, match="no earlier builds have a fingerprint that begins with 'abcdef', expected one; there are: "
    ):
        kept.find_earlier(out, "abcdef")
    assert [kept.is_build_name(word) for word in ("previous", "0a1b2c", "0a1b2", "previous/x", "./previous", "xyzxyz")] == [
        True, True, False, False, False, False
    ]  # fmt: skip


@pytest.mark.long
def test_gc_keeps_the_last_earlier_build(out, build, built_corpus_file, capsys):
    build(LONGER)
    build(*LONGEST)
    both = names(out)
    assert main(["gc", str(built_corpus_file)]) == 0
    assert f"{out}/{both[0]} (an earlier build)" in capsys.readouterr().out
    assert names(out) == both
    assert main(["gc", str(built_corpus_file), "--delete", "--keep", "5"]) == 0
    assert names(out) == both
    assert main(["gc", str(built_corpus_file), "--delete"]) == 0
    assert f"kept for `diff`: earlier build {both[1][13:25]}" in capsys.readouterr().out
    assert names(out) == both[1:]
    assert pipelines.diff("previous", out).sources
    assert main(["gc", str(built_corpus_file), "--delete", "--keep", "0"]) == 0
    assert names(out) == []
    assert not [path for path in out.glob("filter.web-*") if path.name not in steps_of(out, built_corpus_file)]
    assert main(["gc", str(built_corpus_file), "--keep", "-1"]) == 2


def test_gc_keeps_an_earlier_build_beside_a_copy_of_the_published_one(out):
    published = load_corpus(out)
    save_corpus(out, replace(published, fingerprint="0" * 64), lambda: None, f"earlier-0001-{'0' * 12}.json")
    # A build was killed after it had kept the published manifest, and before it replaced it.
    kept.keep_replaced(out, replace(published, steps=()), lambda: None)
    assert names(out) == [f"earlier-0001-{'0' * 12}.json", f"earlier-0002-{short(out)}.json"]
    assert [build.number for build in kept.surplus_builds(out, 1)] == [2]
    assert [build.number for build in kept.surplus_builds(out, 0)] == [1, 2]


def steps_of(out, file):
    planned = pipelines.plan(file)
    return {step.directory for step in planned.steps} | {step["directory"] for step in load_corpus(out).steps}


@pytest.mark.long
def test_forget_removes_earlier_builds_and_the_next_build_keeps_one_again(out, build, tmp_path, capsys):
    build(LONGER)
    (tmp_path / "ids").write_text("web/0.jsonl#5\n")
    assert main(["forget", str(out), "--ids", str(tmp_path / "ids")]) == 0
    assert names(out) == []
    build(LONGER)
    assert names(out) == []  # the same steps, without the document
    build(*LONGEST)
    assert len(names(out)) == 1
    before = open_corpus(out / names(out)[0])
    assert "forgotten" in before.find("web/0.jsonl#5").reason
    assert pipelines.diff("previous", out).sources["web"].went_out
    capsys.readouterr()


@pytest.mark.long
def test_a_build_whose_steps_are_gone_is_not_kept(out, build, capsys):
    (next(out.glob("filter.web-*")) / "manifest.json").unlink()
    build(LONGER)
    assert names(out) == []
    build(*LONGEST)
    steps = {step["step"]: step["directory"] for step in load_corpus(out / names(out)[0]).steps}
    (out / steps["filter.web"] / "manifest.json").unlink()
    assert main(["diff", "previous", str(out)]) == 2
    assert "has removed steps of this earlier build, so it can no longer be read" in capsys.readouterr().err
    assert not next(builds_of(out)).is_whole


@pytest.mark.long
def test_variants_keep_nothing(out, build):
    build("--variant", "strict", LONGER)
    build("--variant", "strict", *LONGEST)
    assert names(out) == []
