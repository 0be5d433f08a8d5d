"""Log-likelihoods of items equal those of lm-evaluation-harness's own `HFLM` on the exported model."""

import json
import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from gristmill.errors import ConfigError, UserError
from gristmill.libraries.extras import install_extra
from gristmill.storage.disk import LocalPath
from tests.trainers.tasks.writing import task_of, write_lines
from tokenizer.encode import Encoder
from trainers.evaluation.scoring.scorer import Scorer, encode_requests
from trainers.evaluation.suites.harness_items import read_harness_items
from trainers.evaluation.suites.items import read_items
from trainers.evaluation.suites.run_evaluation import EvaluationSettings, score_columns
from trainers.inference.model_export import export_checkpoint
from trainers.objectives.prefix_lm import PrefixLM
from trainers.tasks.harness_format.harness_task import load_harness_task
from trainers.tasks.load_task import load_task

with warnings.catch_warnings():  # of the libraries that it imports
    warnings.simplefilter("ignore")
    lm_eval = pytest.importorskip("lm_eval", reason=f"needs lm-eval: {install_extra('harness')}")
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    from trainers.evaluation.harness_model import HarnessModel, load_tasks, run_harness

pytestmark = pytest.mark.filterwarnings("ignore")  # lm-eval and datasets warn on import and on use
WORDS = [
    "a", "cab", "bade", "dead", "face", "fab", "cafe", "decade", "bag", "had", "bed", "big", "head", "fed", "deaf", "hag",
    "egg", "each", "beach",
]  # fmt: skip
MODELS = {"gpt2": ("tiny_gpt2", None), "llama": ("llama_tiny", None), "t5": ("tiny_t5", PrefixLM())}
SHIPPED = {"hellaswag": "dev", "winogrande": "dev", "lambada": "test", "blimp": "test"}


def sentence(draw, count):
    return " ".join(draw.choice(WORDS, count))


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    """The items of four tasks in the style of HellaSwag, WinoGrande, LAMBADA and BLiMP."""
    folder, draw = tmp_path_factory.mktemp("tasks"), np.random.default_rng(4)
    numbers = range(12)
    choice = [
        {"q": sentence(draw, 1 + n), "c": [sentence(draw, 1 + (n + k) % 5) for k in range(4)], "y": n % 4}
        for n in numbers
    ]
    write_lines(folder / "choice.jsonl", choice)
    columns = {"text": "q", "candidates": "c", "label": "y"}
    fields = {"files": {"dev": "choice.jsonl"}, "columns": columns}
    after = {"context": "{text} ", "continuation": "{candidate}"}  # the space moves to the continuation
    before = {"context": "{candidate} is", "continuation": " {text}"}
    write_lines(folder / "cloze.jsonl", [{"c": sentence(draw, 9), "w": WORDS[n]} for n in numbers])
    write_lines(folder / "pairs.jsonl", [{"g": sentence(draw, 5), "b": sentence(draw, 5)} for _ in numbers])
    cloze = {"files": {"dev": "cloze.jsonl"}, "columns": {"text": "c", "target": "w"}}
    pairs = {"files": {"dev": "pairs.jsonl"}, "columns": {"good": "g", "bad": "b"}, "metrics": ["accuracy"]}
    tasks = {
        "after": task_of(folder, "choose", **fields, prompt=after),
        "before": task_of(folder, "choose", **fields, prompt=before),
        "cloze": task_of(folder, "generate", **cloze, prompt={"context": "{text}", "continuation": " {target}"}),
        "pairs": task_of(folder, "minimal_pairs", **pairs),
    }
    return {name: read_items(task, "dev", None) for name, task in tasks.items()}


@pytest.fixture(scope="module", params=MODELS)
def both(request, random_run, tmp_path_factory):
    """A scorer of an exported model, and the harness's own model of the same export."""
    recipe, objective = MODELS[request.param]
    run = random_run(recipe, objective=objective, positions=1024)
    export = export_checkpoint(run, LocalPath(tmp_path_factory.mktemp("export") / request.param))
    # After an empty context T5 reads </s> alone, as the published T5, which has no <bos>, does in HFLM.
    start = {"prefix_token_id": 2} if request.param == "t5" else {}
    return Scorer.open(export), HFLM(pretrained=str(export), device="cpu", batch_size=5, dtype="float32", **start)


def likelihoods(model, contexts, continuations):
    pairs = zip(contexts, continuations, strict=True)
    requests = [Instance("loglikelihood", {}, pair, n) for n, pair in enumerate(pairs)]
    found = model.loglikelihood(requests, disable_tqdm=True)
    return np.array([nats for nats, _ in found]), [greedy for _, greedy in found]


@pytest.mark.long
@pytest.mark.parametrize("name", ["after", "before", "cloze", "pairs"])
def test_every_item_has_the_log_likelihood_of_hflm(both, items, name):
    ours, theirs = both
    asked = items[name]
    expected, greedy = likelihoods(theirs, asked.contexts, asked.continuations)
    found = ours.score(asked.contexts, asked.continuations)
    assert not found.cut.any()
    assert np.ptp(expected) > 1
    assert found.log_likelihood == pytest.approx(expected, abs=1e-4)
    assert found.greedy.tolist() == greedy


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_items_of_real_sets_have_the_log_likelihood_of_hflm(both, name):
    folder = os.environ.get("GRISTMILL_DATA")
    if folder is None or not Path(folder, "tasks").is_dir():
        pytest.skip("needs the development data: set GRISTMILL_DATA")
    ours, theirs = both
    limit = 1 if name == "blimp" else 20
    asked = read_items(load_task(name), SHIPPED[name], LocalPath(folder) / "tasks", limit=limit)
    found = ours.score(asked.contexts, asked.continuations)
    kept = np.flatnonzero(~found.cut)
    assert len(kept) > 10
    expected, _ = likelihoods(theirs, [asked.contexts[n] for n in kept], [asked.continuations[n] for n in kept])
    assert found.log_likelihood[kept] == pytest.approx(expected, abs=1e-4)


def test_tokens_that_merge_across_the_border_belong_to_the_side_where_hflm_puts_them(both):
    ours, theirs = both
    tokenizer = theirs.tokenizer.backend_tokenizer
    encoder = Encoder.load(theirs.tokenizer.name_or_path + "/tokenizer.json")
    borders = [
        (f"{sentence(np.random.default_rng(n), 3)}{word[:at]}", word[at:])
        for n in range(9)
        for word in ("decade", "beach", "cafe")
        for at in (1, 2, 3)
    ]
    merged = [
        (c, d) for c, d in borders
        if tokenizer.encode(c + d, add_special_tokens=False).ids[: len(tokenizer.encode(c, add_special_tokens=False).ids)]
        != tokenizer.encode(c, add_special_tokens=False).ids
    ]  # fmt: skip
    assert len(merged) >= 3
    kept = []
    for pair in merged:
        if theirs._encode_pair(*pair)[1]:
            kept.append(pair)
        else:  # all of it merged into the context
            with pytest.raises(UserError, match="has no token of its own after its context"):
                encode_requests(encoder, [pair[0]], [pair[1]], theirs.backend == "causal")
    contexts, continuations = [c for c, _ in kept], [d for _, d in kept]
    expected, _ = likelihoods(theirs, contexts, continuations)
    assert ours.score(contexts, continuations).log_likelihood == pytest.approx(expected, abs=1e-4)


def yaml_of(folder, **changes):
    draw = np.random.default_rng(2)
    rows = [{"q": sentence(draw, 4), "c": [sentence(draw, 2), sentence(draw, 3)], "y": n % 2} for n in range(10)]
    write_lines(folder / "rows.jsonl", rows)
    fields = {
        "task": "mine", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{q}}", "doc_to_choice": "c",
        "doc_to_target": "y", "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}], **changes,
    }  # fmt: skip
    (folder / "mine.yaml").write_text(json.dumps(fields))
    return str(folder / "mine.yaml")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_a_task_of_the_harness_gives_what_hflm_gets(both, tmp_path):
    ours, theirs = both
    tasks = load_tasks([yaml_of(tmp_path)])
    made = run_harness(ours, tasks, limit=8, shots=None, seed=0)
    only = TaskManager(include_defaults=False)
    other = lm_eval.simple_evaluate(
        theirs, tasks=[str(tmp_path / "mine.yaml")], task_manager=only, limit=8, bootstrap_iters=0
    )
    assert made["results"]["mine"]["acc,none"] == other["results"]["mine"]["acc,none"]
    for here, there in zip(made["samples"]["mine"], other["samples"]["mine"], strict=True):
        nats = [float(each[0]) for each in here["filtered_resps"]]
        assert nats == pytest.approx([float(each[0]) for each in there["filtered_resps"]], abs=1e-4)


@pytest.mark.long
def test_written_answers_are_those_of_hflm(both):
    ours, theirs = both
    encoder = Encoder.load(str(Path(ours.name) / "tokenizer.json"))
    allowed = {*range(encoder.vocab_size)} - set(encoder.specials.values()) | {encoder.specials["<eos>"]}
    theirs.model.generation_config.suppress_tokens = [
        n for n in range(theirs.model.config.vocab_size) if n not in allowed
    ]
    draw = np.random.default_rng(6)
    options = [{"until": ["e"], "max_gen_toks": 12, "do_sample": False}, {"until": [], "max_gen_toks": 5}]
    requests = [Instance("generate_until", {}, (sentence(draw, 1 + n), options[n % 2]), 0) for n in range(12)]
    found = HarnessModel(ours).generate_until(requests)
    expected = theirs.generate_until(requests, disable_tqdm=True)
    if theirs.backend != "causal":  # where HFLM writes as many more tokens as the context has
        expected = [text[: len(mine)] for text, mine in zip(expected, found, strict=True)]
    assert found == expected
    assert len(set(found)) > 1


FILES = {
    "choice": {},
    "shots": {"num_fewshot": 2, "fewshot_config": {"sampler": "first_n"}, "fewshot_split": "test", "description": "Solve.\n\n"},
    "cloze": {
        "output_type": "loglikelihood", "doc_to_choice": None, "doc_to_target": "{{' ' + c[y]}}",
        "metric_list": [{"metric": "acc"}, {"metric": "perplexity"}],
    },
    "written": {
        "output_type": "generate_until", "doc_to_choice": None, "doc_to_target": "{{c}}",
        "generation_kwargs": {"until": ["e"], "max_gen_toks": 6, "do_sample": False},
        "metric_list": [{"metric": "exact_match", "ignore_case": True, "regexes_to_ignore": ["[^b]"]}],
    },
}  # fmt: skip


@pytest.mark.long
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", FILES)
def test_a_file_gives_the_same_items_with_and_without_the_library(both, tmp_path, name):
    ours, _ = both
    path = yaml_of(tmp_path, **FILES[name])
    made = run_harness(ours, load_tasks([path]), limit=8, shots=None, seed=0)
    task = load_harness_task(Path(path))
    read = read_harness_items(task, None, 0, 8)
    contexts = [sample["arguments"][0][0] for sample in made["samples"]["mine"]]
    assert [read.asked.contexts[first] for first in read.asked.offsets[:-1]] == contexts
    (result,) = score_columns("m", ours, [read], EvaluationSettings(limit=8), lambda line: None)
    scores = {metric.removesuffix(",none"): value for metric, value in made["results"]["mine"].items()}
    names = {"acc": "accuracy", "acc_norm": "accuracy_per_character"}
    for metric in task.metrics:
        assert result.scores[names.get(metric, metric)].value == pytest.approx(scores[metric], abs=1e-6)
    for row, sample in zip(result.rows.to_pylist(), made["samples"]["mine"], strict=True):
        if name == "written":
            assert [row["written"]] == sample["filtered_resps"]
        else:
            nats = [float(each[0]) for each in sample["filtered_resps"]]
            assert row["log_likelihood"] == pytest.approx(nats, abs=1e-4)


@pytest.mark.long
@pytest.mark.usefixtures("cache")
def test_the_command_prints_and_writes_the_scores_of_an_encoder(random_run, tmp_path, capsys):
    from trainers.__main__ import main

    run, output = random_run("tiny_bert"), tmp_path / "out.json"
    assert main(["harness", str(run), f"task={yaml_of(tmp_path)}", "limit=5", "--output", str(output)]) == 0
    shown = capsys.readouterr()
    assert re.search(r"mine +5 +acc +[01]\.\d{4}", shown.out)
    assert "pseudo-log-likelihood within words" in shown.err
    record = json.loads(output.read_text())
    assert record["form"] == "pseudo-log-likelihood within words"
    assert len(record["samples"]["mine"]) == 5


@pytest.mark.usefixtures("cache")
def test_what_the_harness_cannot_do_is_one_line(tmp_path, both):
    with pytest.raises(
        ConfigError, match=r"task: got 'nosuch\.yaml', expected a task of lm-evaluation-harness or a YAML file"
    ):
        load_tasks(["nosuch.yaml"])
    absent = {"data_files": {"test": "/nowhere.jsonl"}}
    with pytest.raises(UserError, match=r"cannot be loaded .*; its data must be on this machine"):
        load_tasks([yaml_of(tmp_path, dataset_kwargs=absent)])
    ours, _ = both
    text = " ".join(WORDS)
    (nats,) = HarnessModel(ours).loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    assert nats == pytest.approx(float(ours.score_texts([text])[0].log_likelihood[0]))
