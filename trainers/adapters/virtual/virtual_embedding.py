"""Virtual tokens as an extension of the embedding table: a module computes the embeddings of the ids beyond
the table's last row.
"""

from itertools import pairwise
from types import MethodType
from typing import Any

import torch


class PromptRows(torch.nn.Module):
    """The embeddings of virtual tokens as parameters, [tokens, width]."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding.from_pretrained(rows, freeze=False)

    def forward(self) -> Any:
        """Return the embeddings, [tokens, width]."""
        return self.rows(torch.arange(self.rows.num_embeddings, device=self.rows.weight.device))


class EncodedRows(torch.nn.Module):
    """The embeddings of virtual tokens, [tokens, width], computed from trained embeddings by a bidirectional
    LSTM and an MLP, or by an MLP alone (Liu et al., 2021, section 3.2).
    """

    def __init__(self, rows: Any, encoder: str, hidden: int) -> None:
        super().__init__()
        width = rows.shape[1]
        self.prompt = PromptRows(rows)
        if encoder == "lstm":
            self.lstm = torch.nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
            sizes: tuple[int, ...] = (2 * hidden, 2 * hidden, width)
        else:
            self.lstm, sizes = None, (width, hidden, hidden, width)
        layers: list[Any] = []
        for inner, outer in pairwise(sizes):
            layers += [torch.nn.Linear(inner, outer), torch.nn.ReLU()]
        self.mlp = torch.nn.Sequential(*layers[:-1])

    def forward(self) -> Any:
        """Return the embeddings, [tokens, width]."""
        rows = self.prompt()
        return self.mlp(rows if self.lstm is None else self.lstm(rows[None])[0][0])


class TaskRows(torch.nn.Module):
    """The embeddings of the virtual tokens of several tasks, [tasks x tokens, width]: shared embeddings,
    multiplied elementwise by a low-rank matrix per task (Wang et al., 2023, section 3.1).
    """

    def __init__(self, rows: Any, tasks: int, rank: int) -> None:
        super().__init__()
        tokens, width = rows.shape
        self.prompt = PromptRows(rows)
        # The product for each task is near 1 at first.
        self.columns = torch.nn.Parameter((1 + 0.02 * torch.randn(tasks, tokens, rank)) / rank)
        self.task_rows = torch.nn.Parameter(1 + 0.02 * torch.randn(tasks, rank, width))
        for factor in (self.columns, self.task_rows):
            factor.undecayed = True

    def forward(self) -> Any:
        """Return the embeddings of all tasks, one task after another, [tasks x tokens, width]."""
        return (self.prompt() * (self.columns @ self.task_rows)).flatten(0, 1)


def add_virtual_tokens(table: Any, virtual: Any) -> None:
    """Make an embedding layer take the embeddings of ids beyond its last row from the module `virtual`. If
    the layer scales its embeddings, as in BART, those of virtual tokens are not scaled.
    """
    table.virtual = virtual
    table.forward = MethodType(_look_up, table)


def _look_up(table: Any, ids: Any) -> Any:
    first = table.num_embeddings
    words = type(table).forward(table, ids.clamp(max=first - 1))
    rows = table.virtual()
    # In fp32, because the gradient of a row is summed over all its occurrences.
    virtual = rows.float()[(ids - first).clamp(min=0)].to(words.dtype)
    return torch.where((ids >= first)[..., None], virtual, words)


def first_rows(table: Any, tokens: int, init: str, ids: list[int]) -> Any:
    """Return the initial embeddings of a prompt, fp32 [tokens, width] (Lester et al., 2021, section 3.2).

    `init` is `random` (uniform numbers from -0.5 to 0.5), `vocabulary` (rows drawn at random from the table)
    or `text` (the rows of `ids`, repeated or cut to `tokens` rows).
    """
    weight = table.weight.detach().float()
    if init == "random":
        return torch.rand(tokens, weight.shape[1]) - 0.5
    if init == "vocabulary":
        return weight[torch.randint(0, len(weight), (tokens,))].clone()
    return weight[torch.tensor(ids).repeat(-(-tokens // len(ids)))[:tokens]].clone()
