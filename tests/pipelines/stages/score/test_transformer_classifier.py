"""The transformer classifier, compared with the library run on one document at a time. The models are tiny
and random, and nothing is downloaded.
"""

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import UserError
from pipelines.stages.score.transformer_classifier import TransformerClassifier

TEXTS = ["a mill by the river", "grain " * 45, "stone", "", "the wheel turns " * 300, "unknown wörds", "a b c " * 9]


def save_model(folder: Path, **config) -> Path:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *["a", "b", "c", "mill", "by", "the", "river", "grain", "stone", "wheel", "turns"],
    ]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(3)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    values = BertConfig(vocab_size=len(words), max_position_embeddings=128, initializer_range=0.5, **shape, **config)
    BertForSequenceClassification(values).save_pretrained(folder)
    return folder


def save_roberta(folder: Path) -> Path:
    """Save a model with 34 positions, of which RoBERTa does not use that of the padding."""
    import json

    from transformers import RobertaConfig, RobertaForSequenceClassification

    save_model(folder)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    labels = {"id2label": {0: "0", 1: "1"}}
    config = RobertaConfig(vocab_size=15, max_position_embeddings=34, pad_token_id=0, **shape, **labels)
    RobertaForSequenceClassification(config).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "roberta"
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"), id2label={0: "poor", 1: "fair", 2: "good"})


def table(texts):
    ids = pa.array([row.to_bytes(16) for row in range(len(texts))], pa.binary(16))
    return pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})


def alone(folder, texts, max_tokens=100):
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        encoded = [tokenizer(text, truncation=True, max_length=max_tokens, return_tensors="pt") for text in texts]
        return [model(input_ids=e["input_ids"], attention_mask=e["attention_mask"]).logits[0] for e in encoded]


def stage_of(folder, **knobs):
    stage = TransformerClassifier(model=str(folder), **{"max_tokens": 100, "batch": 4, **knobs})
    stage.check()
    stage.setup()
    return stage


def test_scores_are_those_of_the_library(model):
    stage = stage_of(model, label="good", column="grade")
    result = stage.annotate(table(TEXTS))
    assert result.schema == stage.writes()
    expected = [float(logits.softmax(-1)[2]) for logits in alone(model, TEXTS)]
    assert result["grade"].to_pylist() == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 4) for score in expected}) > 3
    assert stage.annotate(table([])).num_rows == 0


def test_a_score_does_not_depend_on_neighbouring_documents(model):
    stage = stage_of(model, label="good")
    texts = [f"{text} {'abc'[i % 3]} {'mill ' * (i % 7)}" for i, text in enumerate(TEXTS * 4)]
    whole = stage.annotate(table(texts))["transformer_score"].to_pylist()
    assert stage.annotate(table(texts[::-1]))["transformer_score"].to_pylist() == whole[::-1]
    apart = [stage.annotate(table([text]))["transformer_score"][0].as_py() for text in texts]
    assert apart == whole


def test_a_single_output_is_a_number_and_many_labels_are_judged_each(tmp_path):
    number = save_model(tmp_path / "number", num_labels=1)
    grades = stage_of(number).annotate(table(TEXTS))["transformer_score"].to_pylist()
    assert grades == pytest.approx([float(logits[0]) for logits in alone(number, TEXTS)], abs=1e-5)
    many = save_model(tmp_path / "many", id2label={0: "x", 1: "y"}, problem_type="multi_label_classification")
    scores = stage_of(many, label="y").annotate(table(TEXTS))["transformer_score"].to_pylist()
    assert scores == pytest.approx([float(logits.sigmoid()[1]) for logits in alone(many, TEXTS)], abs=1e-5)


def test_what_its_output_depends_on(model):
    on_cpu, on_gpu = TransformerClassifier(str(model)), TransformerClassifier(str(model), num_gpus=0.5)
    assert set(on_cpu.depends()) == {"torch", "transformers", "device", "model xxh3_128"}
    assert (on_cpu.depends()["device"], on_gpu.depends()["device"]) == ("cpu", "cuda")
    assert (on_cpu.gpus(), on_gpu.gpus()) == (0, 0.5)


def test_models_that_do_not_fit_are_errors(model, tmp_path):
    import shutil

    with pytest.raises(UserError, match="label: got 'best', the model has 3: poor, fair, good"):
        TransformerClassifier(str(model), label="best", max_tokens=64).setup()
    with pytest.raises(UserError, match="max_tokens is 512, the model has positions for 128"):
        TransformerClassifier(str(model), label="good").setup()
    with pytest.raises(UserError, match="max_tokens is 34, the model has positions for 33"):
        TransformerClassifier(str(save_roberta(tmp_path / "roberta")), label="1", max_tokens=34).setup()
    stage = stage_of(tmp_path / "roberta", label="1", max_tokens=33)
    assert stage.annotate(table(["a " * 100])).num_rows == 1
    copy = shutil.copytree(model, tmp_path / "copy")
    stage = TransformerClassifier(str(copy), label="good", max_tokens=64)
    stage.depends()
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"its checksum is .*, the build was planned with"):
        pickle.loads(pickle.dumps(stage)).setup()
    with pytest.raises(UserError, match="copy: does not load"):
        TransformerClassifier(str(copy), label="good", max_tokens=64).setup()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"model": "nowhere"}, "model: got 'nowhere', expected a directory with config.json and model.safetensors"),
        ({"max_tokens": 0}, "max_tokens: got 0"),
        ({"num_gpus": -1}, "num_gpus: got -1"),
        ({"column": "a-b"}, "column: got 'a-b'"),
        ({"text": "url"}, "text: got 'url'"),
    ],
)
def test_knobs_out_of_range(knobs, message, model):
    with pytest.raises(UserError, match=message):
        parse(TransformerClassifier, {"model": str(model), **knobs}, where="corpus.yaml")


@pytest.mark.gpu
def test_a_gpu_gives_the_scores_of_a_cpu(model):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU here")
    cpu = stage_of(model, label="good").annotate(table(TEXTS))["transformer_score"].to_pylist()
    gpu = stage_of(model, label="good", num_gpus=1).annotate(table(TEXTS))["transformer_score"].to_pylist()
    assert gpu == pytest.approx(cpu, abs=1e-3)
