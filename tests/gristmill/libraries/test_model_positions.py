"""How many tokens a model of `transformers` can read."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModel

from gristmill.libraries.model_positions import most_tokens

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 20,
    "pad_token_id": 3,
}
OPTIONS = {
    "esm": {"position_embedding_type": "absolute", "mask_token_id": 4},
    "longformer": {"attention_window": [4]},
    "xmod": {"default_language": "en_XX"},
}
PLAIN = ("albert", "bert", "canine", "deberta-v2", "distilbert", "electra")
AFTER_PADDING = (
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "longformer",
    "luke",
    "markuplm",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PLAIN + AFTER_PADDING)
def test_the_longest_input_is_what_the_model_reads(name):
    config = AutoConfig.for_model(name, **SIZES, **OPTIONS.get(name, {}))
    model, most = AutoModel.from_config(config).eval(), most_tokens(config)
    with torch.no_grad():
        model(torch.full((1, most), 7))
        with pytest.raises((IndexError, RuntimeError, ValueError)):
            model(torch.full((1, most + 1), 7))


@pytest.mark.parametrize("positions", [{"max_position_embeddings": -1}, {"max_position_embeddings": None}, {}])
def test_a_model_without_a_limit(positions):
    assert most_tokens(SimpleNamespace(model_type="t5", **positions)) is None


def test_xlnet_has_no_limit():
    assert most_tokens(AutoConfig.for_model("xlnet")) is None
