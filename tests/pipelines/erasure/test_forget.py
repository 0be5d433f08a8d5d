"""Erasure: no text of forgotten documents is left in the corpus directory, other documents are unchanged, and
all counts are right.
"""

import json
import shutil
from unittest.mock import Mock

import pytest

import gristmill.storage.store as store
from gristmill.errors import ConflictError, UserError
from pipelines.__main__ import main
from pipelines.building import read_step
from pipelines.building.build import plan_and_build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import Quarantined, open_corpus
from pipelines.contracts.manifest import load_corpus
from pipelines.contracts.shard_set import open_shard
from pipelines.contracts.tombstone import read_tombstone
from pipelines.erasure import erase
from pipelines.erasure import forget as forgetting
from pipelines.erasure.forget import forget
from pipelines.erasure.scan import make_probes, scan
from pipelines.export import text_export
from pipelines.export.text_export import export_corpus
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory

SHARDED, DROPPED = "web/0.jsonl#5", "web/1.jsonl#4"  # text 10, which is kept; text 9, which is too short


def build(corpus_file, *overrides):
    config = load_corpus_config(corpus_file, overrides)
    said = []
    plan_and_build(config, take_inventory(config.sources, corpus_file.parent / "out"), LocalCluster(), said.append)
    return said


def state(directory):
    """Return the columns of a corpus's documents by id, and by id the split, tokens and number of bytes of
    those in shards.
    """
    corpus = open_corpus(directory)
    documents = {}
    for part in corpus.parts():
        columns = [
            name for annotation in part.annotations for name in annotation.schema if name not in ("drop", "edits")
        ]
        for row in part.table(("id", "text", "url", "drop", "edited_text", *dict.fromkeys(columns))).to_pylist():
            documents[row["id"]] = row
    shards = {}
    for record in (record for shard_set in corpus.manifest.shard_sets.values() for record in shard_set.shards):
        shard = open_shard(directory, record.file)
        assert (len(shard.doc_ids), len(shard.tokens)) == (record.documents, record.tokens)
        for number, identifier in enumerate(shard.doc_ids.to_pylist()):
            tokens = shard.tokens[shard.offsets[number] : shard.offsets[number + 1]].tolist()
            shards[identifier] = (record.split, tokens, int(shard.n_bytes[number]))
    return documents, shards


def accounted(directory):
    corpus = open_corpus(directory)
    for name, facts in corpus.manifest.sources.items():
        assert facts["in"] == facts["kept"] + sum(facts["quarantined"].values())
        assert facts["kept"] == sum(part.rows for part in corpus.parts(name))
        rows = [row for row in corpus.manifest.funnel if row["source"] == name]
        assert rows[0]["documents_in"] == facts["kept"]
        kept = facts["kept"] - sum(sum(row["dropped"].values()) for row in rows)
        assert kept == sum(s.documents for s in corpus.manifest.shard_sets["shards"].shards if s.source == name)
    for step in corpus.steps:
        for counts in step.manifest.counts.values():
            assert counts.arrived == counts.kept + sum(counts.dropped.values()) + sum(counts.quarantined.values())


@pytest.mark.long
def test_forgotten_documents_are_gone_and_others_are_untouched(built_corpus_file, tmp_path):
    out = tmp_path / "out"
    before, shards = state(out)
    corpus = open_corpus(out)
    found = [corpus.find(name) for name in (SHARDED, DROPPED)]
    ids = {document.id for document in found}
    assert found[0].id in shards
    assert found[1].id not in shards
    probes = make_probes([before[identifier]["text"] for identifier in ids])
    assert {hit.path.partition("/")[0].partition("-")[0] for hit in scan(out, probes, sorted(ids))[0]} >= {
        "read.web",
        "shards",
    }
    fingerprint = corpus.manifest.fingerprint
    names, written = forget(out, [SHARDED, found[1].id.hex()], [])
    assert sorted(names) == sorted([SHARDED, DROPPED])
    assert written > 5
    after, shards_after = state(out)
    assert after == {identifier: row for identifier, row in before.items() if identifier not in ids}
    assert shards_after == {identifier: row for identifier, row in shards.items() if identifier not in ids}
    accounted(out)
    assert load_corpus(out).fingerprint != fingerprint
    hits, files, size = scan(out, probes, sorted(ids))
    assert not any(identifier in ids for hit in hits for identifier in hit.ids)
    assert all(hit.ids for hit in hits), hits
    assert files > 20
    assert size > 0
    for name in (SHARDED, DROPPED):
        aside = open_corpus(out).find(name)
        assert isinstance(aside, Quarantined)
        assert aside.reason == "forgotten"
    # The others are found where they are now, and a build has nothing to do.
    for identifier in before.keys() - ids:
        located = open_corpus(out).find(identifier.hex())
        assert located.part.table(("id",))["id"][located.row].as_py() == identifier
    assert "nothing is recomputed" in " ".join(build(built_corpus_file))
    accounted(out)


@pytest.mark.long
def test_all_documents_of_a_url_and_a_second_time(built_corpus_file, tmp_path):
    out = tmp_path / "out"
    _, written = forget(out, [], ["https://site0.example/0"])
    assert written > 0
    names, _ = forget(out, ["web/0.jsonl#1"], [])
    assert names == ["web/0.jsonl#1"]
    accounted(out)
    assert load_corpus(out).sources["web"]["quarantined"]["forgotten"] == 2
    with pytest.raises(UserError, match="none of these documents is in the corpus"):
        forget(out, ["web/0.jsonl#1"], ["https://nowhere.example"])
    with pytest.raises(UserError, match="the file holds"):
        forget(out, ["web/0.jsonl#1000"], [])


def test_records_of_a_quarantine_in_several_files_are_found_also_when_more_are_added(tmp_path, monkeypatch):
    monkeypatch.setattr(read_step, "_HELD_ROWS", 5)
    lines = [
        "broken" if number % 2 else json.dumps({"text": f"Text {number}, {'and so on, ' * 30}"}) for number in range(60)
    ]
    (tmp_path / "web.jsonl").write_text("\n".join(lines))
    corpus_file = tmp_path / "corpus.yaml"
    corpus_file.write_text(
        f"name: small\noutput: {tmp_path}/out\nsources:\n- {{name: web, root: {tmp_path}, include: [web.jsonl], format: jsonl, "
        "part_bytes: 1000, max_quarantined: 0.9}\nsteps:\n- text_hash: {}\n"
    )
    build(corpus_file)
    out = tmp_path / "out"
    (read,) = (step for step in open_corpus(out).steps if step.stage == "read")
    assert sum(record.path.startswith("quarantine/") for record in read.manifest.files) > 3
    for forgotten in ((), (0,), (0, 30, 58)):  # the second time, files have other names already
        if forgotten:
            forget(out, [f"web/web.jsonl#{number}" for number in forgotten[-2:]], [])
        corpus = open_corpus(out)
        for number in range(60):
            found = corpus.find(f"web/web.jsonl#{number}")
            if isinstance(found, Quarantined):
                assert found.reason == ("not_json" if number % 2 else "forgotten")
            assert isinstance(found, Quarantined) == (number % 2 == 1 or number in forgotten)
        assert len(list(corpus.quarantined("web"))) == 30 + len(forgotten)


@pytest.mark.long
def test_what_is_left_is_found_and_exported_by_its_name(built_corpus_file, tmp_path):
    out = tmp_path / "out"
    held = [document for document, (split, _, _) in state(out)[1].items() if split == "validation"]
    names = [open_corpus(out).printed_id(document) for document in held]
    assert {name.partition("/")[0] for name in names} == {"web", "code"}
    for some in (names[:1], names[1:]):  # the second time the files have other names already; then no shard is left
        forget(out, some, [])
        corpus = open_corpus(out)
        for part in corpus.parts():
            ids = part.table(("id",))["id"].to_pylist()
            assert corpus.printed_ids(part) == [corpus.printed_id(identifier) for identifier in ids]
    _, shards = state(out)
    assert shards
    for identifier in shards:
        assert corpus.shard_rows(identifier)
    for name in names:
        aside = corpus.find(name)
        assert isinstance(aside, Quarantined)
        assert aside.reason == "forgotten"
    export_corpus(out, tmp_path / "export", "jsonl", None)
    accounted(out)


@pytest.mark.long
def test_what_was_interrupted_is_finished_before_anything_else(built_corpus_file, tmp_path, monkeypatch):
    """The same command finishes it, or one that names no documents. tests/chaos kills the command at every
    operation.
    """
    shutil.copytree(tmp_path / "out", tmp_path / "whole")
    forget(tmp_path / "whole", [SHARDED], [])
    for again in ([SHARDED], []):
        directory = tmp_path / f"killed{len(again)}"
        shutil.copytree(tmp_path / "out", directory)
        with monkeypatch.context() as patched:
            patched.setattr("pipelines.erasure.forget._remove_old_files", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                forget(directory, [SHARDED], [])
        with pytest.raises(UserError, match="forgetting was interrupted; finish it first"):
            forget(directory, [DROPPED], [])
        forget(directory, again, [])
        assert state(directory) == state(tmp_path / "whole")
        assert read_tombstone(directory) == read_tombstone(tmp_path / "whole")
        accounted(directory)


@pytest.mark.long
def test_the_command_reports_its_work_and_the_location_of_copies(corpus_file, tmp_path, capsys, raw_text):
    lines = (raw_text / "web" / "0.jsonl").read_text().splitlines()
    (raw_text / "web" / "2.jsonl").write_text(
        json.dumps({"text": json.loads(lines[5])["text"], "url": "https://copy.example"}) + "\n"
    )
    build(corpus_file)
    (tmp_path / "ids.txt").write_text(f"# a takedown\n{SHARDED}\n")
    (tmp_path / "runs" / "a").mkdir(parents=True)
    fingerprint = load_corpus(tmp_path / "out").fingerprint
    store.write_json(tmp_path / "runs" / "a" / "run.json", {"fingerprints": {"corpus": fingerprint}})
    arguments = ["forget", str(tmp_path / "out"), "--ids", str(tmp_path / "ids.txt"), "--runs", str(tmp_path / "runs")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert f"forgotten: {SHARDED}" in out
    assert "web/2.jsonl#0" in out
    assert f"trained on the corpus with them: {tmp_path / 'runs' / 'a'}" in out
    assert main(arguments[:4]) == 2
    assert "none of these documents" in capsys.readouterr().err
    (tmp_path / "ids.txt").write_bytes(b"web/a#1\n\xff\n")
    assert main(arguments[:4]) == 2
    assert "ids.txt: not UTF-8 at byte 8; expected one id or URL per line" in capsys.readouterr().err


def test_the_scan_after_an_interruption_searches_for_the_same_documents(
    built_corpus_file, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr("pipelines.erasure.forget._recount", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            forget(out, [SHARDED], [])
    assert main(["forget", str(out)]) == 0
    assert "and 1 ids" in capsys.readouterr().out


def test_runs_are_listed_after_erasures_and_later_builds(built_corpus_file, tmp_path, capsys):
    out = tmp_path / "out"
    runs = {name: tmp_path / "runs" / name for name in ("first", "went_on", "several", "stranger", "after", "damaged")}
    store.write_json(runs["first"] / "run.json", {"fingerprints": {"corpus": load_corpus(out).fingerprint}})
    earlier = {"fingerprints": {"corpus": "x"}, "earlier": [{"until_step": 1, "corpus": load_corpus(out).fingerprint}]}
    store.write_json(runs["went_on"] / "run.json", earlier)
    for name, corpora in (("several", [str(out), "b"]), ("stranger", ["b"])):
        store.write_json(runs[name] / "run.json", {"fingerprints": {"corpus": "y"}})
        (runs[name] / "resolved.yaml").write_text(json.dumps({"data": {"corpora": corpora}}))
    runs["damaged"].mkdir()
    (runs["damaged"] / "run.json").write_bytes((runs["first"] / "run.json").read_bytes().replace(b"finger", b"fimger"))
    (runs["damaged"] / "resolved.yaml").write_text("data: {}\n")
    forget(out, ["web/0.jsonl#1"], [])
    store.write_json(runs["after"] / "run.json", {"fingerprints": {"corpus": load_corpus(out).fingerprint}})
    (tmp_path / "ids.txt").write_text(SHARDED)
    command = ["forget", str(out), "--ids", str(tmp_path / "ids.txt"), "--runs", str(tmp_path / "runs")]
    assert main(command) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "trained" in line]
    for name in ("after", "first", "went_on"):
        assert f"trained on the corpus with them: {runs[name]}" in said
    assert any(line.startswith("trained on another state") and str(runs["several"]) in line for line in said)
    assert any(line.startswith("cannot tell whether it was trained") and str(runs["damaged"]) in line for line in said)
    assert len(said) == 5


@pytest.fixture
def shared_words(tmp_path):
    """A corpus with a column and a search index, in which two sources have the same words. Returns its
    directory, and a file of ids.
    """
    title = "Weekly discussion: what are you reading this week, friends?"
    for name, records in {
        "web": [{"text": f"{title}\nThe first body.", "title": title}, {"text": "Another text.", "title": title}],
        "news": [{"text": f"{title}\nThe first body."}, {"text": "Yet another text."}],
    }.items():
        (tmp_path / name).mkdir()
        lines = (json.dumps({**record, "url": f"https://{name}.example/{n}"}) for n, record in enumerate(records))
        (tmp_path / name / "a\u2028.jsonl").write_text("\n".join(lines))
    corpus_file = tmp_path / "corpus.yaml"
    corpus_file.write_text(
        f"name: small\noutput: {tmp_path}/out\nsources:\n- {{name: web, root: {tmp_path}/web, format: jsonl, columns: "
        f"{{title: string}}}}\n- {{name: news, root: {tmp_path}/news, format: jsonl}}\nsteps:\n- text_hash: {{}}\n"
    )
    build(corpus_file)
    assert main(["index", str(tmp_path / "out")]) == 0
    (tmp_path / "ids").write_text("web/a\u2028.jsonl#0\n", encoding="utf-8-sig")  # as from Windows
    return tmp_path / "out", tmp_path / "ids"


def test_words_of_other_documents_in_files_without_ids_are_no_false_alarm(shared_words, capsys):
    out, ids = shared_words
    assert main(["forget", str(out), "--ids", str(ids)]) == 0
    said = capsys.readouterr().out
    assert "forgotten: web/a\\u2028.jsonl#0" in said
    assert "other documents have the same words" in said
    assert "news/a\\u2028.jsonl#0" in said


def test_a_leftover_is_found_although_other_documents_share_some_of_its_words(shared_words, capsys):
    out, ids = shared_words
    copy = "Weekly discussion: what are you reading this week, friends?\nThe first body. And its end."
    (out.parent / "web" / "b.jsonl").write_text(json.dumps({"text": copy}))
    build(out.parent / "corpus.yaml")
    (out / "left.txt").write_text(copy)
    ids.write_text("web/b.jsonl#0")
    assert main(["forget", str(out), "--ids", str(ids)]) == 2
    assert "still there, in left.txt; this is a defect" in capsys.readouterr().err


def test_tokenizers_are_not_scanned(tmp_path):
    for name in ("tokenizer.json", "other.json"):
        (tmp_path / name).write_text('{"internationalization": 400}')
    hits, files, _ = scan(tmp_path, make_probes(["internationalization"]), [])
    assert [hit.path for hit in hits] == ["other.json"]
    assert files == 1


def test_urls_that_no_document_has_are_named(shared_words, capsys):
    out, ids = shared_words
    ids.write_text("https://web.example/1\r\nhttps://web.example/typo\r\n")
    assert main(["forget", str(out), "--urls", str(ids)]) == 0
    said = capsys.readouterr().out
    assert "forgotten: web/a\\u2028.jsonl#1" in said
    assert [line for line in said.splitlines() if "URL" in line] == ["no document has the URL https://web.example/typo"]


def test_a_missing_directory_of_runs_is_an_error_before_anything_is_forgotten(shared_words, capsys):
    out, ids = shared_words
    assert main(["forget", str(out), "--ids", str(ids), "--runs", str(out / "nowhere")]) == 2
    assert f"--runs: {out}/nowhere: no such directory" in capsys.readouterr().err
    assert not read_tombstone(out)["records"]


@pytest.mark.long
def test_short_and_monotonous_texts_are_no_false_alarm(corpus_file, tmp_path, capsys, raw_text):
    (raw_text / "web" / "2.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in ("read", "=" * 300)))
    build(corpus_file)
    (tmp_path / "ids.txt").write_text("web/2.jsonl#0\nweb/2.jsonl#1\n")
    assert main(["forget", str(tmp_path / "out"), "--ids", str(tmp_path / "ids.txt")]) == 0
    assert "nothing is left of them" in capsys.readouterr().out


def test_object_stores_are_refused(capsys):
    assert main(["forget", "s3://bucket/corpus"]) == 2
    assert "forget and gc need a local directory" in capsys.readouterr().err


def test_manifests_are_refused(tmp_path, capsys):
    assert main(["forget", str(tmp_path / "variant-v1.json")]) == 2
    error = capsys.readouterr().err
    assert "variant-v1.json: is one manifest" in error
    assert f"name its directory, {tmp_path}\n" in error


@pytest.mark.long
def test_garbage_is_what_no_configuration_reaches(built_corpus_file, tmp_path, capsys):
    build(built_corpus_file, "steps.filter=[{signal: word_count, at_least: 20}]")
    assert main(["gc", str(built_corpus_file)]) == 0
    assert "0 unused steps" in capsys.readouterr().out  # the file's steps, and those of the published corpus
    build(built_corpus_file)
    assert main(["gc", str(built_corpus_file), "--delete", "--keep", "0"]) == 0
    out = capsys.readouterr().out
    assert f"{tmp_path}/out/filter.web-" in out
    assert "removed" in out
    assert "nothing is recomputed" in " ".join(build(built_corpus_file))
    other = tmp_path / "other.yaml"
    other.write_text(built_corpus_file.read_text().replace("output: ", "output: /elsewhere"))
    assert main(["gc", str(built_corpus_file), str(other)]) == 2


@pytest.mark.long
@pytest.mark.parametrize("finished", [True, False])
def test_gc_that_was_suspended_leaves_a_corpus_published_meanwhile(
    built_corpus_file, tmp_path, monkeypatch, capsys, finished
):
    """While `gc` is suspended, another build publishes a corpus with the steps that `gc` has listed for removal."""
    other = "steps.filter=[{signal: word_count, at_least: 20}]"
    build(built_corpus_file, other)
    build(built_corpus_file)
    find, lease = erase.find_unreached, tmp_path / "out" / ".lease"

    def suspended(*arguments):
        steps = find(*arguments)
        assert steps
        build(built_corpus_file, other)
        if finished:
            lease.unlink()
        return steps

    monkeypatch.setattr(erase, "find_unreached", suspended)
    assert main(["gc", str(built_corpus_file), "--delete", "--keep", "0"]) == 2
    message = "another process took over" if finished else "a corpus published meanwhile uses it"
    assert message in capsys.readouterr().err
    documents, shards = state(tmp_path / "out")
    assert documents
    assert shards


@pytest.mark.long
def test_forget_that_was_suspended_leaves_a_corpus_published_meanwhile(
    built_corpus_file, tmp_path, monkeypatch, capsys
):
    out, listed = tmp_path / "out", tmp_path / "ids"
    listed.write_text(f"{SHARDED}\n")
    find = forgetting.find_documents

    def suspended(*arguments):
        found = find(*arguments)
        build(built_corpus_file, "steps.filter=[{signal: word_count, at_least: 20}]")
        (out / ".lease").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(forgetting, "find_documents", suspended)
    assert main(["forget", str(out), "--ids", str(listed)]) == 2
    assert "another process took over" in capsys.readouterr().err
    assert not (out / "forgotten.json").exists()
    open_corpus(out)


@pytest.mark.long
def test_a_step_that_a_build_publishes_once_more_is_rewritten_again_before_anything_is_counted(
    built_corpus_file, tmp_path, monkeypatch
):
    """A build whose lease was taken over may still publish a step once more, after `forget` has rewritten it."""
    out, published = tmp_path / "out", []
    document = open_corpus(out).find(SHARDED)
    text = document.part.table(("text",))["text"][document.row].as_py()
    publish = forgetting.publish

    def overtaken(directory, name, *arguments):
        before = (directory / name / "manifest.json").read_bytes()
        publish(directory, name, *arguments)
        if name.startswith("read.web-") and name not in published:
            (directory / name / "manifest.json").write_bytes(before)
        published.append(name)

    monkeypatch.setattr(forgetting, "publish", overtaken)
    forget(out, [SHARDED], [])
    assert sum(name.startswith("read.web-") for name in published) == 2
    assert isinstance(open_corpus(out).find(SHARDED), Quarantined)
    assert not any(text.encode() in path.read_bytes() for path in out.rglob("*") if path.is_file())
    accounted(out)


@pytest.mark.long
def test_a_later_read_honours_the_tombstone(built_corpus_file, tmp_path):
    out = tmp_path / "out"
    forget(out, [SHARDED], [])
    after, _ = state(out)
    build(
        built_corpus_file, "sources.web.part_bytes=4000"
    )  # another read step, from the files, where the document still is
    again, _ = state(out)
    assert {i: row["text"] for i, row in again.items()} == {i: row["text"] for i, row in after.items()}
    assert load_corpus(out).sources["web"]["quarantined"]["forgotten"] == 1
    accounted(out)


@pytest.mark.long
def test_a_step_published_without_knowing_what_is_forgotten_is_built_again(built_corpus_file, tmp_path, capsys):
    """An older version may leave such a step, or a build that is killed after publishing and before checking
    again.
    """
    out = tmp_path / "out"
    document = open_corpus(out).find(SHARDED)
    text = document.part.table(("text",))["text"][document.row].as_py()
    shutil.copytree(out, tmp_path / "before")
    forget(out, [SHARDED], [])
    read = next(path.name for path in out.glob("read.web-*"))
    shutil.copytree(tmp_path / "before" / read, out / read, dirs_exist_ok=True)
    with pytest.raises(UserError, match="may hold documents that were forgotten; build the corpus again"):
        open_corpus(out)
    assert main(["plan", str(built_corpus_file)]) == 0
    assert "it may hold forgotten documents" in " ".join(capsys.readouterr().out.split())
    said = "\n".join(build(built_corpus_file))
    assert "read.web may hold forgotten documents or results made from them; it is built again" in said
    assert isinstance(open_corpus(out).find(SHARDED), Quarantined)
    assert not any(text.encode() in path.read_bytes() for path in out.rglob("*") if path.is_file())
    accounted(out)
    assert "nothing is recomputed" in " ".join(build(built_corpus_file))


@pytest.mark.long
def test_a_task_that_outlives_its_driver_gives_no_forgotten_document_back(built_corpus_file, tmp_path, monkeypatch):
    """The task began before `forget`, and its driver is dead. What the task commits is neither kept nor used."""
    out, tasks = tmp_path / "out", []

    class Killed(BaseException):
        pass

    def take(self, function, arguments, *others):
        tasks.append((function, arguments))
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LocalCluster, "map", take)
        with pytest.raises(Killed):
            build(built_corpus_file, "sources.web.part_bytes=4000")
    ((read, arguments),) = tasks
    receipts = [read(task)[0] for task in arguments[1:]]  # one is done before, and was not seen by `forget`
    late = arguments[0]
    directory, left = late.out.directory, tmp_path / "left"
    shutil.copytree(directory, left)
    forget(out, [SHARDED], [])
    assert not directory.exists()
    with pytest.raises(UserError, match="documents were forgotten while this command ran"):
        read(late)
    assert not [path for path in directory.rglob("*") if path.is_file()]
    shutil.copytree(left, directory, dirs_exist_ok=True)
    assert receipts
    assert all(task.out.receipt(task.unit) for task in arguments[1:])  # a driver from before would use them
    build(built_corpus_file, "sources.web.part_bytes=4000")
    assert isinstance(open_corpus(out).find(SHARDED), Quarantined)
    accounted(out)


@pytest.mark.long
def test_a_corpus_published_while_the_documents_were_looked_up_is_not_touched(built_corpus_file, tmp_path, monkeypatch):
    """The rows found belong to the old parts, and the new corpus has different parts."""
    out, find = tmp_path / "out", forgetting.find_documents

    def find_late(*arguments):
        found = find(*arguments)
        build(built_corpus_file, "sources.web.part_bytes=4000")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(forgetting, "find_documents", find_late)
        with pytest.raises(ConflictError, match="another corpus was published meanwhile; run the command again"):
            forget(out, [SHARDED], [])
    assert not read_tombstone(out)["records"]
    forget(out, [SHARDED], [])
    assert isinstance(open_corpus(out).find(SHARDED), Quarantined)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["write_text_file", "_total", "killed"])
def test_an_export_beside_forget_says_that_the_corpus_changed(built_corpus_file, tmp_path, monkeypatch, moment):
    """`forget` runs while the export reads or after it has read, or was killed before it published the
    rewritten corpus.
    """
    out = tmp_path / "out"

    class Killed(BaseException):
        pass

    def die(*arguments):
        raise Killed

    if moment == "killed":
        monkeypatch.setattr(forgetting, "_publish_corpus", die)
        with pytest.raises(Killed):
            forget(out, [SHARDED], [])
    else:
        act, done = getattr(text_export, moment), []

        def beside(*arguments):
            if not done:
                done.append(forget(out, [SHARDED], []))
            return act(*arguments)

        monkeypatch.setattr(text_export, moment, beside)
    with pytest.raises(ConflictError, match="a build or forget changed the corpus while it was exported"):
        export_corpus(out, tmp_path / "export", "jsonl", None)
    assert not (tmp_path / "export" / "export.json").exists()
