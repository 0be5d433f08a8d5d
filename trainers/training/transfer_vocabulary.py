"""Initialise a model from a parent with a different vocabulary: fast vocabulary transfer (Gee et al., 2022,
Fast Vocabulary Transfer for Language Model Compression).

In each table with a row per token, such as the embeddings, a token that the parent also has keeps the
parent's row. For a new token, the parent's tokenizer splits the token's text, and the new row is the mean of
the rows of the pieces. A special token that the parent lacks gets the mean of all rows of the parent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from tokenizer.vocabulary.definition import Definition, load_within_text
from tokenizer.vocabulary.specials import CLS, SEP
from trainers.config.architecture import Family, Model

_MORE = 64  # tokens that are added to find the parameters whose shape depends on their number


def transfer_vocabulary(
    weights: Mapping[str, Any], model: Model, specials: dict[str, int], theirs: Definition, ours: Definition
) -> dict[str, Any]:
    """Return the parent's `weights`, {parameter name: tensor}, adapted to the resolved `model`: tables with a
    row per token are rewritten from the parent's vocabulary `theirs` to the vocabulary `ours`.
    """
    rows = parent_rows(theirs, ours, model.family)
    assert model.vocab_size is not None
    tables = vocabulary_tables(model, specials)
    return {
        name: _rewrite(weight, rows, theirs.vocab_size, model.vocab_size) if name in tables else weight
        for name, weight in weights.items()
    }


def vocabulary_tables(model: Model, specials: dict[str, int]) -> frozenset[str]:
    """Return the names of the parameters that have a row for each token."""
    import torch

    from trainers.models import build_model

    assert model.vocab_size is not None
    shapes = []
    for size in (model.vocab_size, model.vocab_size + _MORE):
        with torch.device("meta"):
            network = build_model(replace(model, vocab_size=size), specials, 0)
        shapes.append({name: tuple(parameter.shape) for name, parameter in network.named_parameters()})
    return frozenset(name for name, shape in shapes[0].items() if shapes[1][name] != shape)


def parent_rows(theirs: Definition, ours: Definition, family: Family) -> list[list[int]]:
    """Return a list for each id of the vocabulary `ours`: the ids of `theirs` whose rows are averaged to
    initialise the row of that id. The list is empty for an unused id, and for a special token without a
    counterpart in `theirs`. Both vocabularies must be byte-level (`Definition.keeps_bytes`).

    A special token may have two roles: RoBERTa's `<s>` is `<bos>` and `<cls>`. If `theirs` has a different
    token for each role, an encoder uses the one for `<cls>` or `<sep>`, and a model of any other `family` the
    other one.
    """
    special = set(theirs.specials.values())
    known = {theirs.token_bytes(number): number for number in theirs.tokens if number not in special}
    pieces = load_within_text(theirs)
    rows: list[list[int]] = [[] for _ in range(ours.vocab_size)]
    ours_special = set(ours.specials.values())
    for number in ours.tokens:
        if number in ours_special:
            continue
        content = ours.token_bytes(number)
        rows[number] = [known[content]] if content in known else _divide(content, pieces, known)
    for role, number in sorted(ours.roles.items(), key=lambda item: (item[0] in (CLS, SEP)) == (family == "encoder")):
        if role in theirs.roles:  # the last of several counts
            rows[number] = [theirs.roles[role]]
    return rows


def _divide(content: bytes, pieces: Any, known: Mapping[bytes, int]) -> list[int]:
    """Return the ids into which the parent's tokenizer splits a token's bytes. If the bytes alone are not
    valid UTF-8, return the ids of the single bytes.
    """
    try:
        return list(pieces.encode(content.decode(), add_special_tokens=False).ids)
    except UnicodeDecodeError:
        return [known[bytes([value])] for value in content]


def _rewrite(table: Any, rows: Sequence[Sequence[int]], used: int, size: int) -> Any:
    """Return a table of `size` rows. Row i is the mean of the rows `rows[i]` of `table`; if that list is
    empty or missing, it is the mean of the first `used` rows of `table`.
    """
    import torch

    counts = torch.tensor([len(its) for its in rows])
    owners = torch.repeat_interleave(torch.arange(len(rows)), counts)
    chosen = torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)
    wide = (-1, *[1] * (table.dim() - 1))
    sums = table.new_zeros((len(rows), *table.shape[1:])).index_add_(0, owners, table[chosen])
    result = table[:used].mean(dim=0).expand(size, *table.shape[1:]).clone()
    filled = counts > 0
    result[: len(rows)][filled] = sums[filled] / counts[filled].view(wide).to(table.dtype)
    return result
