"""Task files in the format of lm-evaluation-harness give the same items as our own task files with the same
content.
"""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from gristmill.errors import ConfigError, UserError
from tests.trainers.tasks.writing import task_of, write_lines
from trainers.__main__ import main
from trainers.evaluation.scoring.scorer import Scorer
from trainers.evaluation.suites.harness_items import read_harness_items
from trainers.evaluation.suites.run_evaluation import EvaluationSettings, evaluate_models
from trainers.evaluation.suites.text_bits import text_task
from trainers.tasks.harness_format.answer_filters import AnswerFilter, FilterStep, TextComparison
from trainers.tasks.harness_format.harness_task import is_harness_task, load_harness_task
from trainers.tasks.read_examples import read_examples

CHOICE = """\
task: mine
dataset_path: json
dataset_kwargs: {data_files: {train: train.jsonl, test: test.jsonl}}
training_split: train
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{q|trim}}\\nA:"
doc_to_choice: c
doc_to_target: y
metric_list:
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
  - {metric: acc, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
"""
WORDS = ["a cab", "bade", "dead face", "fab cafe", "decade", "bag", "had", "bed", "big head"]
ROWS = [
    {"q": f"{WORDS[n]} {n}", "c": [WORDS[n], WORDS[(n + 3) % 9], f"fed {n}"], "y": n % 3, "t": f" {WORDS[n]}"}
    for n in range(9)
]


@pytest.fixture
def written(tmp_path):
    write_lines(tmp_path / "test.jsonl", ROWS)
    write_lines(tmp_path / "train.jsonl", [{**row, "q": f"train {row['q']}"} for row in ROWS])

    def write(text=CHOICE, name="mine.yaml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def results(run, *tasks, **settings):
    columns = [(task, "test" if "test" in dict(task.files) else task.split) for task in tasks]
    return evaluate_models([run], columns, None, EvaluationSettings(**settings), lambda line: None)


def ours(folder, kind, prompt, **fields):
    gold = {"choose": {"candidates": "c", "label": "y"}, "generate": {"target": "t"}}[kind]
    files = {"train": "train.jsonl", "test": "test.jsonl"}
    return task_of(folder, kind, files=files, columns={"text": "q", **gold}, prompt=prompt, **fields)


@pytest.mark.parametrize("shots", [0, 2])
def test_choices_are_those_of_our_own_task(written, decoder_run, tmp_path, shots):
    prompt = {"context": "Q: {text}\nA:", "continuation": " {candidate}", "normalise": "character"}
    theirs = load_harness_task(written(), shots)
    first, second = results(decoder_run, theirs, ours(tmp_path, "choose", prompt), shots=shots)
    assert list(first.measured) == ["accuracy_per_character", "accuracy"]
    assert (first.version, second.version) == ("1.0", "1")
    for name in first.measured:
        assert first.scores[name] == second.scores[name]
    for name in ("log_likelihood", "gold", "prediction", "tokens", "characters", "cut"):
        assert first.rows[name].to_pylist() == second.rows[name].to_pylist()
    assert first.items.contexts == second.items.contexts


def test_contexts_that_are_choices_are_as_in_winogrande(written, decoder_run, tmp_path):
    text = CHOICE.replace('doc_to_text: "Q: {{q|trim}}\\nA:"', "doc_to_text: y").replace(
        "doc_to_target: y", "doc_to_target: q"
    )
    text = text.replace("doc_to_choice: c", "doc_to_choice: \"{{[c[0] + ' is', c[1] + ' is', c[2] + ' is']}}\"")
    text = text.replace("  - {metric: acc_norm, aggregation: mean, higher_is_better: true}\n", "")
    prompt = {"context": "{candidate} is", "continuation": " {text}"}
    first, second = results(decoder_run, load_harness_task(written(text)), ours(tmp_path, "choose", prompt))
    assert first.main == "accuracy"
    assert (first.items.contexts, first.items.continuations) == (second.items.contexts, second.items.continuations)
    assert first.rows["log_likelihood"].to_pylist() == second.rows["log_likelihood"].to_pylist()
    assert first.rows["gold"].to_pylist() == second.rows["gold"].to_pylist()


def test_likelihoods_and_whole_texts(written, decoder_run, tmp_path):
    start = CHOICE[: CHOICE.index("output_type")]
    cloze = start + 'output_type: loglikelihood\ndoc_to_text: "{{q}}"\ndoc_to_target: "{{t}}"\n'
    prompt = {"context": "{text}", "continuation": " {target}"}
    first, second = results(decoder_run, load_harness_task(written(cloze)), ours(tmp_path, "generate", prompt))
    assert list(first.measured) == ["perplexity", "accuracy"]
    assert first.rows["log_likelihood"].to_pylist() == second.rows["log_likelihood"].to_pylist()
    assert first.scores["perplexity"] == second.scores["perplexity"]
    rolling = start + "output_type: loglikelihood_rolling\ndoc_to_target: q\n"
    (whole,) = results(decoder_run, load_harness_task(written(rolling)))
    write_lines(tmp_path / "texts.jsonl", [{"text": row["q"]} for row in ROWS])
    texts = read_examples(text_task(tmp_path / "texts.jsonl"), "text", None)
    (expected,) = evaluate_models([decoder_run], (), None, EvaluationSettings(), lambda line: None, [texts])
    assert whole.rows["log_likelihood"].to_pylist() == expected.rows["log_likelihood"].to_pylist()
    bits = expected.scores["bits_per_byte"].value
    nats = -sum(whole.rows["log_likelihood"].to_pylist())
    assert whole.scores["bits_per_byte"].value == bits
    assert whole.scores["byte_perplexity"].value == pytest.approx(2**bits)
    words = sum(len(row["q"].split()) for row in ROWS)
    assert whole.scores["word_perplexity"].value == pytest.approx(np.exp(nats / words))
    assert list(whole.measured) == ["word_perplexity", "byte_perplexity", "bits_per_byte"]


GENERATE = (
    CHOICE[: CHOICE.index("output_type")]
    + """\
output_type: generate_until
doc_to_text: "Q: {{q}} A:"
doc_to_target: "{{ [t, q] }}"
generation_kwargs: {until: ["b", "Q:"], max_gen_toks: 7, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, ignore_case: true, regexes_to_ignore: [" "]}
"""
)


def test_texts_are_written_and_filtered(written, decoder_run, tmp_path):
    generation = {"until": ["b", "Q:"], "tokens": 7}
    prompt = {"context": "Q: {text} A:", "continuation": "{target}", "generation": generation}
    first, second = results(decoder_run, load_harness_task(written(GENERATE)), ours(tmp_path, "generate", prompt))
    assert first.rows["written"].to_pylist() == second.rows["written"].to_pylist()
    assert first.rows["references"].to_pylist() == [[row["t"], row["q"]] for row in ROWS]
    assert (first.truncated, first.scores["exact_match"].chance) == (second.truncated, 0)
    filters = """filter_list:
  - {name: as-is, filter: [{function: take_first}]}
  - {name: all, filter: [{function: regex, regex_pattern: "(.*)"}, {function: regex, regex_pattern: "zzz", fallback: "BAG "}]}
"""
    gold = GENERATE.replace('"{{ [t, q] }}"', '"bag"') + filters
    (found,) = results(decoder_run, load_harness_task(written(gold)))
    assert found.scores["exact_match_all"].value == 1
    expected = np.mean([text.replace(" ", "").lower() == "bag" for text in found.rows["written"].to_pylist()])
    assert found.scores["exact_match_as_is"].value == expected


@pytest.mark.parametrize(
    ("settings", "temperature"),
    [
        ("do_sample: true, temperature: 0.0", 0),
        ("do_sample: true, temperature: 0.7", 0.7),
        ("do_sample: true", 1),
        ("do_sample: false, temperature: 0.7", 0),
        ("temperature: 0.7", 0.7),
        ("temperature: 0", 0),
    ],
)
def test_answers_are_greedy_at_temperature_0_and_where_sampling_is_turned_off(written, settings, temperature):
    task = load_harness_task(written(GENERATE.replace("do_sample: false", settings)))
    assert task.generation.temperature == temperature


def test_a_pattern_that_backtracks_without_end_is_an_error(monkeypatch):
    from trainers.tasks.harness_format import answer_filters

    monkeypatch.setattr(answer_filters, "_SECONDS", 0.05)
    text = "a" * 60 + "!"
    for wrong in (FilterStep("regex", "(a|aa)+$").apply, TextComparison(("(a|aa)+$",)).plain):
        with pytest.raises(UserError, match=r"the pattern '\(a\|aa\)\+\$' of a task file took more than"):
            wrong(text)


def test_filters_and_comparisons():
    numbers = AnswerFilter("n", (FilterStep("regex", r"(-?[$0-9.,]{2,})|(-?[0-9]+)", -1),))
    assert numbers.apply("so 3 or $1,200. Then 7") == "7"
    assert numbers.apply("none") == "[invalid]"
    assert AnswerFilter("x", (FilterStep("remove_whitespace"), FilterStep("uppercase"))).apply("  a") == " A"
    assert TextComparison((r"\s",), True, True, True).plain("A b, 7.") == "ab"


def test_shots_description_prefix_and_included_files(written, tmp_path):
    text = "include: base.yaml\ndescription: 'Solve {{n}}. '\nnum_fewshot: 1\nfewshot_config: {sampler: first_n}\n"
    text += "gen_prefix: 'so'\n"
    (tmp_path / "base.yaml").write_text(CHOICE.replace("task: mine", "task: base"))
    write_lines(tmp_path / "test.jsonl", [{**row, "n": 7} for row in ROWS])
    items = read_harness_items(load_harness_task(written(text)), None, 0, 2).asked
    shot = f"Q: train {ROWS[0]['q']}\nA: so {ROWS[0]['c'][0]}\n\n"
    assert items.contexts[0] == f"Solve 7. {shot}Q: {ROWS[0]['q']}\nA: so"
    assert items.task.name == "base"
    given = text.replace("sampler: first_n", 'sampler: first_n, samples: [{q: "x ", c: [u, v], y: 1}]')
    items = read_harness_items(load_harness_task(written(given)), None, 0, 1).asked
    assert items.contexts[0].startswith("Solve 7. Q: x\nA: so v\n\n")
    assert (
        read_harness_items(load_harness_task(written(text), 0), None, 0, 1)
        .asked.contexts[0]
        .startswith("Solve 7. Q: a cab")
    )
    same = CHOICE.replace("training_split: train", "fewshot_split: test") + "num_fewshot: 3\n"
    asked = read_harness_items(load_harness_task(written(same)), None, 0, None).asked
    for number, first in enumerate(asked.offsets[:-1]):
        assert asked.contexts[first].count(f"Q: {ROWS[number]['q']}\n") == 1
        assert asked.contexts[first].count("Q:") == 4


@pytest.mark.parametrize("loader", ["csv", "parquet", "json"])
def test_other_files_have_the_same_rows(written, tmp_path, loader):
    import pyarrow as pa
    from pyarrow.csv import write_csv

    rows = [{"q": f"q{n}", "y": n % 2, "t": "x"} for n in range(4)]
    table = pa.Table.from_pylist(rows)
    if loader == "json":
        (tmp_path / "all.json").write_text(json.dumps(rows))
    else:
        (write_csv if loader == "csv" else pq.write_table)(table, str(tmp_path / f"all.{loader}"))
    text = CHOICE.replace("dataset_path: json", f"dataset_path: {loader}").replace(
        "doc_to_choice: c", "doc_to_choice: [no, yes]"
    )
    text = text.replace("{train: train.jsonl, test: test.jsonl}", f"{{test: all.{loader}}}").replace(
        "training_split: train\n", ""
    )
    items = read_harness_items(load_harness_task(written(text)), None, 0, None).asked
    assert items.gold.tolist() == [0, 1, 0, 1]
    assert items.contexts[::2] == [f"Q: q{n}\nA:" for n in range(4)]
    assert items.continuations[:2] == [" no", " yes"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "doc_to_target: y",
            "doc_to_target: !function utils.gold",
            "!function names Python code, which is not run here",
        ),
        ("doc_to_target: y", "process_docs: x\ndoc_to_target: y", "process_docs: is not read here"),
        ("task: mine", "task: [a, b]", "task: is a group of tasks"),
        (
            "output_type: multiple_choice",
            "output_type: chat",
            "output_type: got 'chat', expected one of multiple_choice",
        ),
        (
            "dataset_path: json",
            "dataset_path: Rowan/hellaswag",
            "dataset_path: got 'Rowan/hellaswag', expected one of json",
        ),
        ("data_files", "data_dir", "dataset_kwargs.data_dir: is not read here"),
        ("test_split: test", "test_split: validation", "test_split: got 'validation', data_files has train, test"),
        ("test_split: test\n", "", "test_split: missing, and so is validation_split"),
        (
            "metric: acc,",
            "metric: brier_score,",
            "metric_list[1]: got 'brier_score', multiple_choice allows acc, acc_norm",
        ),
        (
            "metric: acc, aggregation: mean",
            "metric: acc, aggregation: median",
            "aggregation: got 'median', acc is aggregated",
        ),
        ("doc_to_choice: c\n", "", "doc_to_choice: missing, and multiple_choice needs it"),
        ("metadata", "num_fewshot: -1\nmetadata", "num_fewshot: got -1, allowed 0 or more"),
        ("metadata", "fewshot_config: {sampler: best}\nmetadata", "fewshot_config.sampler: got 'best'"),
        (
            "metadata",
            "filter_list: [{name: x, filter: [{function: vote}]}]\nmetadata",
            "function: got 'vote', expected one of",
        ),
        (
            "metadata",
            "filter_list: [{name: x, filter: [{function: regex, regex_pattern: '('}]}]\nmetadata",
            "regular expression",
        ),
        ("metadata", "filter_list: 3\nmetadata", "filter_list: got 3, expected a list of filters"),
        (
            "metadata",
            "filter_list: [{name: x, filter: take_first}]\nmetadata",
            "filter_list[0]: filter: got 'take_first', expected a list",
        ),
        (
            "metadata",
            "filter_list: [{name: x, filter: [{function: regex, group_select: last}]}]\nmetadata",
            "group_select: got 'last', expected the number of a match",
        ),
        ("metadata", "fewshot_config: first_n\nmetadata", "fewshot_config: got 'first_n', expected names and values"),
        (
            "{train: train.jsonl, test: test.jsonl}",
            "{train: 3, test: test.jsonl}",
            "data_files.train: got 3, expected names of files",
        ),
    ],
)
def test_what_a_file_cannot_say_is_one_line(written, old, new, message):
    assert old in CHOICE
    path = written(CHOICE.replace(old, new))
    assert is_harness_task(path)
    with pytest.raises(ConfigError) as error:
        load_harness_task(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('until: ["b", "Q:"]', "until: 3", "generation_kwargs.until: got 3, expected a text or a list of texts"),
        ("max_gen_toks: 7", "max_gen_toks: many", "generation_kwargs.max_gen_toks: got 'many', expected a number"),
        ("max_gen_toks: 7", "max_gen_toks: 0", "generation_kwargs.tokens: got 0, allowed 1 or more"),
        ("do_sample: false", "temperature: hot", "generation_kwargs.temperature: got 'hot', expected a number"),
        ("{until", "5 #", "generation_kwargs: got 5, expected names and values"),
        ("do_sample: false", "num_beams: 4", "generation_kwargs.num_beams: is not read here"),
        ('[" "]', '"a,b"', "regexes_to_ignore: got 'a,b', expected a list"),
        ("ignore_case: true", "ignore_case: very", "ignore_case: got 'very', expected true or false"),
        ("metric_list:\n  - {metric", "metric_list:\n  {metric", "expected a list of metrics"),
    ],
)
def test_settings_of_written_answers_that_do_not_fit_are_one_line(written, old, new, message):
    assert old in GENERATE
    with pytest.raises(ConfigError) as error:
        load_harness_task(written(GENERATE.replace(old, new)))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_half_a_surrogate_pair_is_named(written, tmp_path):
    path = written()
    write_lines(tmp_path / "test.jsonl", [*ROWS, {**ROWS[0], "q": "cut \ud83d"}])
    with pytest.raises(UserError, match=r"test\.jsonl: line 10: holds half of a surrogate pair"):
        read_harness_items(load_harness_task(path), None, 0, None)
    (tmp_path / "test.jsonl").write_text(json.dumps([{**ROWS[0], "q": "cut \ud83d"}]))
    with pytest.raises(UserError, match=r"test\.jsonl: holds half of a surrogate pair"):
        read_harness_items(load_harness_task(path), None, 0, None)


def test_a_file_whose_name_looks_like_a_pattern_is_read(written, tmp_path):
    path = written(CHOICE.replace("test: test.jsonl", "test: 'test [1].jsonl'"))
    write_lines(tmp_path / "test 1.jsonl", ROWS[:3])
    assert len(read_harness_items(load_harness_task(path), None, 0, None).asked.ids) == 3
    write_lines(tmp_path / "test [1].jsonl", ROWS[:5])
    assert len(read_harness_items(load_harness_task(path), None, 0, None).asked.ids) == 5


SHOT = "num_fewshot: 1\nfewshot_config: {sampler: first_n, samples: [{q: x, c: [u, v], y: %s}]}\nmetadata"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{{q|trim}}", "{{ p }}", "test.jsonl: row 1: doc_to_text: 'p' is undefined; columns are q, c, y, t"),
        ("{{q|trim}}", "{{ q", "row 1: doc_to_text: expected token 'end of print statement'"),
        ("{{q|trim}}", "{{ q.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{q|trim}}", "{{ 1 / 0 }}", "row 1: doc_to_text: division by zero"),
        ("doc_to_target: y", "doc_to_target: q", "row 1: got 'a cab 0' as the right choice, expected one of 3 choices"),
        ("doc_to_target: y", "doc_to_target: '²'", "row 1: got '²' as the right choice, expected one of 3 choices"),
        ("doc_to_target: y", "doc_to_target: '{{y + 1}}'", "row 3: got '3' as the right choice"),
        ("doc_to_choice: c", "doc_to_choice: q", "row 1: doc_to_choice: expected a list of two texts or more"),
        ("test: test.jsonl", "test: gone.jsonl", "mine.yaml: data_files: no file; looked for"),
        ("metadata", "num_fewshot: 10\nmetadata", "num_fewshot: got 10, the split has 9 rows; lower it"),
        ("metadata", SHOT % "2", "samples[0]: got '2' as the right choice, expected one of 2 choices"),
        ("metadata", SHOT % "-1", "samples[0]: got '-1' as the right choice"),
        ("metadata", SHOT % "[]", "samples[0]: doc_to_target: is empty; correct the row"),
    ],
)
def test_rows_that_do_not_fit_their_templates_are_one_line(written, old, new, message):
    assert old in CHOICE
    task = load_harness_task(written(CHOICE.replace(old, new)))
    with pytest.raises(UserError) as error:
        read_harness_items(task, None, 0, None)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_runs_a_file_of_the_harness(written, decoder_run, tmp_path, capsys):
    path = written()
    command = ["evaluate", str(decoder_run), f"task={path}", "limit=4", "--output", str(tmp_path / "out.html")]
    assert main([*command, "--require", "mine.accuracy>=0", "--require", "mine.accuracy_per_character>=0"]) == 0
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    found = Scorer.open(decoder_run).score([f"Q: {ROWS[0]['q']}\nA:"] * 3, [f" {text}" for text in ROWS[0]["c"]])
    assert rows[0]["log_likelihood"] == pytest.approx(found.log_likelihood, abs=1e-4)
    assert len(rows) == 4
    items = tmp_path / "items.jsonl"
    assert main(["evaluate", f"task={path}", "--write-items", str(items)]) == 0
    first = json.loads(items.read_text().splitlines()[0])
    assert first == {"id": "mine/test/0", "prompt": f"Q: {ROWS[0]['q']}\nA:", "answer": [ROWS[0]["c"][0]]}
    capsys.readouterr()
    assert main(["evaluate", str(decoder_run), f"task={path}", "splits=dev"]) == 2
    assert "names its split itself, in test_split" in capsys.readouterr().err
