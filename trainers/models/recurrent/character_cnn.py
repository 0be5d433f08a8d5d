"""Vectors of tokens from their characters: a convolution, highway layers and a projection, as in ELMo (Peters
et al. 2018; Kim et al. 2016; Jozefowicz et al. 2016).

    token       r   e   d               at most 48 bytes, or 50 with its marks
    characters  <w> r   e   d   </w>    16 numbers each, then padding
    filters     of 1 to 7 characters; the maximum over all places, ReLU
    highways    g * relu(W x + b) + (1 - g) * x, g = sigmoid(V x + c)
    projection  to the width of the model

Sizes and initial weights are those of the authors' code (allenai/bilm-tf, bilm/training.py and bilm/data.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tokenizer.vocabulary.specials import CLS, SEP
from trainers.objectives.shared.spellings import numbered_spellings

LENGTH = 50
"""The number of characters of a token, including the marks of its beginning and its end, and padding."""
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)
"""Characters in addition to the 256 bytes. The first two stand for whole tokens."""
CHARACTERS, WIDTH = 261, 16
SHARES = (1, 1, 2, 4, 8, 16, 32)
"""How many of 64 filters are 1, 2, 3 ... characters wide (32, 32, 64, 128, 256, 512 and 1,024 of 2,048 as published)."""


def character_table(spelled: Sequence[bytes], others: Mapping[int, Sequence[int]]) -> Any:
    """Return the characters of every token, int16 [tokens, LENGTH]: WORD_BEGIN, at most LENGTH - 2
    characters, WORD_END, then PADDING. The characters of token i are `others[i]` if `others` has it, and
    otherwise the bytes `spelled[i]`.
    """
    table = np.full((len(spelled), LENGTH), PADDING, dtype=np.int16)
    for number, text in enumerate(spelled):
        whole = [WORD_BEGIN, *others.get(number, text)[: LENGTH - 2], WORD_END]
        table[number, : len(whole)] = whole
    return torch.from_numpy(table)


class Highway(torch.nn.Module):
    """A highway layer (Srivastava et al., 2015)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.transform = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def forward(self, states: Any) -> Any:
        """Return the layer's output for states [n, width], in the same shape."""
        gate = self.gate(states).sigmoid()
        return gate * self.transform(states).relu() + (1 - gate) * states


class CharacterCnn(torch.nn.Module):
    """Computes the vectors of tokens from their characters with convolutions and highway layers, in place of
    a table of embeddings.
    """

    def __init__(self, vocabulary: int, width: int, filters: int, highways: int) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(CHARACTERS, WIDTH)
        sizes = [filters * share // sum(SHARES) for share in SHARES]
        self.filters = torch.nn.ModuleList(torch.nn.Conv1d(WIDTH, n, k) for k, n in enumerate(sizes, start=1))
        self.highways = torch.nn.ModuleList(Highway(filters) for _ in range(highways))
        self.projection = torch.nn.Linear(filters, width)
        self.register_buffer("table", torch.empty(vocabulary, LENGTH, dtype=torch.int16), persistent=False)
        self.spell(numbered_spellings(vocabulary), {})

    @property
    def repeats(self) -> int:
        """The number of multiplications per token that a count of the parameters misses. A filter of width k
        is applied at LENGTH - k + 1 places, but its weights are counted only once.
        """
        return sum(each.weight.numel() * (LENGTH - each.kernel_size[0]) for each in self.filters)

    def forward(self, ids: Any) -> Any:
        """Return the vectors [..., width] of the tokens `ids`, int64 [...]."""
        # On `meta`, tensors have no values.
        distinct, places = (ids.flatten(), None) if ids.is_meta else ids.unique(return_inverse=True)
        characters = self.embed(self.table[distinct].long()).transpose(1, 2)
        states = torch.cat([each(characters).amax(2).relu() for each in self.filters], dim=1)
        for highway in self.highways:
            states = highway(states)
        states = self.projection(states)
        return states.view(*ids.shape, -1) if places is None else states[places]

    def spell(self, spelled: Sequence[bytes], specials: Mapping[str, int]) -> None:
        """Set the characters of ids 0 to len(spelled) - 1: SENTENCE_BEGIN for `<cls>`, SENTENCE_END for
        `<sep>`, the bytes of the name for any other special token, and the bytes `spelled[i]` for any other
        id i. `specials` maps the names of special tokens to their ids.
        """
        if self.table.is_meta:
            return
        others: dict[int, Sequence[int]] = {number: name.encode() for name, number in specials.items()}
        ends = ((CLS, SENTENCE_BEGIN), (SEP, SENTENCE_END))
        others |= {specials[name]: [character] for name, character in ends if name in specials}
        self.table[: len(spelled)] = character_table(spelled, others)

    def initialise(self) -> None:
        """Initialise the weights as the authors' code does (allenai/bilm-tf, bilm/training.py)."""
        torch.nn.init.uniform_(self.embed.weight, -1, 1)
        for each in self.filters:
            torch.nn.init.uniform_(each.weight, -0.05, 0.05)
            torch.nn.init.zeros_(each.bias)
        gates = [highway.gate for highway in self.highways]
        for layer in (*gates, *(highway.transform for highway in self.highways), self.projection):
            torch.nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
            torch.nn.init.constant_(layer.bias, -2.0 if any(layer is gate for gate in gates) else 0.0)
