"""Stages that read text measure the stored or the edited text, as one option says."""

import json

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.contracts.reads_text import MeasuresText, ReadsText
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan
from pipelines.stages import STAGES
from pipelines.stages.measure.language import Language
from pipelines.stages.measure.minhash_signatures import MinhashSignatures
from pipelines.stages.measure.peer_signals import PeerSignals
from pipelines.stages.measure.quality_signals import QualitySignals
from pipelines.stages.measure.text_hash import TextHash
from tests.conftest import paragraph, write_texts_corpus

MENU = "Home | News | Contact"
TEXTS = [f"{MENU}\n{paragraph(k)}\n{MENU}\nNothing ends this line" for k in range(4)] + [paragraph(9)]
C4 = "c4_lines: {rules: tfds}"


@pytest.fixture
def planned(tmp_path):
    """Return a function that plans a corpus of `TEXTS` with the given steps."""

    def plan(*steps, texts=TEXTS, name="c"):
        path = write_texts_corpus(tmp_path, texts, steps, name)
        config = load_corpus_config(path)
        return make_plan(config, take_inventory(config.sources, config.place))

    return plan


def built(plan):
    build(plan, LocalCluster(), lambda line: None)
    return next(open_corpus(plan.config.place).parts())


def test_every_stage_that_reads_text_has_the_knob():
    measure = {name for name, stage in STAGES.items() if issubclass(stage, MeasuresText)}
    assert measure == {
        "c4_lines",
        "decontaminate",
        "language",
        "minhash_signatures",
        "peer_signals",
        "quality_signals",
        "refinedweb_lines",
        "text_hash",
    }
    others = {
        "classifier",
        "dedup_spans",
        "dedup_substrings",
        "mojibake",
        "patterns",
        "perplexity",
        "pii",
        "topics",
        "transformer_classifier",
        "transformer_embeddings",
        "word_list",
    }
    assert {name for name, stage in STAGES.items() if issubclass(stage, ReadsText)} == measure | others


@pytest.mark.long
@pytest.mark.parametrize(
    "stage", [QualitySignals(), PeerSignals(), TextHash(), Language(), MinhashSignatures()], ids=type
)
def test_edited_text_is_measured_as_if_it_were_stored(stage, planned):
    name = next(name for name, kind in STAGES.items() if isinstance(stage, kind))
    part = built(planned(C4, f"{name}: {{text: edited_text, prefix: edited_}}", f"{name}: {{}}\n    name: stored"))
    for prefix, text in (("edited_", "edited_text"), ("", "text")):
        docs = part.table(("id", text)).rename_columns(["id", "text"])
        expected = stage.annotate(docs)
        found = part.table([f"{prefix}{column}" for column in expected.column_names])
        assert found.rename_columns(expected.column_names).cast(expected.schema).equals(expected)
    assert part.table(("edited_text",))["edited_text"][0].as_py() == paragraph(0)


@pytest.mark.long
def test_text_up_to_a_step_has_the_edits_of_no_later_one(planned):
    texts = [f"{MENU}\nJane writes to jane.roe@example.org today.\n{paragraph(1)}"]
    pii = "pii: {entities: [EMAIL_ADDRESS], text: edited_text}"
    before, after = "quality_signals: {text: text@c4_lines, prefix: lines_}", "quality_signals: {text: edited_text}"
    part = built(planned(C4, pii, f"{before}\n    name: lines", after, texts=texts))
    sizes = part.table(("lines_n_bytes", "n_bytes")).to_pylist()[0]
    left = texts[0].removeprefix(f"{MENU}\n")
    assert sizes["lines_n_bytes"] == len(left)
    assert sizes["n_bytes"] == len(left.replace("jane.roe@example.org", "<EMAIL_ADDRESS>"))


@pytest.mark.long
def test_a_filter_tests_the_columns_of_either_text(planned):
    """FineWeb's rule on short lines drops all pages but one by their stored text, and none by the text that
    C4's line rules leave.
    """
    signals = ["quality_signals: {}", "peer_signals: {}", C4,
               "quality_signals: {text: edited_text, prefix: edited_}\n    name: again",
               "peer_signals: {text: edited_text, prefix: edited_}\n    name: peers_again"]  # fmt: skip
    short = "filter: [{signal: %sshort_line_ratio_datatrove, at_most: 0.67, name: fineweb.short}]"
    stored = built(planned(*signals, short % "", name="a")).table(("drop",))["drop"].to_pylist()
    assert stored == ["fineweb.short"] * 4 + [None]
    edited = built(planned(*signals, "filter: [{rules: fineweb@datatrove, prefix: edited_}]", name="b"))
    assert edited.table(("drop",))["drop"].to_pylist() == [None] * 5


def test_a_changed_edit_measures_again_what_reads_it_and_nothing_else(planned):
    steps = ["quality_signals: {}", "%s", "text_hash: {text: edited_text}", "minhash_signatures: {text: text@c4_lines}",
             "language: {}", "pii: {text: edited_text, entities: [IP_ADDRESS]}"]  # fmt: skip
    one, other = (planned(*(step.replace("%s", c4) for step in steps)) for c4 in (C4, C4.replace("tfds", "paper")))
    changed = {
        step.name for step, then in zip(one.steps, other.steps, strict=True) if step.fingerprint != then.fingerprint
    }
    assert changed == {"c4_lines", "text_hash", "minhash_signatures", "pii", "funnel"}
    assert {step.name: step.inputs() for step in one.steps}["text_hash"] == ("read.web", "c4_lines.web")


def test_an_edit_after_the_named_step_changes_nothing(planned):
    signals = "quality_signals: {text: text@c4_lines}"
    later = "pii: {entities: [IP_ADDRESS]}"
    one, other = planned(C4, signals), planned(C4, later, signals)
    assert one.step("quality_signals.web").fingerprint == other.step("quality_signals.web").fingerprint


def test_near_copies_are_found_in_edited_text(planned):
    """Two pages of one article with different menus are near-copies once the menus are removed."""
    menus = ["\n".join(f"{word} {k} | {word}" for k in range(60)) for word in ("Home", "News")]
    texts = [f"{menu}\n{paragraph(1)}" for menu in menus]
    drops = {}
    for text in ("text", "edited_text"):
        steps = [C4, f"minhash_signatures: {{text: {text}}}", "dedup_minhash: {}"]
        drops[text] = built(planned(*steps, texts=texts, name=text)).table(("drop",))["drop"].to_pylist()
    assert drops["text"] == [None, None]
    assert sorted(map(str, drops["edited_text"])) == ["None", "dedup_minhash"]


def test_contamination_of_edited_text_is_cut_out_of_the_stored_one(planned, tmp_path):
    question = "what is the tallest mountain that stands in the whole of the solar system today?"
    (tmp_path / "set.jsonl").write_text(json.dumps({"question": question}) + "\n")
    sets = f"sets: [{{name: quiz, file: {tmp_path}/set.jsonl, prompts: [question]}}]"
    text = f"{MENU}\n{paragraph(1)}\n{MENU}\n{question} And so on."
    part = built(planned(C4, f"decontaminate: {{{sets}, text: edited_text, redact_at: 0.9}}", texts=[text]))
    assert part.table(("edited_text",))["edited_text"].to_pylist() == [f"{paragraph(1)}\n? And so on."]
    assert part.table(("contamination_prompt",))["contamination_prompt"].to_pylist() == [1.0]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (["quality_signals: {}", C4, "quality_signals: {text: edited_text}\n    name: again"],
         r"step again: writes the column 'n_bytes' for web, as quality_signals does; give one of them a `prefix`"),
        ([C4, "text_hash: {text: text@later}"], r"step text_hash: reads 'text@later', but no earlier step is named 'later'"),
        (["text_hash: {text: edited}"], r"text: got 'edited', allowed: text, text@STEP, edited_text"),
        (["language: {prefix: a-}"], r"prefix: got 'a-', expected letters"),
        (["quality_signals: {}", "filter: [{signal: n_bytes, at_least: 1, prefix: a_}]"], "prefix: got 'a_' with a signal"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_where_it_is_planned(steps, message, planned):
    with pytest.raises(ConfigError, match=message):
        planned(*steps)


def test_shingles_of_stored_text_are_not_compared_for_signatures_of_edited_text(planned):
    steps = [C4, "minhash_signatures: {text: edited_text}", "dedup_minhash: {verify: jaccard, threshold: 0.8}"]
    with pytest.raises(UserError, match="the signatures are of edited ones"):
        built(planned(*steps))


def test_a_prefix_changes_names_and_no_values():
    docs = pa.table({"id": pa.array([b"\0" * 16], pa.binary(16)), "text": pa.array(TEXTS[:1], pa.large_string())})
    plain, named = (parse(QualitySignals, knobs, "x") for knobs in ({}, {"prefix": "a_"}))
    assert named.annotate(docs).column_names == [f"a_{name}" for name in plain.writes().names]
    assert named.annotate(docs.slice(1)).num_rows == 0
