"""Models in Hugging Face format: their sizes, their tensors, and models that are refused."""

import json
from dataclasses import replace

import pytest
import torch

from gristmill.errors import UserError
from tests.trainers.engine.heads.task_batches import tiny
from tokenizer.vocabulary.specials import SPECIAL_IDS
from trainers.config.architecture import fill
from trainers.engine.assembly import attach_head
from trainers.models import MODELS, build_model, stack_parameters
from trainers.recipes import RECIPES
from trainers.runs.published_model import model_of, published_head, published_weights

SIZES = {
    **{name: tiny(name, layers=2, dropout=0.1) for name in MODELS if name != "llama"},
    "llama": tiny("llama", layers=2, key_value_heads=2, rope_base=500000.0, norm_epsilon=1e-5, tied=False),
    "deberta_v2": tiny("deberta_v2", layers=2, position_buckets=32, convolution=True),
    "modernbert": tiny("modernbert", layers=4, rope_base=160000.0),
    "gpt2": tiny("gpt2", layers=2, tied=False),
    "gru": tiny("gru", layers=2, embedding_size=16),
    "t5 1.1": tiny("t5", layers=2, decoder_layers=3, head_width=16, gated=True, tied=False),
    "bart": tiny("bart", layers=2, decoder_layers=3),
}
# Stock classes that a base may have been saved from, and the layers of a head that it has.
SAVED = {
    "BertModel": ("bert", "dense"),
    "BertForPreTraining": ("bert", "dense"),
    "BertForMaskedLM": ("bert", ""),
    "BertForSequenceClassification": ("bert", "dense output"),
    "BertForQuestionAnswering": ("bert", ""),
    "RobertaModel": ("roberta", ""),
    "RobertaForSequenceClassification": ("roberta", "dense output"),
    "DebertaModel": ("deberta", ""),
    "DebertaForSequenceClassification": ("deberta", "dense output"),
    "DebertaV2Model": ("deberta_v2", ""),
    "DebertaV2ForSequenceClassification": ("deberta_v2", "dense output"),
    "CanineModel": ("canine", "dense"),
    "CanineForSequenceClassification": ("canine", "dense output"),
    "XLNetModel": ("xlnet", ""),
    "XLNetForSequenceClassification": ("xlnet", "dense output"),
    "ModernBertForSequenceClassification": ("modernbert", "dense norm output"),
    "ModernBertForMaskedLM": ("modernbert", "dense norm"),
    "OpenAIGPTModel": ("gpt", ""),
    "GPT2Model": ("gpt2", ""),
    "GPT2ForTokenClassification": ("gpt2", ""),
    "LlamaForSequenceClassification": ("llama", "output"),
    "LlamaForQuestionAnswering": ("llama", ""),
    "T5Model": ("t5", ""),
    "T5ForConditionalGeneration": ("t5", ""),
    "T5ForSequenceClassification": ("t5 1.1", "dense output"),
    "BartModel": ("bart", ""),
    "BartForSequenceClassification": ("bart", "dense output"),
}


def write(directory, name, **changes):
    configuration = MODELS[SIZES[name].architecture].configuration(SIZES[name], SPECIAL_IDS).to_dict()
    (directory / "config.json").write_text(json.dumps({**configuration, **changes}))
    return directory


@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_read_back_from_a_configuration(name, tmp_path):
    found = model_of(write(tmp_path, name), SPECIAL_IDS)
    expected = SIZES[name]
    if expected.architecture in ("t5", "xlnet"):  # their configurations do not say how long rows are
        expected = replace(expected, positions=512)
    assert found == expected


def test_the_published_sizes_are_those_of_the_recipes(tmp_path):
    """The configurations are abridged from the published ones."""
    published = {
        "bert_base": {
            "model_type": "bert",
            "hidden_act": "gelu",
            "position_embedding_type": "absolute",
            "type_vocab_size": 2,
            "layer_norm_eps": 1e-12,
            "gradient_checkpointing": False,
        },
        "roberta_base": {
            "model_type": "roberta",
            "vocab_size": 50265,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
            "pad_token_id": 1,
        },
        "deberta_base": {
            "model_type": "deberta",
            "hidden_act": "gelu",
            "relative_attention": True,
            "pos_att_type": "c2p|p2c",
            "max_relative_positions": -1,
            "position_biased_input": False,
            "type_vocab_size": 0,
            "layer_norm_eps": 1e-7,
            "padding_idx": 0,
            "vocab_size": 50265,
        },
        "gpt2_small": {
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_positions": 1024,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "vocab_size": 50257,
        },
        "gpt": {
            "model_type": "openai-gpt",
            "afn": "gelu",
            "n_ctx": 512,
            "predict_special_tokens": True,
            "vocab_size": 40478,
        },
        "t5_base": {
            "model_type": "t5",
            "d_model": 768,
            "d_ff": 3072,
            "d_kv": 64,
            "num_heads": 12,
            "num_layers": 12,
            "n_positions": 512,
            "vocab_size": 32128,
            "relative_attention_num_buckets": 32,
        },
        "t5_v1_1_base": {
            "model_type": "t5",
            "d_model": 768,
            "d_ff": 2048,
            "d_kv": 64,
            "num_heads": 12,
            "num_layers": 12,
            "num_decoder_layers": 12,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "vocab_size": 32128,
        },
        "bart_base": {
            "model_type": "bart",
            "d_model": 768,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 12,
            "decoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "decoder_ffn_dim": 3072,
            "max_position_embeddings": 1024,
            "attention_dropout": 0.1,
            "scale_embedding": False,
        },
        "modernbert_base": {
            "model_type": "modernbert",
            "global_rope_theta": 160000.0,
            "local_rope_theta": 10000.0,
            "local_attention": 128,
            "global_attn_every_n_layers": 3,
            "vocab_size": 50368,
            "layer_norm_eps": 1e-5,
            "classifier_pooling": "mean",
        },
    }
    for recipe, written in published.items():
        (tmp_path / "config.json").write_text(json.dumps(written))
        found, expected = model_of(tmp_path, SPECIAL_IDS), RECIPES[recipe]().model
        for field in ("architecture", "layers", "width", "heads", "gated", "tied", "norm_epsilon"):
            assert getattr(found, field) == getattr(expected, field), (recipe, field)
        assert found.feed_forward == fill(expected, 1000).feed_forward, recipe


@pytest.mark.parametrize(("name", "stock"), [("deberta", "DebertaForMaskedLM"), ("deberta_v2", "DebertaV2ForMaskedLM")])
def test_the_output_layer_of_debertas_authors_is_read(name, stock, tmp_path):
    """`transformers` uses the authors' parameter names if the configuration has `legacy: false`, a field that
    published configurations lack.
    """
    import transformers

    configuration = MODELS[name].configuration(SIZES[name], SPECIAL_IDS)
    configuration.legacy = False
    published = getattr(transformers, stock)(configuration).eval()
    with torch.no_grad():
        for parameter in published.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    published.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    del written["legacy"]
    (tmp_path / "config.json").write_text(json.dumps(written))
    weights, absent = published_weights(tmp_path, model_of(tmp_path, SPECIAL_IDS))
    assert not absent
    ours = build_model(SIZES[name], SPECIAL_IDS, 0).eval()
    with torch.no_grad():
        for key, parameter in ours.named_parameters():
            parameter.copy_(weights[key])
        ids = torch.arange(20)[None]
        torch.testing.assert_close(ours(ids).logits, published(ids).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("stock", SAVED)
def test_tensors_come_from_a_model_with_any_head_or_none(stock, tmp_path):
    import transformers

    name, layers = SAVED[stock]
    model = SIZES[name]
    saved = getattr(transformers, stock)(MODELS[model.architecture].configuration(model, SPECIAL_IDS))
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter += 0.1 * torch.randn(parameter.shape)
    saved.half().save_pretrained(tmp_path)
    weights, absent = published_weights(tmp_path, model_of(tmp_path, SPECIAL_IDS))
    ours = build_model(model, SPECIAL_IDS, 0)
    shapes = {name: parameter.shape for name, parameter in ours.named_parameters()}
    used = stack_parameters(ours, model)
    assert used <= set(weights)
    assert not set(absent) & (used | set(weights))
    assert all(weights[name].shape == shapes[name] and weights[name].dtype == torch.float32 for name in used)
    stack = saved.get_encoder() if model.decoder_layers else saved.base_model
    values = sorted(parameter.float().sum().item() for parameter in stack.parameters())
    known = {round(value, 3) for value in values}
    assert known >= {round(weights[n].sum().item(), 3) for n in used if "decoder" not in n and "shared" not in n}
    head = published_head(tmp_path, MODELS[model.architecture].heads["classify"])
    assert {key.split(".")[1] for key in head} == set(layers.split())
    attach_head(ours, model, "classify", 2, 0, weights=head)
    parameters = dict(ours.named_parameters())
    for key, tensor in head.items():  # the outputs of another task are not this task's
        assert torch.equal(parameters[key], tensor) == ("output" not in key)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bert", {"hidden_act": "relu"}, "init.path: hidden_act: .*config.json has 'relu', this run's model 'gelu'"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type: .* has 'relative_key'"),
        ("bert", {"is_decoder": True}, "init.path: is_decoder: .* has True"),
        ("bert", {"hidden_size": 33}, "heads: got 4, which does not divide width 33; use another base"),
        ("bert", {"hidden_size": "x"}, "config.json cannot be read .*hidden_size"),
        ("roberta", {"layer_norm_eps": 1e-12}, "layer_norm_eps: .* has 1e-12, this run's model 1e-05"),
        ("llama", {"attention_bias": True}, "attention_bias: .* has True"),
        ("llama", {"sliding_window": 128}, "sliding_window: .* has 128, this run's model None"),
        ("llama", {"head_dim": 16}, "head_dim: .* has 16, this run's model 8"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "scales its rotary positions",
        ),
        (
            "llama",
            {"model_type": "mistral"},
            "has model_type 'mistral', allowed albert, awd_lstm, bart, bert, canine, deberta, deberta-v2, electra, elmo, gpt2, "
            "gru, llama, modernbert, openai-gpt, roberta, t5, xlnet",
        ),
        ("modernbert", {"local_attention": 64}, "local_attention: .* has 64"),
        (
            "modernbert",
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
                }
            },
            "local_rope_theta: got 20000.0, allowed 10000.0",
        ),
        ("t5", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj: .* has 'gated-silu'"),
        ("t5", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets: .* has 16"),
        ("bart", {"decoder_attention_heads": 2}, "decoder_attention_heads: .* has 2"),
        ("bart", {"scale_embedding": True}, "scale_embedding: .* has True"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: .* has True"),
        ("deberta", {"legacy": False}, "legacy: got False, allowed True"),
        ("deberta", {"max_relative_positions": 5}, "max_relative_positions: got 5, allowed -1"),
        ("deberta", {"pos_att_type": ["c2p"]}, r"pos_att_type: got \['c2p'\], allowed"),
        ("deberta", {"talking_head": True}, "talking_head: got True, allowed False"),
        ("deberta_v2", {"share_att_key": False}, "share_att_key: got False, allowed True"),
        ("deberta_v2", {"pos_att_type": ["c2p"]}, r"pos_att_type: got \['c2p'\], allowed"),
        ("deberta_v2", {"attention_head_size": 16}, "attention_head_size: got 16, allowed 8"),
        ("deberta_v2", {"position_buckets": -1}, "position_buckets: got -1, allowed 4 or more"),
        ("deberta_v2", {"conv_kernel_size": 5}, "conv_kernel_size: got 5, allowed 0 and 3"),
        ("canine", {"num_hash_functions": 4}, "num_hash_functions: got 4, allowed 8"),
        ("canine", {"num_hash_buckets": 99}, "num_hash_buckets: got 99, allowed 64"),
        ("xlnet", {"bi_data": True}, "bi_data: got True, allowed False"),
        ("xlnet", {"ff_activation": "relu"}, "ff_activation: .* has 'relu'"),
        ("gpt", {"afn": "relu"}, "afn: .* has 'relu'"),
    ],
)
def test_what_our_models_cannot_express_is_refused_by_name(name, changes, message, tmp_path):
    with pytest.raises(UserError, match=message) as refused:
        model_of(write(tmp_path, name, **changes), SPECIAL_IDS)
    assert "\n" not in str(refused.value)


def test_damaged_and_pickled_directories_are_one_line(tmp_path):
    model = SIZES["bert"]
    saved = build_model(model, SPECIAL_IDS, 0)
    saved.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    content, config = weights.read_bytes(), (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(json.dumps({**json.loads(config), "intermediate_size": 96}))
    with pytest.raises(UserError, match=r"tensor .*: .* has \[\d+.*\], its config.json requires \[.*96.*\]; copy"):
        published_weights(tmp_path, model)
    (tmp_path / "config.json").write_text(config)
    weights.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"the tensors of .* cannot be read"):
        published_weights(tmp_path, model)
    weights.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"has no model.safetensors; other formats are not read"):
        published_weights(tmp_path, model)
    for index in ("{", "{}", "[]", '{"weight_map": []}'):
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(UserError, match=r"index.json: is not an index of weight files; fetch the model again"):
            published_weights(tmp_path, model)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config.json cannot be read"):
        model_of(tmp_path, SPECIAL_IDS)


def test_a_directory_without_a_tensor_of_the_stacks_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    model = SIZES["roberta"]
    build_model(model, SPECIAL_IDS, 0).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["roberta.encoder.layer.1.output.dense.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"has no tensor roberta.encoder.layer.1.output.dense.weight \(1 are missing\)"):
        published_weights(tmp_path, model)
