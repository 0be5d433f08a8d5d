"""How many tokens a model of `transformers` can read."""

from types import SimpleNamespace

import pytest

from gristmill.libraries.model_positions import most_tokens


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514}, 512),
        ({"model_type": "xlnet", "max_position_embeddings": -1}, None),
        ({"model_type": "t5"}, None),
    ],
)
def test_the_longest_input_of_a_model(config, most):
    assert most_tokens(SimpleNamespace(**config)) == most
