"""SpanBERT's head, which predicts each token of a span from the states of the two tokens that enclose the
span and from the token's position in it (Joshi et al., 2020, section 3.2).
"""

from typing import Any

import torch

from trainers.objectives.span_boundary import PLACES

_WIDTH = 200
"""The width of the embeddings of places (section 4.2)."""


class BoundaryHead(torch.nn.Module):
    """The layers of SpanBERT's head before the output layer: two linear layers, each followed by GELU and a
    norm.
    """

    def __init__(self, configuration: Any) -> None:
        super().__init__()
        width, deviation = configuration.hidden_size, configuration.initializer_range
        self.places = torch.nn.Embedding(PLACES, _WIDTH)
        self.inner, self.outer = torch.nn.Linear(2 * width + _WIDTH, width), torch.nn.Linear(width, width)
        self.inner_norm, self.outer_norm = (
            torch.nn.LayerNorm(width, eps=configuration.layer_norm_eps) for _ in range(2)
        )
        torch.nn.init.normal_(self.places.weight, std=deviation)
        for layer in (self.inner, self.outer):
            torch.nn.init.normal_(layer.weight, std=deviation)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, outside: Any, places: Any) -> Any:
        """Return a state for each of n tokens, [n, width]. `outside`, [n, 2, width], contains the states of
        the two tokens that enclose each token's span, and `places`, int64 [n], each token's index in its
        span.
        """
        states = torch.cat([outside.flatten(1), self.places(places)], 1)
        states = self.inner_norm(torch.nn.functional.gelu(self.inner(states)))
        return self.outer_norm(torch.nn.functional.gelu(self.outer(states)))
