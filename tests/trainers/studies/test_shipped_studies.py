"""Every shipped study runs from its file to its page (corpora, runs, verdict), with small models and little
text.
"""

import csv
import gzip
import json
from pathlib import Path

import pytest

from gristmill.storage.store import read_json
from tests.conftest import paragraph
from tests.trainers.launching import ROOT
from trainers.__main__ import main
from trainers.studies.designs.study_entries import variants_of
from trainers.studies.running.study_directory import load_study, root_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
FOLDER = ROOT / "corpora_configs" / "studies"
STUDIES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
SIZES = ["settings.model.width=32", "settings.model.feed_forward=64", "settings.data.sequence_length=64"]
SMALL = ["proxies.tokens=5e3", "metrics.tokens=512", "metrics.last=1", "settings.schedule.warmup_steps=2"]
MASKED_TEXT = ["metrics.tokens=4096", "settings.batch.sequences=8"]
NOISY = ["korean_10", "korean_30", "mojibake_10", "mojibake_30", "insults_10", "insults_30"]
# What is changed in each file beside SMALL: amounts that it names in tokens, and settings that the little text asks for.
CHANGES = {
    "amount_of_data": [*SIZES, "design.entries.quarter.settings={budget.tokens: 2e3}"],
    "deduplication": [*SIZES, "design.seeds=2"],
    "demo_mixture": [
        *SIZES,
        "design.runs=10",
        "proposal={max_epochs: null, draws: 20}",
        "confirmation.own={more_code: {code: 0.8, plays: 0.2}}",
        "confirmation.tokens=5e3",
        "confirmation.seeds=2",
        "confirmation.settings={}",
    ],
    "harmful_noise": [
        *SIZES,
        "design.seeds=2",
        *(f"design.entries.{n}.settings={{budget.tokens: 6e3}}" for n in NOISY),
    ],
    "order": [
        *SIZES,
        "design.entries.plays_first.settings={data.stages: [{until_tokens: 2500, weights: {plays: 1}}]}",
        "design.entries.code_first.settings={data.stages: [{until_tokens: 2500, weights: {code: 1}}]}",
    ],
    "quality_cut": [*SIZES, "design.seeds=2"],
    "scaling_ladder": [*SIZES[1:], "design.axes={model.width: [16, 32, 64], budget.tokens: [2e3, 3e3, 5e3]}"],
    "t5_denoising": MASKED_TEXT,
    "t5_language_models": ["settings.batch.sequences=8"],
    "tokenizer_size": [*SIZES, "design.seeds=2", "design.corpus={steps.learn_tokenizer.vocab_size: [500, 700]}"],
    "vocabulary_transfer": [*SIZES, "design.seeds=2"],
}


def write_texts(folder: Path) -> None:
    """Write small files of generated text in place of the development data that the corpus files name."""
    (folder / "data" / "prose").mkdir(parents=True)
    (folder / "data" / "toxicity").mkdir()
    names = ("forum_20news", "legal_dc_acts_laws", "news_bbc", "textbooks", "wiki_ko", "wiki_zh")
    for number, name in enumerate(names):
        texts = [paragraph(1000 * number + i, 60 + 20 * (i % 4)) for i in range(40)]
        if name == "legal_dc_acts_laws":
            texts = [f"{text} Version {version}." for text in texts[:20] for version in ("one", "two")]  # near-copies
        if name == "forum_20news":
            texts = [text + " 1 2 3 4 5 6 7 8 9" * (i % 3) for i, text in enumerate(texts)]
        with gzip.open(folder / "data" / "prose" / f"{name}.jsonl.gz", "wt") as out:
            out.writelines(f"{json.dumps({'text': text})}\n" for text in texts)
    with gzip.open(folder / "data" / "toxicity" / "davidson_labeled_data.csv.gz", "wt", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["class", "tweet"])
        rows.writerows([number % 3, paragraph(9000 + number, 15)] for number in range(200))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with the files that the studies name. Tokenizers are small because there is little
    text.
    """
    (tmp_path / "corpora_configs").mkdir()
    for name in ("study_prose.yaml", "noisy_prose.yaml"):
        text = (ROOT / "corpora_configs" / name).read_text()
        assert "vocab_size: 4096" in text
        (tmp_path / "corpora_configs" / name).write_text(text.replace("vocab_size: 4096", "vocab_size: 600"))
    write_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


@pytest.mark.parametrize("name", STUDIES)
def test_it_runs_to_its_page(name, place, corpus_directory, capfd):
    file = FOLDER / f"{name}.yaml"
    changes = [*SMALL, *CHANGES[name]]
    if load_study(file).corpora:
        changes.append(f"corpora=[{corpus_directory}]")
    if name == "vocabulary_transfer":
        parent = [word.removeprefix("settings.") for word in SIZES]
        words = [f"corpus={corpus_directory}", "run=runs/demo", "budget.steps=2", "schedule.warmup_steps=0"]
        assert main(["pretrain", "demo_decoder", *words, *parent]) == 0
    assert main(["study", "plan", str(file), *changes]) == 0
    assert main(["study", "run", str(file), *changes]) == 0
    printed = capfd.readouterr().out
    assert "the baseline" in printed
    study = load_study(file, changes)
    root = root_of(study)
    states = {path: read_json(path)["state"] for path in root.glob("runs/*/result.json")}
    assert set(states.values()) == {"finished"}, printed
    page = (root / "report.html").read_text()
    assert study.question in page
    assert "kWh" in page
    if name == "scaling_ladder":
        assert main(["study", "scaling", str(root)]) in (0, 2)  # so few steps may follow no law
    for variant in variants_of(study):
        assert variant.is_built
