"""Tabulate the attention heads of a model: what each head attends to, and how the loss changes when it is
masked.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UserError
from gristmill.host import lent
from gristmill.storage.disk import LocalPath
from tokenizer.encode import Encoder
from trainers.evaluation.probing.head_effects import HeadEffects, LossChange, head_effects
from trainers.evaluation.probing.head_summaries import HeadSummary, summarise_heads
from trainers.evaluation.probing.head_watch import HeadSite
from trainers.evaluation.probing.hidden_states import StateReader
from trainers.evaluation.scoring.scorer import Scorer
from trainers.inference.model_export import load_trained
from trainers.tasks.examples import Examples

_SHOWN = 10  # heads in the printed table


def measure_heads(
    model: LocalPath, texts: Examples, tokens: int, tell: Callable[[str], None]
) -> tuple[pa.Table, HeadEffects]:
    """Measure the heads of a model on the first `tokens` tokens of texts. Returns (table, effects of masking
    heads).

    The table has a row for every head, with the means of `HeadSummary` and the change of the loss when the
    head is masked, in nats per token. Layers count from 1, heads from 0. Raises UserError if the texts have
    no token, the model cannot score texts, or its attention cannot be watched.
    """
    trained = load_trained(model)
    encoder, config = Encoder.load(lent(trained.tokenizer)), trained.config
    reader = StateReader(str(model), trained.model, config.model, config.objective, encoder)
    scorer = Scorer.of(str(model), trained)
    documents = _first_tokens(reader.encode(texts.texts[0].to_pylist()), tokens)
    if not documents:
        raise UserError(f"--text: {texts.files[0].path} holds no token")
    both = config.model.family == "encoder_decoder"
    summaries = summarise_heads(reader, config.model.architecture, documents)
    requests, _ = scorer.windows(documents, scorer.form.positions)
    effects = head_effects(scorer, config.model.architecture, requests, tell)
    return _table(summaries, effects, both), effects


def _first_tokens(documents: Sequence[np.ndarray], tokens: int) -> list[np.ndarray]:
    kept = []
    for ids in documents:
        if tokens > 0 and len(ids):
            kept.append(ids[:tokens])
        tokens -= len(ids)
    return kept


def _table(summaries: Mapping[HeadSite, HeadSummary], effects: HeadEffects, both: bool) -> pa.Table:
    rows = []
    for site, changes in effects.alone.items():
        its = summaries[site]
        for head, change in enumerate(changes):
            rows.append(
                {
                    "layer": f"{site.stack}.{site.layer}" if both else str(site.layer),
                    "attends": site.attends,
                    "head": head,
                    "entropy": float(its.entropy[head]),
                    "distance": None if its.distance is None else float(its.distance[head]),
                    "to_first": float(its.first[head]),
                    "to_special": float(its.special[head]),
                    "loss_change": change.change,
                    "error": None if np.isnan(change.error) else change.error,
                }
            )
    kinds = {"layer": pa.string(), "attends": pa.string(), "head": pa.int32()}
    names = ("entropy", "distance", "to_first", "to_special", "loss_change", "error")
    return pa.Table.from_pylist(rows, pa.schema([*kinds.items(), *((name, pa.float64()) for name in names)]))


def head_lines(table: pa.Table) -> list[Sequence[str]]:
    """Return a header and rows for up to ten heads, those whose masking raises the loss most."""
    rows: list[Sequence[str]] = [tuple(table.column_names)]
    for row in sorted(table.to_pylist(), key=lambda row: -row["loss_change"])[:_SHOWN]:
        rows.append(tuple(_cell(row[name]) for name in table.column_names))
    return rows


def pruning_lines(effects: HeadEffects) -> list[Sequence[str]]:
    """Return a table of the loss by number of masked heads: a header, and a row for each number, from 0."""
    rows: list[Sequence[str]] = [("masked heads", "loss", "change", "error")]
    for many, each in [(0, LossChange(effects.loss, 0.0, 0.0)), *effects.pruned]:
        rows.append((f"{many} of {effects.heads}", f"{each.loss:.4f}", f"{each.change:+.4f}", _cell(each.error)))
    return rows


def plain_heads(table: pa.Table, effects: HeadEffects) -> dict[str, Any]:
    """Return the table of heads, the loss of the whole model and the effects of masking heads together, as
    JSON data.
    """
    pruned = [
        {
            "masked": many,
            "loss": each.loss,
            "change": each.change,
            "error": None if np.isnan(each.error) else each.error,
        }
        for many, each in effects.pruned
    ]
    return {"loss": effects.loss, "heads": table.to_pylist(), "pruned": pruned}


def _cell(value: Any) -> str:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
