"""N-grams and distributions of two corpora, against plain counts over the texts that they keep."""

import json
import math
import re
from collections import Counter

import numpy as np
import pytest

from pipelines.building.build import build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.lineage import open_corpus
from pipelines.explore.comparison import compare_ngrams as module
from pipelines.explore.comparison.compare_corpora import compare_corpora
from pipelines.explore.comparison.compare_ngrams import compare_ngrams, log_odds_scores
from pipelines.explore.comparison.corpora_page import corpora_page
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from pipelines.planning.plan import make_plan

MAIL = "jane.roe@example.org"
COMMON = ["The mill at the river grinds corn all year.", "People of the village have bread with it."]
OLD = [f"{COMMON[n % 2]} Snow falls in the winter of year {n}." for n in range(60)]
NEW = [f"{COMMON[n % 2]} Rain falls in the summer of year {n}. <b>Write to {MAIL}</b>" for n in range(80)]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """Two corpora whose pii step only annotates; texts of one word are dropped and must not be counted."""
    root, outputs = tmp_path_factory.mktemp("ngrams"), []
    for name, texts in (("old", OLD), ("new", NEW)):
        (root / name).mkdir()
        lines = [json.dumps({"text": text}) for text in [*texts, *["dropped"] * 50]]
        (root / name / "a.jsonl").write_text("\n".join(lines))
        path = root / f"{name}.yaml"
        path.write_text(f"""\
name: {name}
output: {root}/{name}-out
sources: [{{name: web, root: {root}/{name}, format: jsonl, part_bytes: 2000}}]
steps:
  - quality_signals: {{}}
  - filter: [{{signal: word_count, at_least: 3}}]
  - pii: {{entities: [EMAIL_ADDRESS], action: annotate}}
""")
        config = load_corpus_config(path)
        build(make_plan(config, take_inventory(config.sources, config.place)), LocalCluster(), lambda line: None)
        outputs.append(open_corpus(config.place))
    return outputs


def counts(texts, words):
    """Count the n-grams of `words` words in the texts, in plain Python."""
    found = Counter()
    for text in texts:
        each = re.findall(r"[a-z0-9_]+", text.replace(MAIL, "<EMAIL_ADDRESS>").lower())
        found.update(" ".join(each[i : i + words]) for i in range(len(each) - words + 1))
    return found


def score(old, new, text):
    """Return the z-score of an n-gram by equations 15, 16, 20 and 22 of Monroe et al. 2008, with the counts of both corpora
    as the prior.
    """
    prior, sizes = old[text] + new[text], [sum(old.values()), sum(new.values())]
    total = sum(sizes)
    odds = [
        math.log((side[text] + prior) / (size + total - side[text] - prior))
        for side, size in zip((old, new), sizes, strict=True)
    ]
    return (odds[1] - odds[0]) / math.sqrt(1 / (old[text] + prior) + 1 / (new[text] + prior))


@pytest.mark.long
@pytest.mark.parametrize("words", [1, 2, 3])
def test_counts_and_scores_are_those_of_a_plain_program(corpora, words):
    comparison = compare_ngrams(*corpora, 3)
    old, new = counts(OLD, words), counts(NEW, words)
    scores = {text: score(old, new, text) for text in old | new}
    for more in (True, False):
        changes = comparison.of(words, more)
        assert changes
        for change in changes:
            assert (change.old, change.new) == (old[change.text], new[change.text])
            assert change.score == pytest.approx(scores[change.text], abs=1e-3)
        extreme = max(scores.values()) if more else min(scores.values())
        assert changes[0].score == pytest.approx(extreme, abs=1e-3)
    assert comparison.documents == (60, 80)
    assert comparison.words == (sum(counts(OLD, 1).values()), sum(counts(NEW, 1).values()))


@pytest.mark.long
def test_personal_data_that_a_step_only_annotates_is_not_shown(corpora):
    comparison = compare_ngrams(*corpora, 2)
    shown = [change.text for change in comparison.ngrams]
    assert any("email_address" in text for text in shown)
    assert not any("jane" in text for text in shown)


def test_a_corpus_has_no_over_represented_ngrams_against_itself(corpora):
    assert compare_ngrams(corpora[0], corpora[0], 3).ngrams == []


def test_scores_have_the_sign_of_the_change_and_swap_with_the_corpora():
    old, new = np.array([50, 5, 0, 100]), np.array([5, 50, 20, 100])
    scores = log_odds_scores(old, new)
    assert (np.sign(scores[:3]) == [-1, 1, 1]).all()
    assert scores == pytest.approx(-log_odds_scores(new, old))
    assert abs(log_odds_scores(np.array([1, 1000]), np.array([0, 1000]))[0]) < 1  # rare: no evidence


@pytest.mark.long
def test_both_samples_hold_the_same_documents(corpora, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_BYTES", 2000)
    comparison = compare_ngrams(corpora[1], corpora[1], 1)
    assert 0 < comparison.documents[0] == comparison.documents[1] < 80
    assert comparison.share == pytest.approx(2000 / sum(map(module._kept_bytes, corpora[1].parts())), abs=1e-6)
    assert comparison.ngrams == []


def test_distances_are_those_of_the_kept_values(corpora):
    changes = {c.column: c for c in compare_corpora(*(corpus.directory for corpus in corpora)).distributions}
    for column in ("word_count", "n_chars"):
        values = []
        for corpus in corpora:
            tables = [part.table((column,), part.kept_rows())[column] for part in corpus.parts()]
            values.append(np.sort(np.concatenate([np.asarray(table) for table in tables])))
        ends = np.unique(np.concatenate(values))  # below 100, each whole number has its bin
        shares = [np.searchsorted(side, ends, side="right") / len(side) for side in values]
        if ends.max() < 100:
            assert changes[column].distance == pytest.approx(np.abs(shares[0] - shares[1]).max(), abs=1e-6)
        facts = changes[column].as_json()
        assert (facts["old"]["documents"], facts["new"]["documents"]) == (60, 80)
    assert changes["word_count"].distance > 0.9


@pytest.mark.long
def test_texts_of_documents_are_escaped(corpora):
    page = corpora_page(compare_corpora(*(corpus.directory for corpus in corpora), ngrams=2), 2)
    assert "<b>" not in page.partition("</nav>")[2]
    assert "email_address" in page
