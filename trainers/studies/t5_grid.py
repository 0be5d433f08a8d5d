"""A small version of the T5 paper's study of architectures and objectives (Raffel et al., 2020, section 3.2,
table 2).

Ten runs are trained on one corpus, and their validation losses are shown in the paper's layout.

Architectures: an encoder-decoder; one whose stacks share their weights; one with half the layers in each
stack; a language model, which is one causal stack; and a prefix language model, one stack with bidirectional
attention over its input.

Objectives: denoising, the paper's baseline, replaces spans with 15 % of the tokens by sentinels. Language
modelling predicts the second part of a text from the first or, in the language model, the whole text. For
denoising, a language model reads input and target as one text and learns the target.

The encoder-decoders are T5 models, the single stacks Llama models of the same sizes. A document that fills a
row has the same number of tokens in every run. Losses are nats per target, and targets differ between the
objectives, so each is shown next to the loss of a unigram model of the same targets
(`trainers.evaluation.evaluate`).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill.config import override, parse, plain
from gristmill.errors import ConfigError
from gristmill.events import read_events
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import write_json
from trainers.config.pretraining import Pretraining
from trainers.data.packed_corpus import corpus_of, stream_length
from trainers.objectives import Objective
from trainers.objectives.causal import Causal
from trainers.objectives.prefix_lm import PrefixLM
from trainers.objectives.span_corruption import SpanCorruption
from trainers.recipes.encoder_decoders import tiny_prefix_lm, tiny_t5
from trainers.runs.resolve import resolve
from trainers.runs.run import locked, open_run


@dataclass(frozen=True)
class GridCell:
    """A row of the paper's table: architecture, objective, the paper's parameters and cost, and the
    configuration of its run.

    P is the number of parameters of one stack of 12 layers, M the number of operations of an encoder-decoder
    with 12 + 12 layers.
    """

    architecture: str
    objective: str
    parameters: str
    cost: str
    config: Pretraining

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return "_".join(f"{self.objective} {self.architecture}".lower().replace(",", "").replace("-", " ").split())


def cells(corpora: Sequence[str] = (), overrides: Sequence[str] = ()) -> tuple[GridCell, ...]:
    """Return the ten rows in the paper's order. Their runs read `corpora`, and `overrides` (a.b=value) change
    both base recipes.

    Raises ConfigError for an override of a field in which the rows differ.
    """
    for setting in overrides:
        if setting.partition("=")[0] in ("name", "objective", "model", "model.architecture", "model.tied_stacks"):
            raise ConfigError(f"{setting!r}: the rows of the grid set this field; allowed are other fields")
    both, alone = (_changed(recipe, corpora, overrides) for recipe in (tiny_t5(), tiny_prefix_lm()))
    if both.model.layers % 2:
        raise ConfigError(f"model.layers: got {both.model.layers}, allowed even numbers: a row uses half of them")
    shared = replace(both, model=replace(both.model, tied_stacks=True))
    half = replace(both, model=replace(both.model, layers=both.model.layers // 2))
    noise = SpanCorruption(noise="tokens")
    rows: list[tuple[str, str, str, Pretraining, Objective, Objective]] = [
        ("Encoder-decoder", "2P", "M", both, noise, PrefixLM()),
        ("Enc-dec, shared", "P", "M", shared, noise, PrefixLM()),
        ("Enc-dec, half the layers", "P", "M/2", half, noise, PrefixLM()),
        ("Language model", "P", "M", alone, noise, Causal()),
        ("Prefix LM", "P", "M", alone, replace(noise, bidirectional_prefix=True), PrefixLM()),
    ]
    made = []
    for name in ("Denoising", "LM"):
        for architecture, parameters, cost, config, denoising, language in rows:
            objective = denoising if name == "Denoising" else language
            cell = GridCell(architecture, name, parameters, cost, replace(config, objective=objective))
            made.append(replace(cell, config=_as_long(replace(cell.config, name=cell.name))))
    return tuple(made)


def _changed(config: Pretraining, corpora: Sequence[str], overrides: Sequence[str]) -> Pretraining:
    changed = parse(Pretraining, override(plain(config), overrides), f"t5-grid, recipe {config.name}")
    return replace(changed, data=replace(changed.data, corpora=tuple(corpora) or changed.data.corpora))


def _as_long(config: Pretraining) -> Pretraining:
    """Return `config` with the sequence length at which a row holds as many tokens of text as an
    encoder-decoder with the original length denoises in a row.
    """
    asked = config.data.sequence_length
    wanted = SpanCorruption(noise="tokens").stream_length(asked, "encoder_decoder")
    while stream_length(config) < wanted:
        config = replace(config, data=replace(config.data, sequence_length=config.data.sequence_length + 1))
    while stream_length(config) > wanted:
        config = replace(config, data=replace(config.data, sequence_length=config.data.sequence_length - 1))
    if config.model.family == "decoder":
        positions = max(config.model.positions, config.data.sequence_length)
        config = replace(config, model=replace(config.model, positions=positions))
    return config


def train_grid(
    corpora: Sequence[str], output: LocalPath, overrides: Sequence[str], workers: int, show: Callable[[str], None]
) -> list[dict[str, Any]] | None:
    """Train the ten runs in `output` one after another, and write `grid.json`, with an entry per row, and
    `report.html`. A finished run is not trained again.

    Returns the entries, or None if a run was stopped.
    """
    from trainers.report.run_page import write_report
    from trainers.training.launch import launch

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("t5-grid: cannot run under torchrun; give --workers N instead")
    grid = cells(corpora, overrides)
    for number, cell in enumerate(grid, 1):
        run = output / cell.name
        corpus = corpus_of(cell.config)
        config = resolve(cell.config, corpus)
        with locked(run):
            opened = open_run(run, config, corpus)
            show(f"{number}/{len(grid)}  {cell.objective}  {cell.architecture}  {run}")
            if not opened.finished:
                launch(config, corpus, run, workers, show)
        if not (run / "finished.json").exists():
            return None
    results = [_result(cell, output / cell.name) for cell in grid]
    write_json(output / "grid.json", {"rows": results})
    write_report([output / cell.name for cell in grid], output / "report.html")
    return results


def _result(cell: GridCell, run: LocalPath) -> dict[str, Any]:
    """Return the entry of a row: its names, the number of its parameters, and its losses."""
    from trainers.evaluation.evaluate import evaluate

    counted = read_events(run / "log.jsonl", "start")[0]["parameters"]
    losses = evaluate(run)
    return {
        "architecture": cell.architecture,
        "objective": cell.objective,
        "params": cell.parameters,
        "cost": cell.cost,
        "parameters": counted,
        "loss": losses["loss"],
        "unigram_loss": losses.get("unigram_loss"),
        "run": run.name,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the entries as a text table in the paper's layout: architecture, objective, parameters and cost,
    then the measurements.
    """
    head = ("Architecture", "Objective", "Params", "Cost", "parameters", "loss", "unigram")
    lines = [head]
    for row in rows:
        unigram = "-" if row["unigram_loss"] is None else f"{row['unigram_loss']:.4f}"
        measured = (f"{row['parameters']:,}", f"{row['loss']:.4f}", unigram)
        lines.append((row["architecture"], row["objective"], row["params"], row["cost"], *measured))
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    texts = (
        "  ".join(cell.ljust(width) if column < 4 else cell.rjust(width) for column, (cell, width) in enumerate(sized))
        for sized in (list(zip(line, widths, strict=True)) for line in lines)
    )
    return "\n".join(text.rstrip() for text in texts)
