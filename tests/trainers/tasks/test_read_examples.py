"""Examples of tasks in every format. Flaws in a file are reported in one line that names the file."""

import gzip
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import ConfigError, UserError
from gristmill.storage.parsing import parse_location
from tests.trainers.tasks.writing import read, task_of, write_lines
from trainers.tasks.leaks import check_leaks
from trainers.tasks.read_examples import read_examples
from trainers.tasks.task_files import available_splits, data_directory

PAIRS = {
    "files": {"train": "train.jsonl"},
    "columns": {"text": "a", "text_b": "b", "label": "y"},
    "labels": ["no", "yes"],
}
ROWS = [{"a": "one", "b": "two", "y": "no"}, {"a": "three ", "b": "vier ü", "y": "yes"}]


def same_pairs(examples):
    assert [texts.to_pylist() for texts in examples.texts] == [["one", "three"], ["two", "vier ü"]]
    assert examples.labels.tolist() == [0, 1]
    assert examples.ids == ["0", "1"]
    return True


@pytest.mark.parametrize("form", ["jsonl", "json", "tsv", "tsv without header", "csv", "parquet", "lines", "pattern"])
def test_a_pair_of_texts_is_the_same_in_every_format(tmp_path, form):
    fields = {**PAIRS, "files": {"train": "train.x"}, "format": form.split()[0]}
    path = tmp_path / "train.x"
    if form == "jsonl":
        write_lines(path, ROWS)
    elif form == "json":
        path.write_text(json.dumps(ROWS))
    elif form == "tsv":
        path.write_text("y\ta\tb\nno\tone\ttwo\nyes\tthree \tvier ü\n")
    elif form == "tsv without header":
        fields |= {"header": False, "columns": {"text": 1, "text_b": 2, "label": 0}}
        path.write_text("no\tone\ttwo\nyes\tthree \tvier ü\n")
    elif form == "csv":
        path.write_text('y,a,b\nno,one,two\n"yes","three ","vier ü"\n')
    elif form == "parquet":
        pq.write_table(pa.table({key: [row[key] for row in ROWS] for key in "aby"}), path)
    elif form == "lines":
        fields |= {"files": {"train": "train.{column}"}}
        for key in "aby":
            (tmp_path / f"train.{key}").write_text("".join(f"{row[key]}\n" for row in ROWS))
    else:
        fields |= {"format": "lines", "pattern": "(?P<y>[a-z]+):(?P<a>[^:]*):(?P<b>.*)"}
        path.write_text("no:one:two\nyes:three :vier ü\n")
    assert same_pairs(read(task_of(tmp_path, "classify", **fields)))


def test_a_compressed_file_a_byte_order_mark_and_carriage_returns_change_nothing(tmp_path):
    text = "\ufeff" + "y\ta\tb\nno\tone\ttwo\nyes\tthree \tvier ü\n".replace("\n", "\r\n")
    (tmp_path / "train.tsv.gz").write_bytes(gzip.compress(text.encode()))
    assert same_pairs(read(task_of(tmp_path, "classify", **{**PAIRS, "files": {"train": "train.tsv"}})))


@pytest.mark.parametrize("encoding", ["utf-8", "utf8", "UTF_8", "u8"])
def test_a_byte_order_mark_is_removed_however_the_encoding_is_spelled(tmp_path, encoding):
    (tmp_path / "train.tsv").write_bytes("\ufeffy\ta\tb\nno\tone\ttwo\nyes\tthree \tvier ü\n".encode())
    fields = {**PAIRS, "files": {"train": "train.tsv"}, "encoding": encoding}
    assert same_pairs(read(task_of(tmp_path, "classify", **fields)))


def test_a_tab_separated_value_keeps_its_quotation_marks(tmp_path):
    (tmp_path / "train.tsv").write_text('y\ta\tb\nno\t"one\ttwo"\n')
    examples = read(task_of(tmp_path, "classify", **{**PAIRS, "files": {"train": "train.tsv"}}))
    assert [texts.to_pylist() for texts in examples.texts] == [['"one'], ['two"']]


def test_a_line_separator_inside_a_text_ends_no_line(tmp_path):
    (tmp_path / "train.tsv").write_text("y\ta\tb\nno\tone\u2028more\x85\ttwo\n")
    assert (
        read(task_of(tmp_path, "classify", **{**PAIRS, "files": {"train": "train.tsv"}})).texts[0][0].as_py()
        == "one\u2028more"
    )


def test_files_in_an_object_store(s3, tmp_path):
    with s3.store.open(f"bucket/{tmp_path.name}/train.jsonl.gz", "wb") as sink:
        sink.write(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    data = parse_location(f"s3://bucket/{tmp_path.name}", s3.remote)
    assert same_pairs(read_examples(task_of(tmp_path, "classify", **PAIRS), "train", data))


def test_data_comes_before_the_folder_of_the_task_file_and_names_and_folders_in_order(tmp_path, monkeypatch):
    task = task_of(
        tmp_path / "own", "classify", **{**PAIRS, "files": {"train": ["a.jsonl", "b.jsonl"]}, "folders": ["x", "y"]}
    )
    write_lines(tmp_path / "own/x/a.jsonl", [{**ROWS[0], "a": "own"}])
    assert read(task).texts[0][0].as_py() == "own"
    write_lines(tmp_path / "data/y/b.jsonl", [{**ROWS[0], "a": "data y b"}])
    monkeypatch.setenv("GRISTMILL_TASKS", str(tmp_path / "data"))
    assert read_examples(task, "train", data_directory()).texts[0][0].as_py() == "data y b"
    write_lines(tmp_path / "data/x/b.jsonl", [{**ROWS[0], "a": "data x b"}])
    assert read_examples(task, "train", data_directory()).texts[0][0].as_py() == "data x b"
    assert data_directory(str(tmp_path / "own")) == tmp_path / "own"


def test_absolute_names_are_tried_in_their_place(tmp_path):
    elsewhere = write_lines(tmp_path / "far/two.jsonl", [{**ROWS[0], "a": "two"}])
    names = ["one.jsonl", str(elsewhere), "three.jsonl"]
    task = task_of(tmp_path / "own", "classify", **{**PAIRS, "files": {"train": names}})
    write_lines(tmp_path / "own/three.jsonl", [{**ROWS[0], "a": "three"}])
    assert read(task).texts[0][0].as_py() == "two"
    write_lines(tmp_path / "own/one.jsonl", [{**ROWS[0], "a": "one"}])
    assert read(task).texts[0][0].as_py() == "one"


def test_a_missing_file_lists_what_was_looked_for(tmp_path):
    task = task_of(tmp_path, "classify", **{**PAIRS, "folders": ["A", "B"]})
    with pytest.raises(UserError) as raised:
        read_examples(task, "train", parse_location(str(tmp_path / "d")))
    places = ", ".join(f"{tmp_path}/{place}/train.jsonl" for place in ("d/A", "d/B", "A", "B"))
    assert str(raised.value) == f"mine: train: no file; looked for {places}, each also with .gz"
    assert available_splits(task, None) == ()
    with pytest.raises(UserError, match=r"mine: no split 'dev', allowed train"):
        read(task, "dev")
    with pytest.raises(UserError, match="set GRISTMILL_TASKS to the directory"):
        read(task)


def test_many_files_are_one_split(tmp_path):
    for name, text in (("neg/1_2", "bad"), ("pos/0_9", "good"), ("neg/0_1", "worse")):
        (tmp_path / f"train/{name}.txt").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"train/{name}.txt").write_text(text)
    fields = {
        "format": "documents",
        "files": {"train": "train/*/*.txt"},
        "labels": ["0", "1"],
        "rename": {"neg": "0", "pos": "1"},
    }
    task = task_of(tmp_path, "classify", **fields, columns={"text": "text", "label": "folder", "id": "{folder}/{name}"})
    examples = read(task)
    assert examples.texts[0].to_pylist() == ["worse", "bad", "good"]
    assert examples.ids == ["neg/0_1", "neg/1_2", "pos/0_9"]
    assert examples.labels.tolist() == [0, 0, 1]
    for number in range(2):
        write_lines(tmp_path / f"part-{number}.jsonl", [ROWS[number]])
    assert same_pairs(read(task_of(tmp_path, "classify", **{**PAIRS, "files": {"train": "part-*.jsonl"}})))


@pytest.mark.parametrize("name", ["train [1].jsonl", "train?.jsonl", "{column}.jsonl", "[x] {column}.jsonl"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_file_of_exactly_this_name_comes_before_those_that_match_it(tmp_path, name, suffix):
    for other in ("train 1.jsonl", "train1.jsonl", "a.jsonl", "x a.jsonl"):
        write_lines(tmp_path / other, [{**ROWS[0], "a": "other"}])
    content = write_lines(tmp_path / "rows.jsonl", ROWS).read_bytes()
    (tmp_path / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    assert same_pairs(read(task_of(tmp_path, "classify", **{**PAIRS, "files": {"train": name}})))


def test_fields_inside_fields_composed_texts_and_conditions(tmp_path):
    rows = [
        {"q": {"stem": "Why?", "options": [{"t": "x"}, {"t": "y"}]}, "who": "Ann", "key": "B", "fold": 1},
        {"q": {"stem": "How?", "options": [{"t": "u"}, {"t": "v"}]}, "who": "Bo", "key": "A", "fold": 2},
    ]
    write_lines(tmp_path / "train.jsonl", rows)
    columns = {"text": "{who}: {q.stem}", "candidates": "q.options.t", "label": "key"}
    fields = {"files": {"train": "train.jsonl"}, "columns": columns, "rename": {"A": "0", "B": "1"}}
    examples = read(task_of(tmp_path, "choose", **fields))
    assert examples.texts[0].to_pylist() == ["Ann: Why?", "Bo: How?"]
    assert [examples.candidates_of(i) for i in range(2)] == [["x", "y"], ["u", "v"]]
    assert examples.labels.tolist() == [1, 0]
    assert examples.targets == [["y"], ["u"]]
    assert len(read(task_of(tmp_path, "choose", **fields, where={"fold": ["2"]}))) == 1
    with pytest.raises(UserError, match="holds no row that fits `where`"):
        read(task_of(tmp_path, "choose", **fields, where={"fold": ["3"]}))


def test_generated_rows_are_kept_on_conditions_too(tmp_path):
    fields = {"format": "generated", "files": {"test": "agreement"}, "metrics": ["accuracy"]}
    fields["columns"] = {"good": "good", "bad": "bad", "field": "field"}
    every = read(task_of(tmp_path, "minimal_pairs", **fields), "test")
    kept = read(task_of(tmp_path, "minimal_pairs", **fields, where={"field": ["same_number"]}), "test")
    assert 0 < len(kept) < len(every)
    assert set(kept.fields) == {"same_number"}
    with pytest.raises(UserError, match="agreement: holds no row that fits `where`"):
        read(task_of(tmp_path, "minimal_pairs", **fields, where={"field": ["none"]}), "test")


TAGS = {
    "files": {"train": "train.conll"},
    "columns": {"words": 0, "tags": -1},
    "labels": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
}


def tags(tmp_path, text, scheme="bio"):
    (tmp_path / "train.conll").write_text(text)
    fields = {**TAGS, "columns": {"words": 0, "tags": 1}, "scheme": scheme}
    return read(task_of(tmp_path, "tag", **fields))


def test_words_know_their_bytes(tmp_path):
    examples = tags(tmp_path, "Zoë\tB-PER\nÅs\tI-PER\n\n\nin\tO\n東京\tB-LOC\n\t\n.\tO\n")
    assert examples.texts[0].to_pylist() == ["Zoë Ås", "in 東京", "."]
    assert [examples.words(i) for i in range(3)] == [["Zoë", "Ås"], ["in", "東京"], ["."]]
    assert examples.word_starts.tolist() == [0, 5, 0, 3, 0]
    assert examples.word_ends.tolist() == [4, 8, 2, 9, 1]
    assert examples.tags.tolist() == [1, 2, 0, 3, 0]
    assert examples.word_offsets.tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize(
    ("scheme", "written", "bio"),
    [
        ("iob1", "I-PER I-PER B-PER I-LOC O I-LOC", "B-PER I-PER B-PER B-LOC O B-LOC"),
        ("iob1", "B-PER I-PER O B-LOC I-LOC O", "B-PER I-PER O B-LOC I-LOC O"),
        ("bioes", "B-PER I-PER E-PER S-LOC O S-PER", "B-PER I-PER I-PER B-LOC O B-PER"),
        ("bio", "B-PER I-PER B-PER B-LOC I-LOC O", "B-PER I-PER B-PER B-LOC I-LOC O"),
    ],
)
def test_every_scheme_of_entity_tags_becomes_bio(tmp_path, scheme, written, bio):
    text = "-DOCSTART- O\n\n" + "".join(f"w{i} {tag}\n" for i, tag in enumerate(written.split()))
    examples = tags(tmp_path, text, scheme)
    assert [TAGS["labels"][tag] for tag in examples.tags] == bio.split()


def test_rows_of_several_words_and_empty_nodes_are_no_words(tmp_path):
    def row(number, form, tag):
        return "\t".join([number, form, "_", tag, *"_" * 6]) + "\n"

    text = (
        "# sent_id = a-1\n# text = don't go\n"
        + row("1-2", "don't", "_")
        + row("1", "do", "AUX")
        + row("2", "n't", "PART")
    )
    text += row("2.1", "ghost", "X") + row("3", "go", "VERB") + "\n# sent_id = a-2\n" + row("1", "Go", "VERB") + "\n"
    (tmp_path / "train.conllu").write_text(text)
    fields = {"files": {"train": "train.conllu"}, "labels": ["AUX", "PART", "VERB"]}
    examples = read(task_of(tmp_path, "tag", **fields, columns={"words": "form", "tags": "upos", "id": "sent_id"}))
    assert [examples.words(i) for i in range(2)] == [["do", "n't", "go"], ["Go"]]
    assert examples.tags.tolist() == [0, 1, 2, 2]
    assert examples.ids == ["a-1", "a-2"]
    (tmp_path / "train.conllu").write_text(text.replace("\n3\t", "\n4\t"))
    with pytest.raises(UserError, match=r"train.conllu: line 7: id: got 4, expected 3"):
        read(task_of(tmp_path, "tag", **fields, columns={"words": "form", "tags": "upos"}))


def universal(*rows):
    """Return a CoNLL-U sentence, given (form, features, head) of each word."""
    lines = (
        "\t".join([str(n), form, *"___", feats, str(head), *"___"]) for n, (form, feats, head) in enumerate(rows, 1)
    )
    return "\n".join(lines) + "\n\n"


def test_features_and_depths_of_words_are_columns(tmp_path):
    """In a chain of 11 words, the last words share the greatest depth that is counted."""
    chain = [(f"w{n}", "Case=Nom|Number=Sing" if n == 2 else "Number=Plur" if n == 3 else "_", n) for n in range(11)]
    text = universal(*chain) + universal(("a", "_", 2), ("b", "Number=Sing", 0), ("c", "_", 2))
    (tmp_path / "train.conllu").write_text(text)
    fields = {"files": {"train": "train.conllu"}, "columns": {"words": "form", "tags": "feats.Number"}}
    numbers = read(task_of(tmp_path, "tag", **fields, labels=["none", "Sing", "Plur"])).tags.tolist()
    assert numbers == [0, 0, 1, 2, *[0] * 7, 0, 1, 0]
    fields["columns"] = {"words": "form", "tags": "depth"}
    depths = read(task_of(tmp_path, "tag", **fields, labels=list(range(9)))).tags.tolist()
    assert depths == [0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 1, 0, 1]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "_", 2), ("b", "_", 1)], "line 1: head: word 1 is not below the root; correct the cycle"),
        ([("a", "_", 0), ("b", "_", 3)], "line 1: head: got '3', expected 0 to 2"),
        ([("a", "_", 0), ("b", "_", "_")], "line 1: head: got '_', expected 0 to 2"),
    ],
)
def test_heads_that_make_no_tree_are_one_line(tmp_path, rows, message):
    (tmp_path / "train.conllu").write_text(universal(*rows))
    fields = {"files": {"train": "train.conllu"}, "columns": {"words": "form", "tags": "depth"}, "labels": [0, 1, 2]}
    with pytest.raises(UserError, match=re.escape(f"train.conllu: {message}")):
        read(task_of(tmp_path, "tag", **fields))


def squad(answers, context="Zoë saw 東京 in 1999.", **more):
    question = {"id": "q1", "question": " Where? ", "answers": answers, **more}
    return {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}]}


def read_squad(tmp_path, document, **fields):
    (tmp_path / "train.json").write_text(json.dumps(document))
    columns = {"question": "question", "passage": "context", "answers": "answers", "id": "id"}
    return read(task_of(tmp_path, "span", files={"train": "train.json"}, format="squad", columns=columns, **fields))


def test_files_in_squad_s_format_need_no_columns(tmp_path):
    document = squad([{"text": "東京", "answer_start": 8}])
    named = read_squad(tmp_path, document)
    bare = read(task_of(tmp_path, "span", files={"train": "train.json"}, format="squad"))
    assert (bare.ids, bare.spans, bare.own_ids) == (named.ids, named.spans, True)
    with pytest.raises(ConfigError, match="columns: question, passage, answers missing"):
        task_of(tmp_path, "span", files={"train": "train.jsonl"})


def test_answers_are_bytes_of_the_passage(tmp_path):
    answers = [
        {"text": "東京", "answer_start": 8},
        {"text": "東京", "answer_start": 8},
        {"text": "in 1999", "answer_start": 11},
    ]
    examples = read_squad(tmp_path, squad(answers))
    passage = examples.texts[1][0].as_py().encode()
    assert [passage[start:end].decode() for start, end in examples.spans[0]] == ["東京", "in 1999"]
    assert examples.targets == [["東京", "東京", "in 1999"]]
    assert examples.texts[0][0].as_py() == "Where?"
    assert examples.ids == ["q1"]


def test_a_passage_keeps_its_white_space_because_offsets_count_it(tmp_path):
    examples = read_squad(tmp_path, squad([{"text": "Rome", "answer_start": 2}], "  Rome "))
    assert examples.texts[1][0].as_py() == "  Rome "
    assert examples.spans == [[(2, 6)]]


def test_a_question_without_an_answer(tmp_path):
    impossible = squad([], is_impossible=True, plausible_answers=[{"text": "Zoë", "answer_start": 0}])
    examples = read_squad(tmp_path, impossible, no_answer=True)
    assert (examples.spans, examples.targets) == ([[]], [[]])
    with pytest.raises(UserError, match="question 1: answers: got none; set no_answer: true"):
        read_squad(tmp_path, impossible)


def test_answers_in_the_shape_of_datasets(tmp_path):
    row = {"c": "Rome fell.", "q": "What?", "a": {"text": ["Rome"], "answer_start": [0]}}
    write_lines(tmp_path / "train.jsonl", [row])
    columns = {"question": "q", "passage": "c", "answers": "a"}
    assert read(task_of(tmp_path, "span", files={"train": "train.jsonl"}, columns=columns)).spans == [[(0, 4)]]


def test_targets_of_one_column_of_several_and_of_lists(tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"q": "who", "a": "x", "b": "y", "all": ["x", "z"]}])
    for column, expected in (("a", ["x"]), (["a", "b"], ["x", "y"]), ("all", ["x", "z"])):
        task = task_of(tmp_path, "generate", files={"train": "train.jsonl"}, columns={"text": "q", "target": column})
        assert read(task).targets == [expected]


def test_numbers(tmp_path):
    (tmp_path / "train.tsv").write_text("a\ty\none\t4.750\ntwo\t0\n")
    fields = {"files": {"train": "train.tsv"}, "columns": {"text": "a", "label": "y"}, "range": [0, 5]}
    assert read(task_of(tmp_path, "regress", **fields)).values.tolist() == [4.75, 0.0]


@pytest.mark.parametrize("kind", ["classify", "regress", "tag", "span", "choose", "generate"])
def test_hidden_gold_can_be_read_and_has_no_values(tmp_path, kind):
    rows = [{"a": "one", "c": ["x", "y"], "w": ["a", "b", "c"]}, {"a": "two", "c": ["u", "v"], "w": ["d"]}]
    write_lines(tmp_path / "test.jsonl", rows)
    columns = {
        "classify": {"text": "a", "label": "y"}, "regress": {"text": "a", "label": "y"}, "tag": {"words": "w", "tags": "y"},
        "span": {"question": "a", "passage": "a", "answers": "y"}, "choose": {"text": "a", "candidates": "c", "label": "y"},
        "generate": {"text": "a", "target": "y"},
    }[kind]  # fmt: skip
    labels = {"labels": ["no", "yes"]} if kind in ("classify", "tag") else {}
    task = task_of(tmp_path, kind, files={"test": "test.jsonl"}, unlabelled=["test"], columns=columns, **labels)
    examples = read(task, "test")
    assert not examples.labelled
    assert len(examples) == 2
    assert examples.spans is None
    assert examples.targets is None
    if kind in ("classify", "choose"):
        assert examples.labels.tolist() == [-100, -100]
    if kind == "tag":
        assert examples.tags.tolist() == [-100] * 4
    if kind == "regress":
        assert np.isnan(examples.values).all()


SENTENCES = {"files": {"train": "train.jsonl"}, "columns": {"text": "a", "label": "y"}, "labels": ["no", "yes"]}


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([{"a": "x", "z": "no"}], {}, "columns.label: no column 'y'; there are: a, z; if the gold is hidden, list"),
        ([{"a": "x", "y": "no"}, {"a": "x"}], {}, "line 2: columns.label: no field 'y'; correct the row"),
        ([{"a": "x", "y": "no"}, {"a": "x", "y": "yess"}], {}, "line 2: label: got 'yess', expected one of no, yes; did you"),
        ([{"a": "x", "y": "no"}, {"a": "x", "y": None}], {}, "line 2: label: got 'None', expected one of no, yes; add it"),
        ([{"a": " \t", "y": "no"}], {}, "line 1: text: empty; remove the row"),
        ([{"a": 7, "y": "no"}], {}, "line 1: text: got a value of type int, expected text"),
        ([{"a": "x\ty", "y": "no"}, {"a": None, "y": "no"}, {"a": 5, "y": "no"}], {}, "line 3: text: got a value of type int"),
        ([{"a": None, "y": "no"}], {}, "line 1: text: empty"),
        ([{"a": "x", "y": "no", "i": 1}, {"a": "x", "y": "no", "i": 1}], {"columns": {"text": "a", "label": "y", "id": "i"}},
         "line 2: id: '1' is also that of line 1; give each example its own id"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path, rows, fields, message):
    write_lines(tmp_path / "train.jsonl", rows)
    with pytest.raises(UserError) as raised:
        read(task_of(tmp_path, "classify", **{**SENTENCES, **fields}))
    assert str(raised.value).startswith(f"{tmp_path}/train.jsonl: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no row"),
        ("y\ta\n", "holds no row"),
        ("y\ta\nno\tx\nno\n", "line 3: 1 columns, expected 2 as in line 1; correct it, or skip such rows"),
        ("y\ty\nno\tx\n", "line 1: two columns are named 'y'"),
    ],
)
def test_a_broken_table_is_named(tmp_path, text, message):
    (tmp_path / "train.tsv").write_text(text)
    with pytest.raises(UserError) as raised:
        read(task_of(tmp_path, "classify", **{**SENTENCES, "files": {"train": "train.tsv"}}))
    assert str(raised.value).startswith(f"{tmp_path}/train.tsv: {message}")


def test_incomplete_rows_are_skipped_and_counted_where_the_task_says_so(tmp_path):
    (tmp_path / "train.tsv").write_text("y\ta\nno\tx\nno\nyes\t \n\tempty\nyes\tz\n")
    examples = read(
        task_of(tmp_path, "classify", **{**SENTENCES, "files": {"train": "train.tsv"}}, incomplete_rows="skip")
    )
    assert examples.texts[0].to_pylist() == ["x", "z"]
    assert examples.skipped == 3
    (tmp_path / "train.tsv").write_text("y\ta\nno\t \n")
    with pytest.raises(UserError, match="holds no complete row"):
        read(task_of(tmp_path, "classify", **{**SENTENCES, "files": {"train": "train.tsv"}}, incomplete_rows="skip"))


SPAN = {"q": "who?", "p": "Ann ran.", "o": []}


@pytest.mark.parametrize(
    ("kind", "fields", "whole", "incomplete"),
    [
        ("classify", {"text": "a", "label": "y"}, {"a": "x", "y": "no"}, [{"a": "x"}, {"y": "no"}, {"a": None, "y": "no"}]),
        ("regress", {"text": "{a} {b}", "label": "v"}, {"a": "x", "b": "y", "v": 1}, [{"a": "x", "v": 1}]),
        ("tag", {"words": "w", "tags": "t"}, {"w": ["x"], "t": ["no"]}, [{"w": []}, {"w": ["x", " "], "t": ["no"] * 2}]),
        ("span", {"question": "q", "passage": "p", "answers": "o"}, SPAN, [{**SPAN, "q": " "}, {"q": "who?", "o": []}]),
        ("choose", {"text": "a", "candidates": ["b", "c.d"], "label": "k"}, {"a": "x", "b": "y", "c": {"d": "z"}, "k": 0},
         [{"a": "x", "b": "", "c": {"d": "z"}, "k": 0}, {"a": "x", "b": "y", "c": {}, "k": 0}]),
        ("generate", {"text": "a", "target": "g"}, {"a": "x", "g": ["y"]}, [{"a": "x", "g": ["y", ""]}, {"a": "x", "g": []}]),
        ("minimal_pairs", {"good": "a", "bad": "b"}, {"a": "x", "b": "y"}, [{"a": "x"}, {"a": "", "b": "y"}]),
        ("facts", {"subject": "a", "target": "g"}, {"a": "x", "g": "y"}, [{"a": "x"}, {"a": " ", "g": "y"}]),
        ("text", {"text": "a"}, {"a": "x"}, [{"a": " "}, {"b": "x"}]),
    ],
)  # fmt: skip
def test_incomplete_rows_of_every_kind_are_skipped(tmp_path, kind, fields, whole, incomplete):
    write_lines(tmp_path / "train.jsonl", [whole, *incomplete])
    more = {"labels": ["no", "yes"]} if kind in ("classify", "tag") else {"no_answer": True} if kind == "span" else {}
    more |= {"minimal_pairs": {"metrics": ["accuracy"]}, "facts": {"metrics": ["accuracy"]}}.get(kind, {})
    more |= {"metrics": ["bits_per_byte"]} if kind == "text" else {}
    task = task_of(tmp_path, kind, files={"train": "train.jsonl"}, columns=fields, incomplete_rows="skip", **more)
    examples = read(task)
    assert (len(examples), examples.skipped) == (1, len(incomplete))


def test_hidden_gold_makes_no_row_incomplete(tmp_path):
    write_lines(tmp_path / "train.jsonl", [{"a": "x", "y": ""}, {"a": "z"}])
    fields = {**SENTENCES, "incomplete_rows": "skip", "unlabelled": ["train"]}
    assert len(read(task_of(tmp_path, "classify", **fields))) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.jsonl", b'{"a": "x", "y": "no"}\n{"a"\n', "line 2: not JSON"),
        ("train.jsonl", b"[1]\n", "line 1: holds no JSON object"),
        ("train.jsonl", b'{"a": "x\\ud800", "y": "no"}\n', "line 1: holds half of a surrogate pair"),
        ("train.jsonl", b'{"a": "x"}\n\xff\n', "line 2: not utf-8 at byte 11; set the encoding"),
        ("train.jsonl.gz", gzip.compress(b'{"a": "x"}')[:-4], "not intact gzip"),
        ("train.jsonl.gz", b"\x1f\x8b\x08 no", "not intact gzip"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        read(task_of(tmp_path, "classify", **SENTENCES))
    assert str(raised.value).startswith(f"{tmp_path}/{name}: {message}")


def test_a_directory_in_place_of_a_file_and_a_brace_in_place_of_a_column_are_named(tmp_path):
    write_lines(tmp_path / "train" / "a.jsonl", ROWS)
    with pytest.raises(UserError, match=r"train: is a directory; name files, such as train/\*"):
        read(task_of(tmp_path, "classify", **{**SENTENCES, "files": {"train": "tr*"}, "format": "jsonl"}))
    fields = {**SENTENCES, "files": {"train": "train/*.jsonl"}, "columns": {"text": "{", "label": "y"}}
    with pytest.raises(UserError, match=r"columns.text: no column '{'; there are: a, b, y"):
        read(task_of(tmp_path, "classify", **fields))


@pytest.mark.parametrize(
    ("text", "scheme", "message"),
    [
        (
            "a\tO\nb\tI-PER\n",
            "bio",
            "line 1: word 2: tag: got 'I-PER' after 'O', expected B-PER; correct it, or set scheme: iob1",
        ),
        ("a\tB-LOC\nb\tI-PER\n", "bio", "line 1: word 2: tag: got 'I-PER' after 'B-LOC'"),
        ("x\tO\n\na\tE-PER\n", "bioes", "line 3: word 1: tag: got 'E-PER' after 'O'"),
        ("a\tPER\n", "bio", "line 1: word 1: tag: got 'PER', expected O, B-TYPE, I-TYPE (scheme: bio)"),
        ("a\tS-PER\n", "bio", "line 1: word 1: tag: got 'S-PER'"),
        ("a\tB-ORG\n", "bio", "line 1: tags: got 'B-ORG', expected one of O, B-PER"),
        ("a\tO\nb\n", "bio", "line 2: 1 columns, expected 2"),
    ],
)
def test_a_bad_tag_is_named(tmp_path, text, scheme, message):
    with pytest.raises(UserError) as raised:
        tags(tmp_path, text, scheme)
    assert str(raised.value).startswith(f"{tmp_path}/train.conll: {message}")


def test_a_gold_span_outside_the_text_is_named_without_its_text(tmp_path):
    for answer in (
        {"text": "Kyoto", "answer_start": 8},
        {"text": "1999.x", "answer_start": 14},
        {"text": "Zoë", "answer_start": -20},
    ):
        with pytest.raises(UserError) as raised:
            read_squad(tmp_path, squad([answer]))
        assert str(raised.value).startswith(
            f"{tmp_path}/train.json: question 1: answers: the passage of 19 characters does not have"
        )
        assert answer["text"] not in str(raised.value)


@pytest.mark.parametrize(
    "document",
    [
        [], {"data": 3}, {"data": [{"paragraphs": [{"qas": []}]}]}, squad([{"text": "Zoë"}]), squad("Zoë"),
        {"data": [{"paragraphs": [{}]}]},
    ],
)  # fmt: skip
def test_json_that_is_not_squad_is_named(tmp_path, document):
    with pytest.raises(UserError, match=r"train.json: (question|holds)"):
        read_squad(tmp_path, document)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"q": "x", "c": ["a"], "y": 0}, "candidates: expected two texts or more"),
        ({"q": "x", "c": ["a", ""], "y": 0}, "candidates: expected two texts or more"),
        ({"q": "x", "c": ["a", "b"], "y": 2}, "label: got '2', expected the number of a candidate, 0 to 1"),
        ({"q": "x", "c": ["a", "b"], "y": "B"}, "label: got 'B', expected the number"),
    ],
)
def test_a_bad_choice_is_named(tmp_path, row, message):
    write_lines(tmp_path / "train.jsonl", [row])
    columns = {"text": "q", "candidates": "c", "label": "y"}
    with pytest.raises(UserError) as raised:
        read(task_of(tmp_path, "choose", files={"train": "train.jsonl"}, columns=columns))
    assert str(raised.value).startswith(f"{tmp_path}/train.jsonl: line 1: {message}")


@pytest.mark.parametrize("value", ["5.1", "-0.1", "nan", "many", ""])
def test_a_number_out_of_range_is_named(tmp_path, value):
    (tmp_path / "train.tsv").write_text(f"a\ty\none\t{value}\n")
    fields = {"files": {"train": "train.tsv"}, "columns": {"text": "a", "label": "y"}, "range": [0, 5]}
    with pytest.raises(UserError, match=r"line 2: label: got .*, expected a number from 0 to 5; correct the row"):
        read(task_of(tmp_path, "regress", **fields))


def test_templates_compose_numbered_columns_and_parallel_files(tmp_path):
    (tmp_path / "train.tsv").write_text("yes\tone\ttwo\n")
    columns = {"text": "{1} and {2}", "label": 0}
    table = {"files": {"train": "train.tsv"}, "header": False, "labels": ["no", "yes"], "columns": columns}
    assert read(task_of(tmp_path, "classify", **table)).texts[0].to_pylist() == ["one and two"]
    for column, text in {"de": "Haus", "en": "house"}.items():
        (tmp_path / f"t.{column}").write_text(f"{text}\n")
    columns = {"text": "German: {de}", "target": "en"}
    examples = read(task_of(tmp_path, "generate", files={"train": "t.{column}"}, format="lines", columns=columns))
    assert (examples.texts[0].to_pylist(), examples.targets) == (["German: Haus"], [["house"]])


def test_parallel_files_of_different_lengths_are_refused(tmp_path):
    (tmp_path / "t.en").write_text("a\nb\n")
    (tmp_path / "t.de").write_text("a\n")
    columns = {"text": "en", "target": "de"}
    with pytest.raises(UserError, match=r"t.en has 2 lines, .*t.de has 1 lines; expected as many in each"):
        read(task_of(tmp_path, "generate", files={"train": "t.{column}"}, format="lines", columns=columns))


def check(task):
    return check_leaks(task, {split: read_examples(task, split, None) for split in ("train", "dev")}, None)


def test_an_example_in_two_splits_is_refused_unless_it_is_allowed(tmp_path):
    files = {"train": "train.jsonl", "dev": "dev.jsonl"}
    write_lines(tmp_path / "train.jsonl", [{**ROWS[0], "i": "t1"}, {**ROWS[1], "i": "t2"}])
    write_lines(
        tmp_path / "dev.jsonl", [{"a": "new", "b": "two", "y": "no", "i": "d1"}, {**ROWS[1], "y": "no", "i": "d2"}]
    )
    columns = {**PAIRS["columns"], "id": "i"}
    task = task_of(tmp_path, "classify", **{**PAIRS, "files": files, "columns": columns})
    with pytest.raises(UserError) as raised:
        check(task)
    assert str(raised.value) == (
        f"{tmp_path}/dev.jsonl: line 2: the text is also that of {tmp_path}/train.jsonl: line 2 "
        "(mine: 1 example of dev has the text of one of train); "
        "remove the copies from one of the files, or accept them with leak=report (leak: report in the task file)"
    )
    allowed = task_of(tmp_path, "classify", **{**PAIRS, "files": files, "columns": columns}, leak="report")
    (leak,) = check(allowed)
    assert (leak.kind, leak.count, leak.pair) == ("text", 1, (1, 1))
    write_lines(tmp_path / "dev.jsonl", [{"a": "new", "b": "two", "y": "no", "i": "t1"}])
    with pytest.raises(UserError, match=r"dev.jsonl: line 1: the id is also that of .*train.jsonl: line 1 "):
        check(task)
