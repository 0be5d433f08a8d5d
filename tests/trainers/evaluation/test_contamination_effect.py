"""Items planted in a corpus are written, searched for, found, and left out of the score."""

import json
from dataclasses import replace

import pytest

from gristmill.storage.parsing import parse_location
from pipelines.building.build import plan_and_build
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.contamination.found_items import read_contamination
from pipelines.planning.corpus import load_corpus_config
from pipelines.planning.inventory import take_inventory
from tests.conftest import paragraph
from tests.trainers.tasks.writing import write_lines
from trainers.__main__ import main
from trainers.evaluation.suites.clean_scores import clean_scores, corpus_shares
from trainers.evaluation.suites.run_evaluation import EvaluationSettings, evaluate_models
from trainers.tasks.load_task import load_task

ITEMS = 12
PLANTED = (2, 3, 5)  # whole passages; item 7 is in a document that is dropped, and 9 only in part


def passage(number):
    return " ".join(f"passage{number}word{i}" for i in range(20))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    root = tmp_path_factory.mktemp("planted")
    items = [{"p": passage(n), "q": f"is it number {n}", "y": n % 2} for n in range(ITEMS)]
    items[3]["p"] = items[2]["p"]
    items[3]["q"] = items[2]["q"]  # a copy
    items[11] = {"p": "short", "q": "is it", "y": 0}
    write_lines(root / "yes.jsonl", items)
    (root / "yes.yaml").write_text(
        "kind: classify\nfiles: {dev: yes.jsonl}\ncolumns: {text: q, text_b: p, label: y}\nlabels: [0, 1]\n"
        'metrics: [accuracy]\nprompt: {context: "{text_b} {text}?", continuation: " {label}"}\n'
    )
    assert main(["evaluate", f"task={root / 'yes.yaml'}", "--write-items", str(root / "items.jsonl")]) == 0
    texts = [paragraph(n) for n in range(30)]
    for number in (2, 5):
        texts[number] += " " + passage(number) + f" is it number {number}"
    texts[7] = "drop " * 3 + passage(7)
    texts[9] += " " + " ".join(passage(9).split()[:10])
    write_lines(root / "texts.jsonl", [{"text": text} for text in texts])
    (root / "corpus.yaml").write_text(f"""\
name: planted
output: {root}/out
sources: [{{name: web, root: {root}/texts.jsonl, format: jsonl}}]
steps:
  - decontaminate: {{ngram: 8, sets: [{{name: eval, file: {root}/items.jsonl, ids: id, prompts: [prompt], answers: [answer]}}]}}
  - decontaminate: {{ngram: 13, prefix: long_, sets: [{{name: eval, file: {root}/items.jsonl, ids: id, prompts: [prompt]}}]}}
    name: decontaminate_long
  - quality_signals: {{}}
  - filter: [{{signal: word_count, at_least: 24}}]
  - text_hash: {{}}
  - dedup_exact: {{}}
  - learn_tokenizer: {{vocab_size: 500, sample_bytes: 20000}}
  - shards: {{tokenizer: learn_tokenizer, validation_share: 0}}
""")
    config = load_corpus_config(root / "corpus.yaml", ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.building.publish.write_report", lambda *arguments: False)
        plan_and_build(config, take_inventory(config.sources, root / "out"), LocalCluster(), lambda _: None)
    return root / "out"


def test_the_file_has_all_that_a_model_is_given(corpus):
    lines = [json.loads(line) for line in (corpus.parent / "items.jsonl").read_text().splitlines()]
    assert len(lines) == ITEMS
    assert lines[1] == {"id": "yes/dev/1", "prompt": f"{passage(1)}\nis it number 1", "answer": []}


def test_kept_training_documents_count_and_copies_are_found_with_their_first(corpus):
    found = read_contamination(parse_location(str(corpus)))
    assert {item: share for item, share in found.shares.items() if share} == {
        "eval#yes/dev/2": 1.0, "eval#yes/dev/3": 1.0, "eval#yes/dev/5": 1.0, "eval#yes/dev/9": pytest.approx(10 / 24),
    }  # fmt: skip
    assert len(found.shares) == ITEMS - 1  # the short one is not searched for
    assert found.documents["eval#yes/dev/3"] == 1
    assert not any(read_contamination(parse_location(str(corpus)), lambda source: False).shares.values())


@pytest.mark.long
def test_scores_with_and_without_the_found_items_stand_side_by_side(corpus, random_run, tmp_path, capsys):
    run, output = random_run("llama_tiny", corpus_directory=corpus), tmp_path / "page.html"
    task = str(corpus.parent / "yes.yaml")
    assert main(["evaluate", str(run), f"task={task}", "--output", str(output)]) == 0
    shown = capsys.readouterr()
    assert "was not searched" not in shown.err
    row = next(line for line in shown.out.splitlines() if " 12     11        3 " in line)
    (result,) = evaluate_models([run], [(load_task(task), "dev")], None, EvaluationSettings(), lambda line: None)
    right = result.statistics[:, 0]
    left = [right[n] for n in range(ITEMS) if n not in PLANTED]
    assert f"{right.mean():.4f} ± " in row
    assert f"{sum(left) / len(left):.4f} ± " in row
    assert "Items in the training corpus" in output.read_text()
    shares = corpus_shares(run, ["yes"], pytest.fail)
    (score,) = clean_scores([replace(result, model="m")], {"m": shares})
    assert (score.items, score.searched, score.found) == (ITEMS, ITEMS - 1, len(PLANTED))
    assert score.only.value == pytest.approx(sum(right[n] for n in PLANTED) / len(PLANTED))


def test_a_corpus_that_was_not_searched_says_how(corpus, random_run, capsys):
    task = corpus.parent / "yes.yaml"
    assert main(["evaluate", str(random_run("llama_tiny", seed=4)), f"task={task}", "limit=2"]) == 0
    shown = capsys.readouterr()
    assert "was not searched for the items of yes; `python -m trainers evaluate task=yes --write-items" in shown.err
    assert "without found" not in shown.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=piqa", "--write-items", "items.txt"], "expected a name that ends in .jsonl"),
        (["runs/demo", "task=piqa", "--write-items", "items.jsonl"], "'runs/demo': --write-items reads no model"),
        (["text=a.txt", "--write-items", "items.jsonl"], "--write-items: needs suite=NAME or task=NAME"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys):
    assert main(["evaluate", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
