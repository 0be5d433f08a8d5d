"""Generated answers equal those of `transformers` however they are batched; stop sequences, sampling and
scores.
"""

import copy
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from gristmill.errors import ConfigError, UserError
from tests.trainers.evaluation.scored_models import WORDS, encoder, ids_of, network_of, scorer_of
from tests.trainers.tasks.writing import task_of, write_lines
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.__main__ import main
from trainers.engine.forward import Forward
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.items import read_items
from trainers.evaluation.suites.written_result import generators_of
from trainers.inference.batch_decoding import Sampler
from trainers.objectives.causal import Causal
from trainers.tasks.schema.task_prompt import Generation
from trainers.tasks.scores import METRICS
from trainers.tasks.scores.answer_scores import last_number
from trainers.tasks.scores.outcomes import Outcomes

DRAW = np.random.default_rng(5)
CONTEXTS = [" ".join(DRAW.choice(WORDS, size)) for size in (3, 12, 1, 7, 5, 20)] + [""]
WRITERS = ["gpt2", "gpt", "llama", "t5", "t5, prefix", "prefix", "bart", "bart, gaps", "t5, pairs", "llama, pairs"]
SAMPLED = Generation(until=("cat",), tokens=7, temperature=1.5, top_k=50, top_p=0.9)


def parts(name, folder, context):
    """Return what `transformers` reads for a context: the model's input ids, the decoder's input ids (or
    None), and the tokens that end a text.
    """
    ids, specials = ids_of(folder, context) if context else [], SPECIAL_IDS
    bos, eos, start, sentinel = (specials[each] for each in ("<bos>", "<eos>", "<pad>", "<extra_id_0>"))
    if name in ("gpt2", "gpt", "llama", "prefix"):
        return [bos, *ids], None, [eos]
    if name == "t5":
        return [*ids, sentinel, eos], [start, sentinel], [eos, specials["<extra_id_1>"]]
    if name == "llama, pairs":
        return [bos, *ids, eos], None, [eos]
    if name in ("t5, prefix", "t5, pairs"):
        return [*ids, eos], [start], [eos]
    if name == "bart, gaps":
        return [*ids, specials["<mask>"], eos], [eos], [eos]
    return [bos, *ids, specials["<mask>"], eos], [eos, bos, *ids], [eos]


def generated(name, folder, context, tokens):
    """Return the text that `transformers` generates greedily, and whether it ended with an end token."""
    _, network = network_of(name)
    given, decoder, ends = parts(name, folder, context)
    allowed = {*range(encoder(folder).vocab_size)} - {*SPECIAL_IDS.values()} | {*ends}
    output = network.generate(
        torch.tensor([given]),
        attention_mask=torch.ones(1, len(given), dtype=torch.long),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=ends,
        forced_bos_token_id=None,
        forced_eos_token_id=None,
        suppress_tokens=[number for number in range(448) if number not in allowed],
        **({} if decoder is None else {"decoder_input_ids": torch.tensor([decoder])}),
    )[0].tolist()
    ids = output[len(given if decoder is None else decoder) :]
    ended = ids[-1] in ends
    return encoder(folder).decode(ids[:-1] if ended else ids), ended


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "prefix"])
def test_texts_are_those_that_transformers_generates(name, tmp_path):
    written = scorer_of(name, tmp_path, batch_positions=90).write(CONTEXTS, Generation(until=(), tokens=9))
    for context, each in zip(CONTEXTS, written, strict=True):
        expected, ended = generated(name, tmp_path, context, 9)
        assert each.text == expected
        assert not each.cut
        assert not (each.truncated and ended)  # the tenth token may be the end


@pytest.mark.long
@pytest.mark.parametrize("how", [Generation(until=("cat",), tokens=7), SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", WRITERS)
def test_batch_order_and_cache_change_nothing(name, how, tmp_path, monkeypatch):
    def write(numbers, positions):
        ids = [f"item {number}" for number in numbers]
        scorer = scorer_of(name, tmp_path, batch_positions=positions)
        return scorer.write([CONTEXTS[number] for number in numbers], how, generators_of(ids, 3))

    together = write(range(len(CONTEXTS)), 4096)
    assert write(range(len(CONTEXTS)), 1) == together
    assert write(range(len(CONTEXTS))[::-1], 60) == together[::-1]
    monkeypatch.setattr(Forward, "new_past", lambda self: None)
    assert write(range(len(CONTEXTS)), 4096) == together


def test_a_text_ends_at_its_first_stop_sequence(tmp_path):
    scorer = scorer_of("gpt2", tmp_path)
    (whole,) = scorer.write(["the cat"], Generation(until=(), tokens=20))
    assert whole.truncated
    stops = (whole.text[9:12], whole.text[4:7])
    (stopped,) = scorer.write(["the cat"], Generation(until=stops, tokens=20))
    assert stopped.text == whole.text[: min(whole.text.find(stop) for stop in stops)]
    assert not stopped.truncated
    assert stopped.tokens < whole.tokens == 20
    assert not any(stop in stopped.text for stop in stops)


@pytest.mark.long
def test_samples_follow_the_distribution_and_the_seed():
    logits = torch.tensor([2.0, -1.0, 1.5, 0.0, -torch.inf])
    draws = 4000
    rows = logits.expand(draws, -1)

    def shares(**limits):
        generators = [np.random.default_rng([0, number]) for number in range(draws)]
        return np.bincount(Sampler(generators, **limits)(np.arange(draws), rows), minlength=5) / draws

    expected = (logits.double() / 2).softmax(0).numpy()
    assert shares(temperature=2.0) == pytest.approx(expected, abs=0.04)
    two = np.where([True, False, True, False, False], expected, 0) / expected[[0, 2]].sum()
    assert shares(temperature=2.0, top_k=2) == pytest.approx(two, abs=0.04)
    assert shares(temperature=2.0, top_p=expected[0] + 0.01) == pytest.approx(two, abs=0.04)
    assert shares(temperature=2.0, top_p=expected[0] - 0.01).tolist() == [1, 0, 0, 0, 0]
    first, other = ([g.random() for g in generators_of(["a", "b"], seed)] for seed in (0, 1))
    assert len({*first, *other}) == 4
    assert [g.random() for g in generators_of(["b", "a"], 0)] == first[::-1]


def test_long_contexts_are_cut_on_the_left_and_encoders_write_nothing(tmp_path):
    how = Generation(until=(), tokens=10)
    long = " ".join(WORDS * 30)
    scorer = scorer_of("llama", tmp_path)
    kept = encoder(tmp_path).decode(np.array(ids_of(tmp_path, long)[-150:]))  # of 160 positions; the last is not read
    cut, whole = scorer.write([long, kept], how)
    assert (cut.cut, cut.text) == (True, whole.text)
    assert not whole.cut
    with pytest.raises(UserError, match=r"llama: generation.tokens is 160, the model has 160 positions, so no context"):
        scorer.write(["the"], Generation(tokens=160))
    with pytest.raises(UserError, match="bert: an encoder writes no text; evaluate it on tasks whose prompts have no"):
        scorer_of("bert", tmp_path).write(["the"], how)


def test_a_diverged_model_writes_nothing(tmp_path):
    model, network = network_of("gpt2")
    broken = copy.deepcopy(network)
    broken.transformer.ln_f.weight.data[0] = torch.nan
    scorer = Scorer("mine", broken, model, Causal(), encoder(tmp_path))
    with pytest.raises(UserError, match="mine: its likelihoods are not numbers; the model has diverged"):
        scorer.write(["the cat"], Generation())


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 1,234.50.", 1234.5),
        ("10-5", 5),
        ("x = -2", -2),
        ("8 - 7 = 1", 1),
        ("#### 42", 42),
        ("-.5", -0.5),
        ("It is -1.5e-3.", -0.0015),
        ("gate 3e4x", 4),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == number


def test_numbers_match_by_value():
    outcomes = Outcomes(texts=["so 4 + 8 = 12.0", "12 or 13", "none"], references=[["12"], ["12"], ["7", "0"]])
    assert METRICS["number_match"].statistics(outcomes)[:, 0].tolist() == [1, 0, 0]
    with pytest.raises(UserError, match="number_match needs a number in each accepted text"):
        METRICS["number_match"].statistics(Outcomes(texts=["1"], references=[["one"]]))
    unanswerable = Outcomes(texts=["3", "", "4"], references=[["3"], [], []], no_answer=True)
    assert METRICS["number_match"].statistics(unanswerable)[:, 0].tolist() == [1, 1, 0]


QA = {
    "files": {"dev": "qa.jsonl"},
    "columns": {"text": "q", "target": "a", "id": "n"},
    "metrics": ["exact_match", "token_f1"],
    "prompt": {
        "context": "Q: {text}\nA:",
        "continuation": " {target}",
        "shots_from": "dev",
        "generation": {"tokens": 6},
    },
}
ROWS = [{"q": f"bad cafe {n}", "a": ["a deaf head", f"b{n}"], "n": f"id{n}"} for n in range(12)]


def test_written_answers_in_the_command(decoder_run, other_run, tmp_path, capsys):
    write_lines(tmp_path / "qa.jsonl", ROWS)
    (tmp_path / "qa.yaml").write_text(json.dumps({"kind": "generate", **QA}))
    output = tmp_path / "qa.html"
    command = ["evaluate", str(decoder_run), str(other_run), f"task={tmp_path / 'qa.yaml'}", "shots=1"]
    assert main([*command, "--output", str(output)]) == 0
    rows = pq.read_table(output.with_suffix(".parquet")).to_pylist()
    assert [row["id"] for row in rows[:12]] == [row["n"] for row in ROWS]
    assert rows[0]["references"] == ROWS[0]["a"]
    results = json.loads(output.with_suffix(".json").read_text())["tasks"]
    shown = capsys.readouterr()
    for number, result in enumerate(results):
        its = rows[12 * number :][:12]
        outcomes = Outcomes(texts=[row["written"] for row in its], references=[row["references"] for row in its])
        for name in ("exact_match", "token_f1"):
            expected = METRICS[name].statistics(outcomes)[:, 0].mean()
            assert result["scores"][name]["value"] == pytest.approx(expected)
        assert result["main"] == "exact_match"
        assert result["scores"]["exact_match"]["chance"] == 0
        assert "chance" not in result["scores"]["token_f1"]  # words in common are no knowledge
        truncated = sum(row["truncated"] for row in its)
        assert result["answers_truncated"] == truncated
        assert all(row["tokens"] == 6 for row in its if row["truncated"])
        assert (f"qa: {truncated} of 12 answers did not end by themselves" in shown.err) == (truncated > 0)
        assert "answers written, greedy" in result["form"]


@pytest.mark.long
def test_the_model_finds_the_answer_it_has_written(decoder_run, tmp_path, capsys):
    """With the model's own answers as gold answers, exact match is 1, even if the rows come in another order."""
    write_lines(tmp_path / "qa.jsonl", ROWS)
    fields = {**QA, "prompt": {**QA["prompt"], "generation": {"tokens": 6, "temperature": 1.0, "until": ["zzz"]}}}
    (tmp_path / "qa.yaml").write_text(json.dumps({"kind": "generate", **fields}))
    command = ["evaluate", str(decoder_run), f"task={tmp_path / 'qa.yaml'}", "--output", str(tmp_path / "qa.json")]
    assert main(command) == 0
    written = {row["id"]: row["written"] for row in pq.read_table(tmp_path / "qa.parquet").to_pylist()}
    assert len(set(written.values())) > 6
    gold = [{**row, "a": [written[row["n"]].strip() or "nothing"]} for row in ROWS[::-1]]
    write_lines(tmp_path / "qa.jsonl", gold)
    assert main([*command, "--require", "qa.exact_match>=1"]) == 0
    assert main([*command, "seed=1", "--require", "qa.exact_match>=1"]) == 1


def test_span_tasks_are_written_from_their_passage(tmp_path):
    answers = {"text": ["a hag", "hag"], "answer_start": [11, 13]}
    write_lines(tmp_path / "dev.jsonl", [{"q": "who?", "p": "A head fed a hag.", "a": answers}] * 2)
    prompt = {"context": "{passage}\n{question}", "continuation": " {answer}", "shots_from": "dev", "generation": {}}
    columns = {"question": "q", "passage": "p", "answers": "a"}
    task = task_of(tmp_path, "span", files={"dev": "dev.jsonl"}, columns=columns, prompt=prompt)
    items = read_items(task, "dev", None, shots=1)
    assert items.contexts[0] == "A head fed a hag.\nwho? a hag\n\nA head fed a hag.\nwho?"
    assert items.references == [["a hag", "hag"]] * 2
    assert items.chance == 0


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("generate", {"metrics": ["bleu"]}, "metrics: got bleu; what a model writes is scored by exact_match"),
        ("generate", {"generation": {"tokens": 0}}, "tokens: got 0, allowed 1 or more"),
        ("generate", {"generation": {"until": [""]}}, "until: got an empty text"),
        ("generate", {"generation": {"top_p": 2}}, "top_p: got 2.0, allowed above 0 and at most 1"),
        ("generate", {"generation": {"stop": ["x"]}}, "stop"),
        ("span", {"generation": None}, "prompt.generation: missing, and span needs it"),
        ("span", {"no_answer": True}, "prompt.generation: not with no_answer"),
    ],
)
def test_a_bad_generation_is_named(tmp_path, kind, fields, message):
    roles = {"generate": ("text", "target"), "span": ("question", "passage", "answers")}[kind]
    gold = {"generate": "target", "span": "answer"}[kind]
    prompt = {"context": "Q:", "continuation": f" {{{gold}}}", "generation": fields.get("generation", {})}
    others = {name: value for name, value in fields.items() if name != "generation"}
    columns = {role: role for role in roles}
    with pytest.raises(ConfigError) as error:
        task_of(tmp_path, kind, files={"dev": "d.jsonl"}, columns=columns, prompt=prompt, **others)
    assert message in str(error.value)


def test_the_suite_of_answers_on_real_data(shared_data):
    from trainers.tasks.load_task import load_suite, load_task

    if not (shared_data / "tasks").is_dir():
        pytest.skip("the development data has no tasks")
    found = {}
    for column in load_suite("answers").columns:
        found[column.task] = read_items(load_task(column.task), column.split, shared_data / "tasks", limit=5)
    assert found["nq_open"].contexts[0].endswith("?\nAnswer:")
    assert all(last_number(gold[0]) is not None for gold in found["svamp"].references)
    assert found["squad"].contexts[0].startswith("Passage: ")
    assert len(found["squad"].references[0]) > 1
