"""Hidden states equal those of stock `transformers`. Probes learn labels that the states determine, and do
not learn random ones.
"""

import json
import re
from io import BytesIO
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from tests.trainers.evaluation.scored_models import (
    OBJECTIVES,
    WORDS,
    encoder,
    ids_of,
    likelihoods,
    network_of,
    reference,
    scorer_of,
)
from tests.trainers.tasks.writing import task_of, write_lines
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.__main__ import main
from trainers.evaluation.next_tokens_page import render_next_tokens
from trainers.evaluation.probing import probe_examples as probe_module
from trainers.evaluation.probing.features import pooled, write_features
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.evaluation.probing.probe_examples import control_labels, probe_examples, probe_split
from trainers.evaluation.probing.probe_layers import probe_layers
from trainers.evaluation.probing.text_sets import TEXT_SETS, text_set
from trainers.evaluation.scoring.token_choices import TokenChoice
from trainers.evaluation.suites.text_bits import SPLIT, text_task
from trainers.tasks.load_task import load_task
from trainers.tasks.predictions import predictions_of, write_predictions
from trainers.tasks.read_examples import read_examples

MODELS = ["gpt2", "gpt", "llama", "t5", "bart", "bert", "roberta", "modernbert", "deberta", "deberta_v2"]
TEXTS = ["the cat sat", "unhappy dogfish barked loudly beyond twenty gates", "mat", "a cat on the mat while"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tokenizer")


def reader_of(name, folder):
    model, network = network_of(name)
    return StateReader(name, network, model, OBJECTIVES[name], encoder(folder))


def stock_states(name, folder, text):
    """Return, for each stack of a model, (states [layers, positions, width], number of special tokens before
    the text) of a single text.
    """
    _, network = network_of(name)
    ids, of = ids_of(folder, text), SPECIAL_IDS
    frames = {"t5": ([], ["<eos>"]), "bart": (["<bos>"], ["<eos>"])}
    encoders = dict.fromkeys(("bert", "roberta", "modernbert", "deberta", "deberta_v2"), (["<cls>"], ["<sep>"]))
    before, after = {**frames, **encoders}.get(name, (["<bos>"], []))
    inputs = torch.tensor([[*(of[mark] for mark in before), *ids, *(of[mark] for mark in after)]])
    given = {"output_hidden_states": True}
    if name in frames:
        start = [of["<pad>"]] if name == "t5" else [of["<eos>"], of["<bos>"]]
        given["decoder_input_ids"] = torch.tensor([[*start, *ids]])
    with torch.no_grad():
        made = network(inputs, **given)
    if name not in frames:
        return [(torch.cat(made.hidden_states).numpy(), len(before))]
    return [
        (torch.cat(made.encoder_hidden_states).numpy(), len(before)),
        (torch.cat(made.decoder_hidden_states).numpy(), len(start)),
    ]


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_states_of_every_layer_are_those_of_stock_transformers(folder, name):
    reader = reader_of(name, folder)
    states = reader.read(reader.encode(TEXTS), reader.layers)
    assert len(reader.layers) == len(states[0].tokens) == (6 if name in ("t5", "bart") else 3)
    for text, found in zip(TEXTS, states, strict=True):
        stacks = stock_states(name, folder, text)
        count = len(ids_of(folder, text))
        expected = np.concatenate([layers[:, marks : marks + count] for layers, marks in stacks])
        assert found.tokens == pytest.approx(expected, abs=2e-5)
        assert found.first == pytest.approx(np.concatenate([layers[:, 0] for layers, _ in stacks]), abs=2e-5)
    chosen = reader.read(reader.encode(TEXTS), reader.choose_layers(reader.layers[-1]))
    assert np.array_equal(chosen[1].tokens[0], states[1].tokens[-1])


def test_a_document_longer_than_the_model_is_read_in_pieces(folder):
    reader = reader_of("gpt2", folder)
    (ids,) = reader.encode([" ".join(WORDS * 12)])
    room = 159  # the model has 160 positions, one of them for <bos>
    assert len(ids) > 2 * room
    (whole,) = reader.read([ids], reader.layers)
    parts = [reader.read([ids[start : start + room]], reader.layers)[0] for start in range(0, len(ids), room)]
    assert whole.tokens == pytest.approx(np.concatenate([part.tokens for part in parts], axis=1), abs=2e-5)
    assert whole.first == pytest.approx(parts[0].first, abs=2e-5)
    assert pooled(whole, "mean") == pytest.approx(whole.tokens.mean(axis=1))
    assert np.array_equal(pooled(whole, "last"), whole.tokens[:, -1])


def test_unknown_layers_are_refused(folder):
    with pytest.raises(
        ConfigError, match=r"layers: got '7', allowed for t5: all, encoder\.0, encoder\.1, encoder\.2, decoder\.0"
    ):
        reader_of("t5", folder).choose_layers("encoder.1,7")


def test_features_are_rows_by_document_or_token(decoder_run, tmp_path, capsys):
    texts = [{"id": f"d{n}", "text": text} for n, text in enumerate(["a cab", "bad cafe decade", "fed a hag"])]
    file, output = write_lines(tmp_path / "t.jsonl", texts), tmp_path / "f.parquet"
    command = ["features", str(decoder_run), "--text", str(file), "--output", str(output)]
    assert main(command) == 0
    assert "3 rows, 3 layers of width 64" in capsys.readouterr().out
    table = pq.read_table(output)
    assert table.column_names == ["id", "layer_0", "layer_1", "layer_2"]
    assert table.schema.field("layer_2").type == pa.list_(pa.float32(), 64)
    reader = StateReader.open(decoder_run)
    states = reader.read(reader.encode([row["text"] for row in texts]), reader.layers)
    means = np.array(table["layer_2"].to_pylist())
    assert means == pytest.approx(np.stack([each.tokens[2].mean(axis=0) for each in states]), abs=1e-5)
    assert main([*command, "--pooling", "token", "--layers", "1"]) == 0
    table = pq.read_table(output)
    assert table.column_names == ["id", "position", "token", "layer_1"]
    ids = reader.encode([row["text"] for row in texts])
    assert table["token"].to_pylist() == np.concatenate(ids).tolist()
    assert table["position"].to_pylist() == [n for each in ids for n in range(len(each))]
    assert np.array(table["layer_1"].to_pylist()) == pytest.approx(
        np.concatenate([each.tokens[1] for each in states]), abs=1e-5
    )
    assert main([*command[:-1], "f.csv"]) == 2
    assert "--output: got f.csv, expected a name that ends in .parquet" in capsys.readouterr().err


def test_rows_of_features_are_counted_once_where_a_write_is_repeated(folder, tmp_path, monkeypatch):
    reader, write = reader_of("gpt2", folder), LocalPath.write_atomic

    def write_twice(self, content):
        content(BytesIO())
        write(self, content)

    monkeypatch.setattr(LocalPath, "write_atomic", write_twice)
    texts = read_examples(text_task(LocalPath(write_lines(tmp_path / "t.jsonl", [{"text": "a cab"}] * 3))), SPLIT, None)
    assert write_features(reader, texts, ["1"], "mean", LocalPath(tmp_path / "f.parquet")) == 3


@pytest.fixture(scope="module")
def tags(tmp_path_factory):
    """A folder of sentences whose words are tagged by their first letter in column `t`, and at random in
    column `n`.
    """
    folder, draw = tmp_path_factory.mktemp("tags"), np.random.default_rng(3)
    for split, count in (("train", 120), ("dev", 40)):
        lines = []
        for _ in range(count):
            words = draw.choice(WORDS, 6).tolist()
            lines.append({"w": words, "t": ["early" if word[0] < "m" else "late" for word in words],
                          "n": draw.choice(["early", "late"], 6).tolist()})  # fmt: skip
        write_lines(folder / f"{split}.jsonl", lines)
    return folder


def tagging(folder, column="t"):
    files = {"train": "train.jsonl", "dev": "dev.jsonl"}
    return task_of(folder, "tag", files=files, columns={"words": "w", "tags": column}, labels=["early", "late"])


def test_the_state_of_a_word_is_the_mean_over_its_tokens(folder, tags):
    reader = reader_of("llama", folder)
    examples = probe_split(tagging(tags), "train", None, 5)
    found = probe_examples(reader, examples, reader.layers)
    assert len(found) == 30
    assert found.types[:6] == examples.words(0)
    (states,) = reader.read(reader.encode([examples.texts[0][0].as_py()]), reader.layers)
    # A token of white space alone belongs to the word before it.
    word, of = -1, []
    for token in ids_of(folder, examples.texts[0][0].as_py()):
        text = encoder(folder).decode([token])
        word += text.strip() != "" and (word < 0 or text.startswith(" ") or of[-1][1].strip() == "")
        of.append((word, text))
    owner = np.array([each for each, _ in of])
    assert owner[-1] == 5
    for number in range(6):
        expected = states.tokens[:, owner == number].mean(axis=1)
        assert found.states[:, number] == pytest.approx(expected, abs=1e-5)


def test_a_word_of_a_text_without_tokens_has_the_state_of_the_first_position(folder):
    """As of a text that consists of a character which the tokenizer drops."""
    reader = reader_of("bert", folder)
    texts, starts = pa.array(["a cab", "", "a"], pa.large_string()), np.array([0, 2, 0, 0])
    states = probe_module._word_states(reader, texts, starts, np.array([0, 2, 3, 4]), ["1"])
    assert states.shape[:2] == (1, 4)
    assert states[:, 2] == pytest.approx(reader.read([np.empty(0, np.int64)], ["1"])[0].first, abs=1e-5)
    assert states[:, 3] == pytest.approx(reader.read(reader.encode(["a"]), ["1"])[0].tokens.mean(axis=1), abs=1e-5)


def test_a_last_word_without_tokens_takes_none_from_the_word_before_it(folder):
    reader = reader_of("bert", folder)
    texts = pa.array(["the dogfish"], pa.large_string())
    (two,) = probe_module._word_states(reader, texts, np.array([0, 4]), np.array([0, 2]), ["1"])
    (three,) = probe_module._word_states(reader, texts, np.array([0, 4, 11]), np.array([0, 3]), ["1"])
    (states,) = reader.read(reader.encode(["the dogfish"]), ["1"])
    assert np.array_equal(three[:2], two)
    assert three[2] == pytest.approx(states.tokens[0, -1], abs=1e-5)


@pytest.mark.long
def test_probes_find_what_is_there_and_the_control_task_says_what_is_learned_by_heart(folder, tags):
    pytest.importorskip("sklearn")
    reader = reader_of("bert", folder)
    first, second = (probe_split(tagging(tags), split, None, None) for split in ("train", "dev"))
    found = probe_layers(reader, first, second, ["0", "2"], ["linear", "mlp"], 0, lambda line: None)
    assert [(each.layer, each.classifier) for each in found] == [
        ("0", "linear"), ("0", "mlp"), ("2", "linear"), ("2", "mlp"),
    ]  # fmt: skip
    for each in found:
        assert each.accuracy.value > (0.95 if each.layer == "0" else 0.7)  # weights at random blur the words
        assert each.accuracy.n == 40
        assert each.selectivity == pytest.approx(each.accuracy.value - each.control.value)
    assert min(each.control.value for each in found[:2]) > 0.9  # fifteen words are soon known by heart
    noise = [probe_split(tagging(tags, "n"), split, None, None) for split in ("train", "dev")]
    (layer,) = probe_layers(reader, *noise, ["0"], ["linear"], 0, lambda line: None)
    assert layer.accuracy.value == pytest.approx(0.5, abs=0.1)
    assert layer.selectivity < -0.3


def test_joined_layers_are_concatenated(folder, tags, monkeypatch):
    reader, seen = reader_of("bert", folder), []
    first, second = (probe_split(tagging(tags), split, None, 20) for split in ("train", "dev"))

    def predict(kind, states, labels, unseen, seed):
        seen.append((states, unseen))
        return np.zeros(len(unseen), np.int64)

    monkeypatch.setattr("trainers.evaluation.probing.probe_layers.predict_labels", predict)
    found = probe_layers(reader, first, second, ["1", "0+2", "2"], ["linear"], 0, lambda line: None)
    assert [each.layer for each in found] == ["1", "0+2", "2"]
    for number, examples in enumerate((first, second)):
        embeddings, last = probe_examples(reader, examples, ["0", "2"]).states
        assert np.array_equal(seen[2][number], np.concatenate([embeddings, last], axis=1))
        assert np.array_equal(seen[4][number], last)


def test_every_type_has_one_label_in_the_control_task(folder, tags):
    reader = reader_of("llama", folder)
    first, second = (probe_examples(reader, probe_split(tagging(tags), s, None, 20), ["0"]) for s in ("train", "dev"))
    of = {}
    for examples, labels in zip((first, second), control_labels(first, second, 1), strict=True):
        for name, label in zip(examples.types, labels, strict=True):
            assert of.setdefault(name, label) == label
    assert set(of.values()) == {0, 1}
    assert control_labels(first, second, 1)[0].tolist() == control_labels(first, second, 1)[0].tolist()


@pytest.mark.long
def test_the_command_probes_texts_and_writes_scores(decoder_run, tmp_path, capsys):
    pytest.importorskip("sklearn")
    rows = [{"s": f"{'a cab' if n % 2 else 'bad cafe'} {n % 7} hag", "y": n % 2} for n in range(60)]
    for split in ("train", "dev"):
        write_lines(tmp_path / f"{split}.jsonl", rows)
    (tmp_path / "mine.yaml").write_text(
        "kind: classify\nfiles: {train: train.jsonl, dev: dev.jsonl}\ncolumns: {text: s, label: y}\nlabels: [0, 1]\n"
        "metrics: [accuracy]\n"
    )
    output = tmp_path / "p.json"
    assert main(["probe", str(decoder_run), f"task={tmp_path}/mine.yaml", "layers=0,2", "--output", str(output)]) == 0
    shown = capsys.readouterr()
    assert re.search(r"^0 +linear +1\.0000", shown.out, re.M)
    assert "60 training and 60 test examples of 2 types" in shown.err
    assert [each["layer"] for each in json.loads(output.read_text())["layers"]] == ["0", "2"]
    page = tmp_path / "p.html"
    assert main(["probe", str(decoder_run), f"task={tmp_path}/mine.yaml", "limit=40", "--output", str(page)]) == 0
    assert "accuracy by layer" in page.read_text()
    assert page.read_text().count("<polyline") + page.read_text().count("<path") >= 2


def test_layers_are_concatenated_and_compared_with_a_fine_tuned_run(decoder_run, tmp_path, capsys):
    pytest.importorskip("sklearn")
    rows = [{"s": f"{'a cab' if n % 2 else 'bad cafe'} {n % 7} hag", "y": "ab"[n % 2]} for n in range(60)]
    for split in ("train", "dev"):
        write_lines(tmp_path / f"{split}.jsonl", rows)
    (tmp_path / "mine.yaml").write_text(
        "kind: classify\nfiles: {train: train.jsonl, dev: dev.jsonl}\ncolumns: {text: s, label: y}\nlabels: [a, b]\n"
        "metrics: [accuracy]\n"
    )
    task, run = f"task={tmp_path}/mine.yaml", tmp_path / "tuned"
    examples = read_examples(load_task(f"{tmp_path}/mine.yaml"), "dev", None)
    predicted = np.where(np.arange(60) < 30, examples.labels, 0)  # all of the first 30 are right, then every second one
    (run / "predictions").mkdir(parents=True)
    write_predictions(predictions_of(examples, predicted, "m"), LocalPath(run / "predictions/dev.parquet"))
    output = tmp_path / "p.json"
    words = ["probe", str(decoder_run), task, "layers=1,0+2", f"finetuned={run}"]
    assert main([*words, "limit=40", "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^0\+2 +linear", shown, re.M)
    assert re.search(r"^fine-tuned +0\.8750", shown, re.M)  # 30 + 5 of the first 40
    made = json.loads(output.read_text())
    assert [each["layer"] for each in made["layers"]] == ["1", "0+2"]
    assert made["finetuned"]["accuracy"]["value"] == 0.875
    assert made["finetuned"]["accuracy"]["error"] == pytest.approx((0.875 * 0.125 / 39) ** 0.5)
    assert main([*words, "--output", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text()
    assert page.count("fine-tuned") >= 3  # in the key, the chart and the table
    capsys.readouterr()
    for change, message in (
        (lambda: write_lines(tmp_path / "dev.jsonl", rows[::-1]), "has other examples than dev of mine"),
        (lambda: (run / "predictions/dev.parquet").unlink(), "has no predictions of dev; give a finished run"),
    ):
        change()
        assert main(words) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["task=squad"], "task: squad has kind span; probes need labels of words (tag) or of one text (classify)"),
        (["task=rte"], "task: rte has two texts; probes need"),
        (["task=ud_pos", "classifier=svm"], "classifier: got 'svm', allowed linear, mlp"),
        (["task=ud_pos", "limit=1"], "limit: got 1, allowed 2 or more"),
        (["task=ud_pos", "limit=²"], "limit: got ², allowed 2 or more"),
        (["task=ud_pos", "layer=1"], "did you mean 'layers'?"),
        (["layers=all"], "task: give task=NAME, task=FILE.yaml, or text=FILE with set=NAME"),
        (["task=ud_pos", "set=length"], "set: belongs to text=FILE; leave it out"),
        (["text=x.txt", "set=lengths"], "set: got lengths, allowed length, word_content, word_order, sentence_order"),
        (["text=x.txt", "set=length", "finetuned=runs/a"], "finetuned: belongs to task=NAME; leave it out"),
        (["text=x.txt", "set=length", "train=dev"], "train: belongs to task=NAME; leave it out"),
    ],
)
def test_bad_input_of_probe_is_one_line(decoder_run, words, message, capsys, monkeypatch):
    monkeypatch.delenv("GRISTMILL_TASKS", raising=False)
    assert main(["probe", str(decoder_run), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_scikit_learn_the_command_that_installs_it_is_named(decoder_run, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["probe", str(decoder_run), "task=ud_pos"]) == 2
    assert "probe needs scikit-learn, which is not installed; run: pip install" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "bart"])
def test_next_tokens_have_the_rank_and_surprisal_of_the_likelihood(folder, name):
    scorer = scorer_of(name, folder, pseudo="token")
    text = "the cat sat on a mat"
    ids = ids_of(folder, text)
    choices = scorer.choose_tokens(text, 3, 100)
    assert "".join(choice.token for choice in choices) == text
    nats = [-choice.surprisal * np.log(2) for choice in choices]
    assert sum(nats) == pytest.approx(reference(name, folder, [], ids), abs=1e-3)
    for choice in choices:
        shares = [share for _, share in choice.candidates]
        assert shares == sorted(shares, reverse=True)
        assert len(shares) == 3
        assert (choice.rank <= 3) == (choice.token in [token for token, _ in choice.candidates[:3]])
    if name == "gpt2":
        _, network = network_of(name)
        inputs = [SPECIAL_IDS["<bos>"], *ids[:-1]]
        assert nats == pytest.approx(likelihoods(network, ids, input_ids=inputs), abs=1e-4)
        with torch.no_grad():
            logits = network(torch.tensor([inputs])).logits[0]
        assert [choice.rank for choice in choices] == [
            1 + int((row > row[token]).sum()) for row, token in zip(logits, ids, strict=True)
        ]


def test_the_page_of_next_tokens_escapes_text(decoder_run, tmp_path, capsys):
    page = render_next_tokens(
        "runs/<b>", "left to right", [TokenChoice("<script>", 2, 3.5, [("</td>", 0.5), (" a", 0.25)])]
    )
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "␣a 0.250" in page
    output = tmp_path / "n.html"
    (tmp_path / "t.txt").write_text("a cab bade <b>")
    assert main(["next-tokens", str(decoder_run), "--text", f"@{tmp_path}/t.txt", "--output", str(output)]) == 0
    assert "tokens" in capsys.readouterr().out
    assert "most probable" in output.read_text()
    for text, message in (("@/nowhere", "--text: /nowhere cannot be read"), (" ", "--text: got no text"),
                          ("a cab " * 4000, "text: got")):  # fmt: skip
        assert main(["next-tokens", str(decoder_run), "--text", text, "--output", str(output)]) == 2
        assert message in capsys.readouterr().err


def many_sentences(tmp_path, documents=60):
    draw, words = np.random.default_rng(6), [f"{a}{b}" for a in WORDS[5:] for b in WORDS[5:]]
    shares = np.arange(len(words), 0, -1) / np.arange(len(words), 0, -1).sum()
    texts = [
        {"text": " ".join(" ".join(draw.choice(words, int(draw.integers(5, 30)), p=shares)) + "." for _ in range(12))}
        for _ in range(documents)
    ]
    return read_examples(text_task(LocalPath(write_lines(tmp_path / "t.jsonl", texts))), SPLIT, None)


@pytest.mark.parametrize("name", TEXT_SETS)
def test_a_set_from_texts_has_labels_that_follow_from_its_sentences(tmp_path, name):
    texts = many_sentences(tmp_path)
    sentences = [re.split(r"(?<=\.) ", text) for text in texts.texts[0].to_pylist()]
    of = {sentence: number for number, document in enumerate(sentences) for sentence in document}
    train, test = text_set(name, texts, 100, 0)
    assert len(train) == 100
    assert len(test) >= 20
    used = {}
    for split in (train, test):
        made = split.texts[0].to_pylist()
        for text, label in zip(made, split.labels.tolist(), strict=True):
            shown = split.task.labels[label]
            parts = re.split(r"(?<=\.) ", text)
            if name == "word_content":
                assert shown in text.rstrip(".").split()
                assert len({word for word in text.rstrip(".").split() if word in split.task.labels}) == 1
            elif name == "word_order":
                assert (text in of) == (shown == "kept")
            elif name == "sentence_order":
                row = sentences[of[parts[0]]]
                assert (row.index(parts[0]) < row.index(parts[1])) == (shown == "kept")
            if all(part in of for part in parts):
                used.setdefault(split.split, set()).update(of[part] for part in parts)
    assert not used["train"] & used["test"]
    assert {number % 5 for number in used["test"]} == {0}
    if name == "length":
        sizes = [{len(text.split()) for text, its in zip(train.texts[0].to_pylist(), train.labels, strict=True) if its == label}
                 for label in range(6)]  # fmt: skip
        assert all(max(a) < min(b) for a, b in pairwise(sizes))
        counts = np.bincount(text_set(name, texts, 10_000, 0)[0].labels)
        assert counts.min() > 0.5 * counts.max()


@pytest.mark.parametrize("documents", [60, 1])
def test_only_sentences_that_follow_one_another_are_paired(tmp_path, documents):
    sentences = [f"Here is the sentence with the number {n}." for n in range(600)]
    rows = []
    for row in np.array_split(sentences, documents):
        rows.append(
            {
                "text": " ".join(
                    part for n, each in enumerate(row) for part in ([each, "Short."] if n % 7 == 2 else [each])
                )
            }
        )
    texts = read_examples(text_task(LocalPath(write_lines(tmp_path / "t.jsonl", rows))), SPLIT, None)
    size = 600 // documents
    for split in text_set("sentence_order", texts, 10_000, 0):
        assert len(split) >= 20
        for text, label in zip(split.texts[0].to_pylist(), split.labels.tolist(), strict=True):
            pair = [int(number) for number in re.findall(r"\d+", text)]
            first, second = pair if split.task.labels[label] == "kept" else pair[::-1]
            assert second == first + 1
            assert first // size == second // size  # of one document
            assert first % size % 7 != 2  # else a short sentence stood between them


@pytest.mark.long
def test_the_order_of_words_is_not_in_the_mean_of_their_embeddings(tmp_path, folder):
    pytest.importorskip("sklearn")
    texts = many_sentences(tmp_path)
    found = probe_layers(
        reader_of("gpt2", folder), *text_set("word_order", texts, 300, 0), ["0"], ["linear"], 0, lambda line: None
    )
    assert found[0].accuracy.value == pytest.approx(0.5, abs=0.15)


def test_too_few_sentences_are_refused(tmp_path):
    file = LocalPath(write_lines(tmp_path / "s.jsonl", [{"text": "Too short."}]))
    texts = read_examples(text_task(file), SPLIT, None)
    with pytest.raises(
        UserError, match="text: has 0 examples of length for train, needs 20 or more of two classes; give"
    ):
        text_set("length", texts, 100, 0)
