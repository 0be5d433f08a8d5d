"""Builds: every document is accounted for, interruptions do not change a byte, and nothing unchanged is recomputed."""

import json
import os
import pickle
import re
import shutil
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pytest

import pipelines.contracts.manifest as manifests
from gristmill.errors import (
    AccountingError,
    BrokenTaskError,
    ConfigError,
    ConflictError,
    CorruptFileError,
    PoisonError,
    UserError,
)
from gristmill.storage.disk import LocalPath
from pipelines.__main__ import main
from pipelines.building.build import build, plan_and_build
from pipelines.building.read_step import file_indexes, quarantined
from pipelines.cluster.local import LocalCluster
from pipelines.commands.show_funnel import show_funnel
from pipelines.commands.show_plan import show_plan
from pipelines.contracts.edits import EDITS, edits_column
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.manifest import load_corpus, load_step, remove_step, without_validation, write_table
from pipelines.contracts.reads import TEXT, Text
from pipelines.contracts.shard_set import open_shard
from pipelines.contracts.stage import PartStage
from pipelines.planning.corpus import StepConfig, load_corpus_config
from pipelines.planning.forecast import forecast
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.planning.poison import load_poison, record_poison
from pipelines.planning.published import explain


def plan_of(path, *overrides, steps=None):
    config = load_corpus_config(path, overrides)
    if steps is not None:
        config = replace(config, steps=steps)
    return make_plan(config, take_inventory(config.sources, config.place))


def run(path, *overrides, steps=None):
    plan = plan_of(path, *overrides, steps=steps)
    said = []
    return plan, build(plan, LocalCluster(), said.append), said


def files_of(root):
    """Return the bytes of every file of a result, except those that hold times or cached checksums."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name not in ("run.json", ".checksums.json", "report.html"):
            found[str(path.relative_to(root))] = path.read_bytes()
    return found


def unfinished(plan):
    return {step.label for step in plan.steps if load_step(plan.config.place, step.directory) is None}


def test_every_document_is_accounted_for(built_corpus_file, tmp_path):
    _, corpus, _ = run(built_corpus_file)
    web = corpus.sources["web"]
    assert (web["in"], web["kept"], web["quarantined"]) == (42, 40, {"not_json": 2})
    assert corpus.sources["code"]["quarantined"] == {"empty": 1}
    for source in ("web", "code"):
        rows = [row for row in corpus.funnel if row["source"] == source]
        alive = corpus.sources[source]["kept"]
        for row in rows:
            assert row["documents_in"] == alive
            alive -= sum(row["dropped"].values())
            assert row["documents_out"] == alive
        assert alive == sum(shard.documents for shard in corpus.shard_sets["shards"].shards if shard.source == source)
    dropped = {rule: n for row in corpus.funnel for rule, n in row["dropped"].items() if row["source"] == "web"}
    assert dropped == {"gopher_quality.word_count": 1, "dedup_exact": 1, "dedup_minhash": 1}


def test_shards_hold_the_kept_texts(built_corpus_file, tmp_path):
    from tokenizer.encode import Encoder

    _, corpus, _ = run(built_corpus_file)
    shards = corpus.shard_sets["shards"]
    encoder = Encoder.load(str(tmp_path / "out" / shards.tokenizer.path))
    texts, ids = [], []
    for record in shards.shards:
        shard = open_shard(tmp_path / "out", record.file)
        ends = shard.offsets[1:]
        texts += [encoder.decode(shard.tokens[a:b]) for a, b in zip(shard.offsets[:-1], ends, strict=True)]
        ids += shard.doc_ids.to_pylist()
        assert [len(text.encode()) for text in texts[-len(ends) :]] == shard.n_bytes.tolist()
    assert len(set(ids)) == len(ids)
    raw = [
        json.loads(line)["text"] for f in (tmp_path / "raw/web").iterdir() for line in f.read_text().splitlines()[:-1]
    ]
    code = [f.read_text() for f in (tmp_path / "raw/code").iterdir() if f.stat().st_size]
    assert set(texts) <= {*raw, *code}
    assert len(texts) == len(set(raw)) - 2 + len(code)  # but for the short one and one near-copy


@pytest.mark.long
def test_a_second_build_recomputes_nothing_and_reports_it(corpus_file, tmp_path):
    run(corpus_file)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*-*/**/*")}
    _, _, said = run(corpus_file)
    assert "nothing is recomputed" in said[0]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*-*/**/*")} == before


@pytest.mark.long
def test_a_crash_after_any_write_changes_no_byte(corpus_file, tmp_path, monkeypatch):
    """Each run of the build dies after eight to ten writes, and the next one continues, until one finishes."""
    run(corpus_file)
    wanted = files_of(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")

    class Died(BaseException):
        pass

    real, budget = LocalPath.write_atomic, [0]

    def dying(path, content, check=None):
        budget[0] -= 1
        if budget[0] < 0:
            raise Died
        real(path, content, check)
        if budget[0] == 0:
            raise Died

    monkeypatch.setattr(LocalPath, "write_atomic", dying)
    for crash in range(1, 100):
        budget[0] = 8 + crash % 3
        try:
            run(corpus_file)
            break
        except Died:
            continue
    else:
        pytest.fail("the build never finished")
    assert crash > 8
    assert files_of(tmp_path / "out") == wanted


@pytest.mark.long
def test_parts_and_file_order_change_neither_verdicts_nor_clusters(corpus_file, tmp_path):
    def verdicts(corpus, root):
        return {
            (shard.split, identifier, tuple(opened.tokens[a:b].tolist()))
            for shard in corpus.shard_sets["shards"].shards
            for opened in [open_shard(root, shard.file)]
            for identifier, a, b in zip(
                opened.doc_ids.to_pylist(), opened.offsets[:-1], opened.offsets[1:], strict=True
            )
        }

    _, small, _ = run(corpus_file)
    _, large, _ = run(
        corpus_file, "sources.web.part_bytes=1000000", "sources.code.part_bytes=1", f"output={tmp_path}/large"
    )
    assert verdicts(small, tmp_path / "out") == verdicts(large, tmp_path / "large")
    assert small.funnel == large.funnel


def test_a_changed_threshold_recomputes_decisions_only(built_corpus_file):
    measured = {
        "read.web",
        "read.code",
        "quality_signals.web",
        "text_hash.web",
        "text_hash.code",
        "minhash_signatures.web",
    }
    for bound in (10, 95):
        plan = plan_of(built_corpus_file, f"steps.filter=[{{signal: word_count, at_least: {bound}}}]")
        again = unfinished(plan)
        assert again == {"filter.web", "dedup_exact", "dedup_minhash", "learn_tokenizer", "shards", "funnel"}
        assert not again & measured
        assert "rules" in explain(plan.step("filter.web"), plan.config.place)
        assert explain(plan.step("dedup_exact"), plan.config.place) == "filter.web changed"


def test_another_version_of_a_library_recomputes_what_declares_it(built_corpus_file, monkeypatch):
    import pipelines.contracts.stage as stages

    real = stages.library_version
    monkeypatch.setattr(stages, "library_version", lambda name: "999" if name == "datasketch" else real(name))
    plan = plan_of(built_corpus_file)
    signed = {"minhash_signatures.web", "minhash_signatures.code"}
    assert unfinished(plan) == {*signed, "dedup_minhash", "learn_tokenizer", "shards", "funnel"}
    assert "datasketch: " in explain(plan.step("minhash_signatures.web"), plan.config.place)


def test_a_new_source_does_not_repeat_the_measurements_of_others(built_corpus_file, raw_text):
    (raw_text / "more").mkdir()
    (raw_text / "more" / "a.txt").write_text("Another text of a new source, with the words that it needs to be read.")
    text = built_corpus_file.read_text().replace(
        "steps:", f"  - {{name: more, root: {raw_text}/more, format: text}}\nsteps:"
    )
    built_corpus_file.write_text(text)
    again = unfinished(plan_of(built_corpus_file))
    assert {"read.more", "text_hash.more", "dedup_exact"} <= again
    assert not again & {"read.web", "read.code", "quality_signals.web", "text_hash.web", "minhash_signatures.code"}


def test_a_changed_file_is_read_again(built_corpus_file, raw_text):
    path = raw_text / "code" / "m0.py"
    path.write_text(path.read_text() + "# more\n")
    plan = plan_of(built_corpus_file)
    assert {"read.code", "text_hash.code"} <= unfinished(plan)
    assert "read.web" not in unfinished(plan)
    assert explain(plan.step("read.code"), plan.config.place) == "files changed"


def test_a_file_that_changes_after_planning_stops_the_build(corpus_file, raw_text):
    plan = plan_of(corpus_file)
    (raw_text / "code" / "m0.py").write_text("x = 1\n")
    with pytest.raises(UserError, match=r"m0\.py changed"):
        build(plan, LocalCluster(), lambda line: None)


def test_a_change_that_keeps_size_and_time_is_planned_again_once_it_was_met(corpus_file, raw_text, tmp_path):
    """Checksums are cached by size and time. Unless the cached checksum is corrected, the next plan repeats
    the error.
    """
    (tmp_path / "out").mkdir()
    plan, file = plan_of(corpus_file), raw_text / "code" / "m0.py"
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes()[:-2][::-1] + b"\n\n")
    os.utime(file, ns=times)
    with pytest.raises(UserError, match=r"m0\.py changed"):
        build(plan, LocalCluster(), lambda line: None)
    again = plan_of(corpus_file)
    assert again.step("read.code").fingerprint != plan.step("read.code").fingerprint
    assert again.step("read.web").fingerprint == plan.step("read.web").fingerprint


@pytest.mark.long
def test_the_locations_of_data_and_output_do_not_matter(corpus_file, raw_text, tmp_path):
    run(corpus_file)
    shutil.move(raw_text, tmp_path / "moved")
    roots = [f"sources.{name}.root={tmp_path}/moved/{name}" for name in ("web", "code")]
    run(corpus_file, *roots, f"output={tmp_path}/elsewhere")
    assert files_of(tmp_path / "elsewhere") == files_of(tmp_path / "out")


@pytest.mark.long
@pytest.mark.parametrize("name", ["members", "links"])
def test_a_source_may_be_called_what_a_stage_calls_its_own_units(corpus_file, name):
    corpus_file.write_text(corpus_file.read_text().replace("web", name).replace(f"raw/{name}", "raw/web"))
    rows = run(corpus_file)[1].funnel
    assert [row["documents_out"] for row in rows if row["source"] == name and "dedup" in row["step"]] == [38, 37]


def test_a_directory_that_belongs_to_something_else_is_refused(built_corpus_file, tmp_path):
    with pytest.raises(ConflictError, match="belongs to the corpus 'small', not to 'other'"):
        run(built_corpus_file, "name=other")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("")
    with pytest.raises(ConflictError, match="is not empty and not the output of a corpus"):
        run(built_corpus_file, f"output={tmp_path}/full")


@pytest.mark.long
def test_a_corrupted_count_is_refused(corpus_file, tmp_path, monkeypatch):
    """A receipt that claims more documents than there are stops the publication of its step."""
    real = manifests.StepOutput.finish_unit

    def corrupted(self, unit, files, counts):
        if self.name.startswith(victim) and "kept" in counts:
            counts = {**counts, "kept": counts["kept"] + 1}
        return real(self, unit, files, counts)

    monkeypatch.setattr(manifests.StepOutput, "finish_unit", corrupted)
    for victim in ("read.web", "text_hash.code", "filter.web", "dedup_exact", "dedup_minhash"):
        with pytest.raises(AccountingError, match=f"step {victim}.*the step is not published"):
            run(corpus_file, f"output={tmp_path}/{victim}")
        assert not list((tmp_path / victim).glob(f"{victim}-*/manifest.json"))


@pytest.mark.long
def test_a_flipped_bit_is_found_where_it_is_read(built_corpus_file, tmp_path):
    plan, _, _ = run(built_corpus_file)

    def touch(label):
        if label != "shards":
            run(built_corpus_file, "steps.dedup_minhash.bands=13")
        for record in load_corpus(tmp_path / "out").shard_sets["shards"].shards:
            open_shard(tmp_path / "out", record.file)

    for label, pattern in (
        ("read.web", "parts/*.arrow"),
        ("minhash_signatures.web", "parts/*.arrow"),
        ("shards", "web/*.arrow"),
    ):
        path = next((tmp_path / "out" / plan.step(label).directory).glob(pattern))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(bytes(data))
        with pytest.raises(CorruptFileError, match=path.name):
            touch(label)
        data[len(data) // 2] ^= 4
        path.write_bytes(bytes(data))


def test_the_read_manifest_finds_every_record(built_corpus_file, tmp_path):
    plan, _, _ = run(built_corpus_file)
    directory = plan.step("read.web").directory
    manifest = load_step(tmp_path / "out", directory)
    index = pa.concat_tables(file_indexes(tmp_path / "out" / directory, manifest))
    assert set(index["path"].to_pylist()) == {"0.jsonl", "1.jsonl"}
    assert sum(index["records"].to_pylist()) == 42
    bad = quarantined(tmp_path / "out" / directory, manifest).to_pylist()
    assert [(row["path"], row["record"], row["reason"]) for row in bad] == [
        ("0.jsonl", 20, "not_json"),
        ("1.jsonl", 20, "not_json"),
    ]


@dataclass(frozen=True)
class Shout(PartStage):
    word: str
    by: str
    text: str = "text"
    version: ClassVar[int] = 1

    def reads(self):
        return (Text.parse(self.text),)

    def writes(self):
        return pa.schema([("edits", EDITS)])

    def annotate(self, docs):
        rows = []
        for text in docs[self.text].to_pylist():
            if self.word == "explode" and "jane.roe" in text:
                raise RuntimeError(text)
            at = text.encode().find(self.word.encode())
            rows.append([] if at < 0 else [(at, at + len(self.word.encode()), self.by, "shout")])
        return pa.table({"edits": edits_column(rows)})


def edited(plan, corpus):
    from pipelines.contracts.lineage import open_corpus

    parts = open_corpus(plan.config.place).parts()
    return [text for part in parts for text in part.table(["edited_text"])["edited_text"].to_pylist()]


@pytest.mark.long
def test_a_stage_that_reads_edited_text_edits_the_stored_text(corpus_file):
    steps = (
        StepConfig("a", Shout("jane.roe@example.org", "<EMAIL>"), "shout"),
        StepConfig("b", Shout("to <EMAIL> about", "nobody", "text@a"), "shout", where="a"),
    )
    plan, corpus, _ = run(corpus_file, steps=steps)
    assert any(text.endswith("Write nobody it.") for text in edited(plan, corpus))
    assert not any("jane.roe" in text for text in edited(plan, corpus))


def test_a_document_that_breaks_a_stage_is_named_and_its_text_is_not(corpus_file):
    with pytest.raises(UserError, match=r"^a: document [0-9a-f]{32} of part web/\d+ .*RuntimeError") as caught:
        run(corpus_file, steps=(StepConfig("a", Shout("explode", ""), "shout"),))
    assert "jane" not in str(caught.value)


def test_drops_after_deduplication_are_refused(corpus_file):
    text = corpus_file.read_text().replace(
        "  - learn_tokenizer", "  - filter: [{signal: word_count, at_least: 9}]\n    name: late\n  - learn_tokenizer"
    )
    corpus_file.write_text(text)
    with pytest.raises(ConfigError, match="step late: drops documents after the deduplication step dedup_minhash"):
        plan_of(corpus_file)


def test_drops_after_the_only_copy_of_a_span_are_refused(corpus_file):
    plain = corpus_file.read_text()

    def after_lines(step):
        steps = f"  - dedup_spans: {{unit: line}}\n    name: lines\n  - {step}\n    name: late\n  - learn_tokenizer"
        corpus_file.write_text(plain.replace("  - learn_tokenizer", steps))
        return plan_of(corpus_file)

    for step in ("dedup_spans: {unit: sentence}", "dedup_substrings: {min_left_words: 5}"):
        with pytest.raises(ConfigError, match=r"late: drops .* after lines, which .*, or set its min_left_words to 0"):
            after_lines(step)
    for step in ("dedup_spans: {unit: sentence, min_left_words: 0}", "dedup_substrings: {}"):
        assert "late" in {each.name for each in after_lines(step).steps}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("quality_signals: {}", "language_sgnals: {}", "no such stage"),
        ("sources: [web]", "sources: [wbe]", "no source named 'wbe'"),
        ("tokenizer: learn_tokenizer", "tokenizer: learn_tokenzer", "'learn_tokenzer'; did you mean 'learn_tokenizer'"),
        ("rules: gopher_quality@massivetext", "signal: wrd_count, at_least: 3", "'wrd_count'.*did you mean 'word_count'"),
        ("  - text_hash: {}", "  - text_hash: {}\n  - text_hash: {}", "the step name 'text_hash' occurs twice"),
        ("  - text_hash: {}", "  - text_hash: {}\n    name: funnel", "the step name 'funnel' is taken by the step that"),
        ("  - text_hash: {}", "  - text_hash: {}\n    name: quarantined", "'quarantined' is taken by the quarantined records"),
    ],
)  # fmt: skip
def test_mistakes_in_a_corpus_file_are_explained(corpus_file, old, new, message):
    corpus_file.write_text(corpus_file.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=message):
        plan_of(corpus_file)


@pytest.mark.long
def test_a_full_disk_is_a_clear_error_and_the_build_resumes_later(corpus_file, tmp_path, monkeypatch):
    real = LocalPath.write_atomic

    def full(path, content, check=None):
        if "minhash_signatures" in str(path):
            raise OSError(28, "No space left on device", str(path))
        real(path, content, check)

    monkeypatch.setattr(LocalPath, "write_atomic", full)
    monkeypatch.setattr("pipelines.cluster.local.PAUSE_SECONDS", 0)
    with pytest.raises(UserError, match="No space left on device; fix that and run the same command"):
        run(corpus_file)
    monkeypatch.setattr(LocalPath, "write_atomic", real)
    _, corpus, _ = run(corpus_file)
    assert corpus.shard_sets["shards"].shards


def test_parts_are_written_the_same_way_twice():
    table = pa.table({"a": pa.array([1, 2, None]), "b": pa.array(["x", "y", "z"])})
    written = []
    for _ in range(2):
        sink = pa.BufferOutputStream()
        write_table(table)(sink)
        written.append(sink.getvalue().to_pybytes())
    assert written[0] == written[1]


def test_the_order_of_sources_and_of_edits_is_part_of_what_a_step_is(corpus_file):
    """Shuffles number the parts, and edits are composed in order, so a killed build must not continue in a
    different order.
    """
    before = {step.label: step.fingerprint for step in plan_of(corpus_file).steps}
    text = corpus_file.read_text()
    lines = text.splitlines()
    web, code = (next(i for i, line in enumerate(lines) if f"name: {name}," in line) for name in ("web", "code"))
    lines[web], lines[code] = lines[code], lines[web]
    corpus_file.write_text("\n".join(lines))
    after = {step.label: step.fingerprint for step in plan_of(corpus_file).steps}
    changed = {label for label in before if before[label] != after[label]}
    assert changed == {"dedup_exact", "dedup_minhash", "learn_tokenizer", "shards", "funnel"}
    one, other = StepConfig("a", Shout("x", "y"), "shout"), StepConfig("b", Shout("y", "x"), "shout")
    (first,), (second,) = (
        {step.fingerprint for step in plan_of(corpus_file, steps=steps).steps if step.label == "funnel"}
        for steps in ((one, other), (other, one))
    )
    assert first != second


def test_a_wrong_encoding_says_so(corpus_file, raw_text):
    for path in (raw_text / "code").iterdir():
        path.write_bytes("é".encode("latin-1") * 50)
    text = "\n".join(line for line in corpus_file.read_text().splitlines() if "name: web" not in line)
    corpus_file.write_text(text.replace("sources: [web]", "sources: [code]"))
    with pytest.raises(
        UserError, match=r"source 'code': none of its first \d+ records .* `undecodable` .*; check `encoding: utf-8`"
    ):
        run(corpus_file)


@pytest.mark.long
def test_a_corpus_step_without_sources_drops_nothing(corpus_file):
    def dropped(corpus):
        return {rule for row in corpus.funnel for rule in row["dropped"] if rule.startswith("dedup_minhash")}

    assert dropped(run(corpus_file)[1])
    text = corpus_file.read_text()
    assert text.count("  - dedup_minhash: {}\n") == 1
    corpus_file.write_text(text.replace("  - dedup_minhash: {}\n", "  - dedup_minhash: {}\n    sources: []\n"))
    assert dropped(run(corpus_file)[1]) == set()


@pytest.mark.long
def test_sources_without_validation_documents_are_named(corpus_file, capsys):
    _, corpus, _ = run(corpus_file, "steps.shards.validation_share=0.0001")
    assert without_validation(corpus) == {"shards": ["code", "web"]}
    show_funnel(corpus)
    assert "shards: no validation documents of code, web, so training measures" in capsys.readouterr().out


def test_what_killed_attempts_left_is_removed(built_corpus_file, tmp_path):
    plan, _, _ = run(built_corpus_file)
    leftover = tmp_path / "out" / plan.step("shards").directory / "web" / ".train-00000.arrow.0123.tmp"
    leftover.write_bytes(b"half")
    run(built_corpus_file)
    assert not leftover.exists()


def test_a_task_that_comes_late_leaves_nothing_in_a_published_step(built_corpus_file, tmp_path):
    before = sorted(path for path in (tmp_path / "out").rglob("*"))
    (step,) = (tmp_path / "out").glob("text_hash.web-*")
    part = next((step / "parts").iterdir())
    content = part.read_bytes()
    manifests.StepOutput(tmp_path / "out", step.name).commit("web-00000", {f"parts/{part.name}": content}, {})
    assert sorted(path for path in (tmp_path / "out").rglob("*")) == before


def test_planning_does_not_touch_the_directory_of_another_corpus(corpus_file, tmp_path):
    from pipelines.__main__ import main

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("")
    assert main(["plan", str(corpus_file), f"output={tmp_path}/full"]) == 2
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.doc"]


@dataclass(frozen=True)
class Fragile(PartStage):
    word: str

    def reads(self):
        return (TEXT,)

    def writes(self):
        return pa.schema([("length", pa.int64())])

    def annotate(self, docs):
        lengths = []
        for text in docs["text"].to_pylist():
            if self.word in text:
                raise RuntimeError(text)
            lengths.append(len(text))
        return pa.table({"length": lengths})


@pytest.mark.long
def test_poison_stops_the_build_or_is_quarantined_and_counted(corpus_file, tmp_path):
    config = load_corpus_config(corpus_file)
    fragile = StepConfig("fragile", Fragile("jane.roe"), "fragile", ("web",))
    config = replace(config, steps=(fragile, *config.steps))
    inventories = take_inventory(config.sources, tmp_path / "out")
    said = []
    with pytest.raises(PoisonError, match=r"fragile: document [0-9a-f]{32} .* RuntimeError"):
        plan_and_build(config, inventories, LocalCluster(), said.append)
    corpus = plan_and_build(config, inventories, LocalCluster(), said.append, quarantine=True)
    row = next(row for row in corpus.funnel if row["step"] == "fragile")
    assert row["dropped"] == {"poison": 1}
    assert row["documents_in"] - row["documents_out"] == 1
    opened = open_corpus(tmp_path / "out")
    columns = pa.concat_tables(part.table(("text", "length", "drop")) for part in opened.parts("web")).to_pylist()
    (aside,) = [row for row in columns if row["drop"] == "poison"]
    assert "jane.roe" in aside["text"]
    assert aside["length"] is None
    assert all(row["length"] == len(row["text"]) for row in columns if row is not aside)
    assert sum("set aside" in line for line in said) == 1
    # What was set aside stays so, and nothing is recomputed; without it the other source's steps are the same.
    plan = make_plan(config, inventories, load_poison(tmp_path / "out"))
    assert not unfinished(plan)
    assert plan.step("fragile.web").fingerprint != make_plan(config, inventories).step("fragile.web").fingerprint
    assert plan.step("text_hash.code") == make_plan(config, inventories).step("text_hash.code")


def test_a_step_that_fails_again_on_the_same_document_does_not_loop(tmp_path):
    error = PoisonError("broken", "read", "web", "a#1", "crash")
    assert str(pickle.loads(pickle.dumps(error))) == "broken"
    record_poison(tmp_path, error)
    with pytest.raises(PoisonError):
        record_poison(tmp_path, error)
    record_poison(
        tmp_path, PoisonError("broken", "read", "forum", "a#1", "crash")
    )  # another source may have such a file
    assert load_poison(tmp_path) == {("read", "web"): ("a#1",), ("read", "forum"): ("a#1",)}


@pytest.mark.long
def test_what_a_stage_costs_is_said_before_it_runs(corpus_file, tmp_path, capsys):
    @dataclass(frozen=True)
    class Dear(Shout):
        def notice(self):
            return "takes a year"

    config = load_corpus_config(corpus_file)
    config = replace(config, steps=(StepConfig("dear", Dear("x", "y"), "dear"), *config.steps))
    plan = make_plan(config, take_inventory(config.sources, tmp_path / "out"))
    show_plan(plan, tmp_path / "out", forecast(plan, [tmp_path / "out"]))
    assert "dear: takes a year" in capsys.readouterr().out
    said = []
    build(plan, LocalCluster(), said.append)
    assert sum("dear: takes a year" in line for line in said) == 1
    show_plan(plan, tmp_path / "out", forecast(plan, [tmp_path / "out"]))
    assert "takes a year" not in capsys.readouterr().out


def test_a_read_task_that_breaks_names_its_files(corpus_file, monkeypatch):
    def exhaust(*_):
        raise MemoryError

    monkeypatch.setattr("pipelines.building.read_step.read_documents", exhaust)
    monkeypatch.setattr("pipelines.cluster.local.PAUSE_SECONDS", 0)
    with pytest.raises(BrokenTaskError, match=r"^read web: files 00000 \(0\.jsonl to 1\.jsonl\): failed 3 times"):
        run(corpus_file, "sources.web.part_bytes=1000000")


@pytest.mark.long
def test_poison_in_a_file_does_not_read_the_others_again(corpus_file, tmp_path, monkeypatch):
    import pipelines.building.read_step as read_step

    config = load_corpus_config(corpus_file, ["sources.code.part_bytes=1"])
    inventories = take_inventory(config.sources, tmp_path / "out")
    real, read = read_step.read_documents, []

    def breaking(source, files, part_bytes, poison=(), forgotten=()):
        read.extend(file.path for file in files)
        for path in ("m3.py", "m8.py"):
            if any(file.path == path for file in files) and f"{path}#0" not in poison:
                raise PoisonError("broken", "read", source.name, f"{path}#0", "crash")
        return real(source, files, part_bytes, poison, forgotten)

    monkeypatch.setattr(read_step, "read_documents", breaking)
    plan_and_build(config, inventories, LocalCluster(), lambda line: None, quarantine=True)
    assert {path: read.count(path) for path in ("m0.py", "m3.py", "m8.py", "m9.py")} == {
        "m0.py": 1, "m3.py": 2, "m8.py": 2, "m9.py": 1,
    }  # fmt: skip
    assert load_poison(tmp_path / "out") == {("read", "code"): ("m3.py#0", "m8.py#0")}
    assert load_corpus(tmp_path / "out").sources["code"]["in"] == 13


def test_a_plan_says_what_an_interrupted_build_has_finished(corpus_file, capsys):
    def interrupt(phase, done, total):
        if done == 2:
            raise KeyboardInterrupt

    plan = plan_of(corpus_file, "sources.code.part_bytes=200")
    with pytest.raises(KeyboardInterrupt):
        build(plan, LocalCluster(interrupt), lambda line: None)
    show_plan(plan, plan.config.place, forecast(plan, []))
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "will run" in line}
    assert "finished units are kept" in lines["read.web"] or "finished unit is kept" in lines["read.web"]
    assert "kept" not in lines["shards"]


def test_an_output_that_cannot_be_written_says_so_before_anything_is_read(corpus_file, tmp_path, capsys):
    (tmp_path / "file").touch()
    for output in ("/proc/x", f"{tmp_path}/file/x"):
        assert main(["build", str(corpus_file), f"output={output}", "--in-process"]) == 2
        said = capsys.readouterr()
        assert re.fullmatch(rf"error: {output}: is not writable \(.+\); choose another `output`\n", said.err)
        assert "looking at the files" not in said.out


@pytest.mark.long
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_step_whose_files_are_gone_is_not_published_and_built_by_the_next_build(
    corpus_file, tmp_path, monkeypatch, moment
):
    """Another command removes the step as a leftover, right before or right after the build has checked the
    step's files.
    """
    from pipelines.building import state

    check = state.Build._check_files

    def look(self, step, manifest):
        if moment == "after":
            check(self, step, manifest)
        if step.label == "read.web":
            remove_step(self.root / step.directory)
        if moment == "before":
            check(self, step, manifest)

    with monkeypatch.context() as patch:
        patch.setattr(state.Build, "_check_files", look)
        with pytest.raises(ConflictError, match="was removed by another command while the step was built"):
            run(corpus_file)
    assert not list((tmp_path / "out").glob("read.web-*/manifest.json"))
    run(corpus_file)
    assert sum(part.rows for part in open_corpus(tmp_path / "out").parts("web")) == 40


@pytest.mark.long
def test_a_leftover_part_that_another_build_removes_first_is_gone(corpus_file, tmp_path, monkeypatch):
    glob = LocalPath.glob

    def swept(self, pattern):
        found = list(glob(self, pattern))
        return iter([*found, self / "parts" / ".gone.tmp"] if pattern == "parts/*" else found)

    monkeypatch.setattr(LocalPath, "glob", swept)
    run(corpus_file)
    assert sum(part.rows for part in open_corpus(tmp_path / "out").parts("web")) == 40
