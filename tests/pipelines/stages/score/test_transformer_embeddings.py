"""Embeddings, compared with the library run on one document at a time. The encoders are small and random, and
nothing is downloaded.
"""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest

from gristmill.config import parse
from gristmill.errors import ConfigError, UserError
from pipelines.stages.score.transformer_embeddings import TransformerEmbeddings
from tests.pipelines.stages.score.small_encoder import save_encoder

TEXTS = ["milla stono", "graina " * 45, "sacka", "wheela milla " * 300, "unknown wörds", "millo stona", "[PAD] winda"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_encoder(tmp_path_factory.mktemp("encoder"))


def table(texts):
    return pa.table({"text": pa.array(texts, pa.large_string())})


def embed(folder, texts, **knobs):
    stage = TransformerEmbeddings(model=str(folder), **{"max_tokens": 64, "batch": 4, **knobs})
    stage.check()
    stage.setup()
    result = stage.annotate(table(texts))
    assert result.schema == stage.writes() == pa.schema([("embedding", pa.list_(pa.float16(), 32))])
    return result["embedding"].to_pylist()


def alone(folder, texts, pool):
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        encoded = [tokenizer(text, truncation=True, max_length=64, return_tensors="pt") for text in texts]
        hidden = [model(input_ids=e["input_ids"]).last_hidden_state[0] for e in encoded]
    pooled = [pool(each).numpy() for each in hidden]
    return np.array([each / np.linalg.norm(each) for each in pooled])


def mean(hidden):
    return hidden.mean(0)


@pytest.mark.parametrize(("pooling", "pool"), [("model", mean), ("mean", mean), ("cls", lambda hidden: hidden[0])])
def test_vectors_are_those_of_the_library(model, pooling, pool):
    found = np.array(embed(model, TEXTS, pooling=pooling), np.float32)
    assert found == pytest.approx(alone(model, TEXTS, pool), abs=1e-3)
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-3)
    cosines = found @ found.T
    assert pooling == "cls" or cosines[0, 5] > 0.99 > 0.9 > cosines[0, 2]  # synonyms, and other words


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "include_prompt": False}, "cls"),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode": "cls", "include_prompt": True}, "cls"),
    ],
)
def test_pooling_is_that_of_sentence_transformers(model, tmp_path, given, expected):
    folder = shutil.copytree(model, tmp_path / "encoder")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(given))
    names = ("sentence_transformers.models.Transformer", "sentence_transformers.models.Pooling")
    (folder / "modules.json").write_text(json.dumps([{"type": name} for name in names]))
    assert embed(folder, TEXTS) == embed(model, TEXTS, pooling=expected)


def test_a_vector_does_not_depend_on_neighbouring_documents(model):
    texts = [f"{text} {'milla ' * (i % 7)}" for i, text in enumerate(TEXTS * 4)]
    whole = embed(model, texts)
    assert embed(model, texts[::-1]) == whole[::-1]
    assert [embed(model, [text])[0] for text in texts[:9]] == whole[:9]


def test_documents_without_visible_text_have_no_vector(model):
    found = embed(model, [None, "milla", "", " \n\t", "stona"])
    assert [each is None for each in found] == [True, False, True, True, False]
    assert [found[1], found[4]] == embed(model, ["milla", "stona"])
    assert embed(model, [None, ""]) == [None, None]
    assert embed(model, []) == []


def test_a_prompt_stands_before_every_text(model):
    prompted = embed(model, ["milla stona"], prompt="graina: ")
    assert prompted == embed(model, ["graina: milla stona"]) != embed(model, ["milla stona"])


def damaged(model, tmp_path, name, content):
    folder = shutil.copytree(model, tmp_path / "encoder")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "[1]", "config.json: expected a JSON object"),
        ("config.json", "{}", "expected the width as one of hidden_size, dim, d_model, n_embd"),
        ("config.json", '{"d_model": 4, "is_encoder_decoder": true}', "an encoder-decoder, expected an encoder"),
        ("modules.json", "{}x", "modules.json: is not the modules.json of sentence-transformers"),
        ("modules.json", '[{"type": "a.models.Dense"}]', "has a module Dense, which is not computed here"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_lasttoken": true}',
            "pools by pooling_mode_lasttoken, expected mean or cls",
        ),
        ("1_Pooling/config.json", '{"pooling_mode": "max"}', "pools by max, expected mean or cls"),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}',
            "pools by cls, mean",
        ),
    ],
)
def test_files_of_a_model_that_do_not_fit(model, tmp_path, name, content, message):
    folder = damaged(model, tmp_path, name, content)
    with pytest.raises(ConfigError, match=message):
        parse(TransformerEmbeddings, {"model": str(folder)}, where="corpus.yaml")


def test_a_missing_model_and_a_pickle_are_refused(model, tmp_path):
    with pytest.raises(
        ConfigError, match=r"got 'nowhere', expected a directory with config.json and model.safetensors"
    ):
        parse(TransformerEmbeddings, {"model": "nowhere"}, where="corpus.yaml")
    folder = shutil.copytree(model, tmp_path / "encoder")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model.bin is a pickle, which is not read"):
        parse(TransformerEmbeddings, {"model": str(folder)}, where="corpus.yaml")


def test_models_that_do_not_load_or_give_no_numbers(model, tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    config = json.loads((model / "config.json").read_text())
    with pytest.raises(UserError, match=r"encoder: does not load \("):
        embed(damaged(model, tmp_path, "config.json", json.dumps(config | {"hidden_size": 34})), ["milla"])
    weights = load_file(model / "model.safetensors")

    def changed(name, weights):
        folder = shutil.copytree(model, tmp_path / name)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder

    key = "encoder.layer.0.output.dense.bias"
    with pytest.raises(UserError, match=f"lacks 1 weights of the model, such as {key}"):
        embed(changed("lacking", {name: each for name, each in weights.items() if name != key}), ["milla"])
    without = changed("without", {name: each for name, each in weights.items() if not name.startswith("pooler.")})
    assert embed(without, ["milla"]) == embed(model, ["milla"])
    broken = weights | {key: torch.full_like(weights[key], float("nan"))}
    with pytest.raises(UserError, match="vectors of length 0 or without a finite length"):
        embed(changed("broken", broken), ["milla"])
