"""Items: prompts, few-shot examples, items that are left out and tasks that are refused."""

import numpy as np
import pytest

from gristmill.errors import ConfigError, UserError
from tests.trainers.tasks.writing import task_of, write_lines
from trainers.evaluation.suites.items import read_items
from trainers.tasks.load_task import load_suite, load_task

CHOICE = {
    "files": {"train": "train.jsonl", "dev": "dev.jsonl"},
    "columns": {"text": "q", "candidates": "c", "label": "y"},
    "prompt": {"context": "Q: {text}\nA:", "continuation": " {candidate}"},
}


def choice(folder, dev, train=(), **prompt):
    write_lines(folder / "dev.jsonl", dev)
    write_lines(folder / "train.jsonl", train)
    return task_of(folder, "choose", **{**CHOICE, "prompt": {**CHOICE["prompt"], **prompt}})


def rows(count, first=0):
    return [
        {"q": f"q{n}", "c": [f"a{n}", f"b{n}", f"c{n}"][: 2 + n % 2], "y": n % 2} for n in range(first, first + count)
    ]


def test_every_candidate_becomes_a_context_and_a_continuation(tmp_path):
    items = read_items(choice(tmp_path, rows(2)), "dev", None)
    assert items.contexts == ["Q: q0\nA:"] * 2 + ["Q: q1\nA:"] * 3
    assert items.continuations == [" a0", " b0", " a1", " b1", " c1"]
    assert items.answers == ["a0", "b0", "a1", "b1", "c1"]
    assert items.offsets.tolist() == [0, 2, 5]
    assert items.gold.tolist() == [0, 1]
    assert items.chance == pytest.approx((1 / 2 + 1 / 3) / 2)


def test_braces_in_an_example_are_text(tmp_path):
    items = read_items(choice(tmp_path, [{"q": "{candidate} {text}", "c": ["{x}", "b"], "y": 0}]), "dev", None)
    assert (items.contexts[0], items.continuations[0]) == ("Q: {candidate} {text}\nA:", " {x}")


def test_candidates_may_stand_in_the_context(tmp_path):
    task = choice(tmp_path, rows(1), context="{candidate} is", continuation=" {text}")
    items = read_items(task, "dev", None)
    assert (items.contexts, items.continuations) == (["a0 is", "b0 is"], [" q0", " q0"])


def test_labels_are_candidates_and_chance_is_the_majority(tmp_path):
    write_lines(tmp_path / "dev.jsonl", [{"s": f"s{n}", "y": int(n > 0)} for n in range(4)])
    fields = {"files": {"dev": "dev.jsonl"}, "columns": {"text": "s", "label": "y"}, "labels": [0, 1]}
    prompt = {"context": "{text} It was", "continuation": " {label}", "words": {"0": "bad", "1": "good"}}
    items = read_items(task_of(tmp_path, "classify", **fields, prompt=prompt), "dev", None)
    assert items.continuations[:2] == [" bad", " good"]
    assert items.gold.tolist() == [0, 1, 1, 1]
    assert items.chance == 0.75


def test_shots_are_drawn_by_seed_and_do_not_depend_on_the_limit(tmp_path):
    task = choice(tmp_path, rows(6), rows(9, first=20))
    items = read_items(task, "dev", None, shots=2, seed=1)
    shots = [items.contexts[first].split("\n\n") for first in items.offsets[:-1]]
    assert all(len(parts) == 3 and len(set(parts)) == 3 for parts in shots)
    solved = {f"Q: q{n}\nA: {'ab'[n % 2]}{n}" for n in range(20, 29)}
    assert all(set(parts[:2]) <= solved for parts in shots)
    assert len({tuple(parts[:2]) for parts in shots}) > 1
    few = read_items(task, "dev", None, shots=2, seed=1, limit=3)
    assert few.contexts == items.contexts[: few.offsets[-1]]
    assert few.contexts != read_items(task, "dev", None, shots=2, seed=2, limit=3).contexts


def labelled(folder, train, **prompt):
    write_lines(folder / "dev.jsonl", [{"s": f"s{n}", "y": "abc"[n % 3]} for n in range(12)])
    write_lines(folder / "train.jsonl", train)
    prompt = {"context": "{text} is", "continuation": " {label}", **prompt}
    fields = {"files": {"train": "train.jsonl", "dev": "dev.jsonl"}, "columns": {"text": "s", "label": "y"}}
    return task_of(folder, "classify", **fields, labels=["a", "b", "c"], prompt=prompt)


def test_balanced_shots_have_every_label_equally_often(tmp_path):
    rare = [*({"s": f"t{n}", "y": "a"} for n in range(20)), *({"s": f"t{n}", "y": "bc"[n % 2]} for n in range(20, 24))]
    task = labelled(tmp_path, rare)
    items = read_items(task, "dev", None, shots=4, balanced=True)
    assert items.contexts == read_items(task, "dev", None, shots=4, balanced=True).contexts
    assert items.contexts != read_items(task, "dev", None, shots=4, balanced=True, seed=1).contexts
    labels = [tuple(shot[-1] for shot in items.contexts[first].split("\n\n")[:4]) for first in items.offsets[:-1]]
    counts = [sorted(map(each.count, "abc")) for each in labels]
    assert counts == [[1, 1, 2]] * 12
    assert len(set(labels)) > 3  # the label that comes twice, and the order, are drawn
    shots = [set(items.contexts[first].split("\n\n")[:4]) for first in items.offsets[:-1]]
    assert all(len(each) == 4 for each in shots)
    often = [shot[-1] for each in read_items(task, "dev", None, shots=4).contexts for shot in each.split("\n\n")[:4]]
    assert often.count("a") > len(often) / 2
    with pytest.raises(
        UserError, match=r"train: has 2 examples of the label '[bc]', too few for 9 balanced shots; lower"
    ):
        read_items(task, "dev", None, shots=9, balanced=True)
    own = labelled(tmp_path, rare, shots_from="dev")
    asked = read_items(own, "dev", None, shots=6, balanced=True)
    for number, first in enumerate(asked.offsets[:-1]):
        solved = asked.contexts[first].split("\n\n")[:-1]
        assert [shot for shot in solved if shot.startswith(f"s{number} ")] == []
        assert sorted(shot[-1] for shot in solved) == list("aabbcc")


def test_an_item_is_never_its_own_shot(tmp_path):
    task = choice(tmp_path, rows(3), shots_from="dev")
    items = read_items(task, "dev", None, shots=2)
    for number, first in enumerate(items.offsets[:-1]):
        assert items.contexts[first].count(f"q{number}") == 1
    with pytest.raises(UserError, match="mine: dev: has 3 examples with gold, too few for 3 shots; lower shots"):
        read_items(task, "dev", None, shots=3)


def test_items_with_equal_candidates_are_left_out_and_counted(tmp_path):
    task = choice(tmp_path, [*rows(2), {"q": "q", "c": ["same", "same"], "y": 0}, *rows(1, first=5)])
    items = read_items(task, "dev", None)
    assert items.ids == ["0", "1", "3"]
    (note,) = items.notes
    assert note == f"mine: 1 of 4 items left out because candidates are equal, first {tmp_path}/dev.jsonl: line 3"


def test_the_limit_holds_for_every_subtask(tmp_path):
    pairs = [{"g": f"good {n}", "b": f"bad {n}", "s": f"s{n // 5}", "f": f"f{n // 10}"} for n in range(20)]
    write_lines(tmp_path / "test.jsonl", pairs)
    columns = {"good": "g", "bad": "b", "subtask": "s", "field": "f"}
    task = task_of(tmp_path, "minimal_pairs", files={"test": "test.jsonl"}, columns=columns, metrics=["accuracy"])
    items = read_items(task, "test", None, limit=2)
    assert items.ids == ["0", "1", "5", "6", "10", "11", "15", "16"]
    assert items.continuations[:3] == ["good 0", "bad 0", "good 1"]
    assert (items.fields[-1], items.chance, set(items.contexts)) == ("f1", 0.5, {""})
    with pytest.raises(ConfigError, match=r"shots: got 1, but minimal_pairs \(mine\) has no prompt"):
        read_items(task, "test", None, shots=1)


def test_what_cannot_be_asked_is_refused(tmp_path):
    good = rows(2)
    with pytest.raises(UserError, match=r"dev.jsonl: line 2: columns.label: no field 'y'; correct the row"):
        read_items(choice(tmp_path, [good[0], {"q": "q", "c": ["a", "b"]}]), "dev", None)
    with pytest.raises(UserError, match="line 1: candidates: expected two texts or more, none empty"):
        read_items(choice(tmp_path, [{"q": "q", "c": ["a", " "], "y": 0}]), "dev", None)
    with pytest.raises(
        UserError, match="mine: dev: no item is left; mine: 1 of 1 items left out because candidates are equal"
    ):
        read_items(choice(tmp_path, [{"q": "q", "c": ["a", "a"], "y": 0}]), "dev", None)
    with pytest.raises(UserError, match=r"mine: dev: no file; looked for .*gone\.jsonl"):
        read_items(task_of(tmp_path, "choose", **{**CHOICE, "files": {"dev": "gone.jsonl"}}), "dev", None)
    with pytest.raises(UserError, match="mine: dev: its gold is hidden, so it cannot be scored"):
        read_items(task_of(tmp_path, "choose", **CHOICE, unlabelled=["dev"]), "dev", None)
    with pytest.raises(ConfigError, match="mine: a task of kind choose without `prompt` cannot be given"):
        read_items(task_of(tmp_path, "choose", **{**CHOICE, "prompt": None}), "dev", None)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"context": "{txt}", "continuation": " {candidate}"}, "prompt.context: got {txt}, choose allows text"),
        ({"context": "{text}", "continuation": " yes"}, "prompt.continuation: expected {candidate} in it"),
        ({"context": "{text}", "continuation": " "}, "continuation: got an empty text"),
        ({"context": "", "continuation": "{candidate}", "normalise": "unconditional"}, "unconditional: missing"),
        ({"context": "", "continuation": "{candidate}", "words": {"a": "b"}}, "prompt.words: expected a word for each"),
    ],
)
def test_a_bad_prompt_is_named(tmp_path, prompt, message):
    with pytest.raises(ConfigError) as error:
        task_of(tmp_path, "choose", **{**CHOICE, "prompt": prompt})
    assert message in str(error.value)


@pytest.mark.long
def test_the_suites_on_real_data(shared_data):
    if not (shared_data / "tasks").is_dir():
        pytest.skip("the development data has no tasks")
    chances = {"hellaswag": 0.25, "piqa": 0.5, "copa_cloze": 0.5, "winogrande": 0.5, "lambada": 0, "boolq": 0.622}
    found = {}
    for suite in ("core", "blimp"):
        for column in load_suite(suite).columns:
            found[column.task] = read_items(load_task(column.task), column.split, shared_data / "tasks")
    for name, chance in chances.items():
        assert found[name].chance == pytest.approx(chance, abs=0.001)
    assert len(found["arc_easy"]) == 2376 - 7
    assert len(found["blimp"]) == 46000 - 7
    assert set(found["blimp"].fields) == {"morphology", "semantics", "syntax", "syntax_semantics"}
    first = found["winogrande"]
    assert (first.contexts[1], first.continuations[0]) == (
        "Sarah was a much better surgeon than Maria so Maria",
        " always got the easier cases.",
    )
    assert np.diff(found["boolq"].offsets).tolist() == [2] * len(found["boolq"])
