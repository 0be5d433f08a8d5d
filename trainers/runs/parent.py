"""The parent of a new run (`init`), from which the run takes its initial weights: another run's checkpoint,
an export, or a Hugging Face directory.

Nothing is downloaded, no code in the parent's directory runs, and weights are read only from safetensors. The
new run records its parent in `run.json` and in its ledger. Until its first checkpoint, it needs the parent's
files unchanged and in the same location. A fine-tuning run needs its parent, called its base, until it ends.
If its method freezes the base, the base is needed for as long as the run is used, because the run's
checkpoints contain only the trained parameters. A parent that is still training does not take this into
account: it deletes checkpoints according to its own `checkpoints.keep`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_local
from gristmill.storage.store import digest, file_checksum, read_json
from tokenizer.vocabulary.definition import Definition, read_definition
from trainers.config.job import Init, Job
from trainers.config.loss_weighting import GroupDRO
from trainers.data.job_interface import JobCorpus, verified_tokenizer
from trainers.runs import checkpoint
from trainers.runs.job_data import reader_of


def kind_of(path: LocalPath) -> str:
    """Return the kind of the parent at `path`: `run`, `export` or `hugging_face`. Raises UserError if it is
    none of these.
    """
    for kind, file in (("run", "run.json"), ("export", "gristmill.json"), ("hugging_face", "config.json")):
        if (path / file).is_file():
            return kind
    raise UserError(
        f"init.path: {path} has no run.json, gristmill.json or config.json; give a run, an export, or a directory with "
        f"config.json, safetensors and tokenizer.json"
    )


def settle(init: Init) -> Init:
    """Return `init` with an absolute path and, if the path is a run, the step of the checkpoint to begin
    from. Raises ConfigError if a field does not apply to this kind of parent, and UserError if there is no
    parent or the run lacks the step.
    """
    path = parse_local(init.path, "init.path").resolve()
    kind = kind_of(path)
    if kind == "run":
        return replace(init, path=str(path), step=checkpoint_of(path, init.step).step)
    for name, value, free in (("step", init.step, None), ("optimizer", init.optimizer, "reset")):
        _only_of_runs(name, value, free, path, kind)
    _only_of_runs("data", init.data, "restart", path, kind)
    return replace(init, path=str(path))


def settle_reference(weighting: GroupDRO, corpus: JobCorpus) -> GroupDRO:
    """Return the settings of group DRO with the absolute path of the reference model and the digest of its
    checkpoint. Raises UserError if the reference is not an export, was trained with another tokenizer, or has
    changed since the run began.
    """
    path = parse_local(weighting.reference, "online_weights.reference").resolve()
    if not (path / "gristmill.json").is_file():
        raise UserError(f"online_weights.reference: {path} is no export; give RUN/export of a finished run")
    origin = read_json(path / "gristmill.json", "export again")
    if origin["fingerprints"]["tokenizer"] != corpus.tokenizer.xxh3_128:
        raise UserError(
            f"online_weights.reference: {path} was trained with another tokenizer than that of the corpus; train the "
            f"reference on this corpus"
        )
    if weighting.reference_digest not in (None, origin["checkpoint"]):
        raise UserError(
            f"online_weights.reference: {path} has changed since this run began; restore it, or begin another run"
        )
    return replace(weighting, reference=str(path), reference_digest=origin["checkpoint"])


def _only_of_runs(name: str, value: object, free: object, path: Path, kind: str) -> None:
    if value != free:
        raise ConfigError(f"init.{name}: got {value}, only a run has that, and {path} is of kind {kind}; set {free}")


def checkpoint_of(run: LocalPath, step: int | None) -> checkpoint.Checkpoint:
    """Return the checkpoint of a run at `step`, or the one that `checkpoint.pick` returns if `step` is None.
    Raises UserError if the run has no such checkpoint.
    """
    nearest = (
        checkpoint.pick(run, lambda _: None) if step is None else checkpoint.newest(run, lambda _: None, last=step)
    )
    if nearest is None or step not in (None, nearest.step):
        there = f"the nearest before it is that of step {nearest.step}" if nearest else "there is none before it"
        wanted = "checkpoint" if step is None else f"checkpoint of step {step}"
        raise UserError(
            f"init.step: {run} has no {wanted}; {there}. Name a checkpoint that it keeps (`checkpoints.keep_every`)"
        )
    return nearest


def require_parent(record: Mapping[str, Any]) -> None:
    """Raise UserError if a run's parent is missing or, if the parent is a run, lacks the checkpoint that the
    new run began from. `record` is the field `parent` of the new run's `run.json`.
    """
    path = LocalPath(record["path"])
    try:
        if kind_of(path) == "run":
            checkpoint_of(path, record["step"])
    except UserError as error:
        raise UserError(
            f"{error}. A run begun from {path} needs it unchanged until it ends, and for predictions too if its "
            f"method freezes the base: put it back, or begin another run from an export, whose files nothing deletes"
        ) from error


def describe(config: Job, corpus: JobCorpus) -> dict[str, Any]:
    """Return what a new run's `run.json` records about its parent: its path, kind and fingerprints and,
    unless it is a Hugging Face directory, the checksum and step of its checkpoint. The record also contains
    the step, tokens and optimizer updates with which the new run begins. If the run continues the parent's
    data, `inherited` contains what the parent's `run.json` records about changes of the corpus.

    Raises UserError if the parent's tokenizer does not fit, and ConfigError if the run cannot continue the
    parent's data.
    """
    init = config.init
    assert init is not None
    path = LocalPath(init.path)
    kind, same = kind_of(path), init.vocabulary == "same"
    record: dict[str, Any] = {"path": init.path, "kind": kind, "first_step": 0, "tokens": 0, "updates": 0}
    if not same:
        read_vocabularies(path, corpus)
    if kind == "hugging_face":
        read_published(path)
        if same:
            _same_tokens(path, corpus)
        return {**record, "fingerprints": {"weights": weights_digest(path)}}
    if kind == "export":
        origin = read_json(path / "gristmill.json", "export again")
        # A task corpus takes its tokenizer.json from the export itself, whose file holds more than that of the run.
        if same and corpus.directory != path and origin["fingerprints"]["tokenizer"] != corpus.tokenizer.xxh3_128:
            _same_tokens(path, corpus)
        marks = {"fingerprints": origin["fingerprints"], "checkpoint": origin["checkpoint"], "step": origin["step"]}
        return {**record, **marks}
    parent = checkpoint_of(path, init.step)
    own = read_json(path / "run.json", "restore it from a copy")
    if same:
        _same_tokenizer(path, parent.fingerprints, corpus)
    record |= {"fingerprints": parent.fingerprints, "checkpoint": parent.checksum, "step": parent.step}
    if init.optimizer == "keep":
        record["updates"] = updates(own, parent)
    if init.data == "continue":
        _check_order(config, corpus, parent)
        inherited = {name: own[name] for name in ("since", "earlier") if name in own}
        record |= {"first_step": parent.step, "tokens": parent.tokens, "inherited": inherited}
    return record


def updates(run: Mapping[str, Any], found: checkpoint.Checkpoint) -> int:
    """Return the number of optimizer updates behind a checkpoint of a run, including those of a parent whose
    optimizer state the run kept. `run` is the content of the run's `run.json`.

    If the checkpoint does not record the number, every step that was not skipped counts as one update.
    """
    if found.updates is not None:
        return found.updates
    parent = run.get("parent", {"updates": 0, "first_step": 0})
    return int(parent["updates"]) + found.step - int(parent["first_step"]) - found.skipped


def _check_order(config: Job, corpus: JobCorpus, parent: checkpoint.Checkpoint) -> None:
    sequences, steps = config.batch.sequences or 0, config.budget.steps or 0
    order = reader_of(config).training(corpus, config, frozenset()).order
    if parent.order.get("order") != order.identity or parent.order.get("sample") != parent.step * sequences:
        raise ConfigError(
            "init.data: got continue, but the parent read other samples: corpus, data section, seed, objective and "
            "batch.sequences must be the parent's; use these, or set init.data to restart"
        )
    if steps <= parent.step:
        raise ConfigError(
            f"budget.steps: got {steps}, the parent's data continues from step {parent.step}; allowed {parent.step + 1} or more"
        )


def parent_digest(init: Init) -> str:
    """Return a digest of the weights that a run with this `init` begins with. Raises UserError if they are
    missing.
    """
    path = parse_local(init.path, "init.path").resolve()
    kind = kind_of(path)
    if kind == "run":
        return checkpoint_of(path, init.step).checksum
    if kind == "export":
        return str(read_json(path / "gristmill.json", "export again")["checkpoint"])
    return weights_digest(path)


def read_vocabularies(path: LocalPath, corpus: JobCorpus) -> tuple[Definition, Definition]:
    """Return the vocabulary of the parent in `path` and that of the corpus. Raises UserError if the parent's
    tokenizer.json is missing or broken, or if either vocabulary is not byte-level BPE that keeps every byte.
    """
    theirs, ours = _definition(path), read_definition(str(verified_tokenizer(corpus)))
    for definition in (theirs, ours):
        if not definition.keeps_bytes:
            raise UserError(
                f"init.vocabulary: got transfer, which needs byte-level BPE that keeps every byte; {definition.path} is "
                f"{definition.kind}"
            )
    return theirs, ours


def _same_tokenizer(path: LocalPath, marks: Mapping[str, str], corpus: JobCorpus) -> None:
    if marks["tokenizer"] != corpus.tokenizer.xxh3_128:
        raise UserError(
            f"init.path: {path} was trained with tokenizer {marks['tokenizer']}, the corpus was made with "
            f"{corpus.tokenizer.xxh3_128}; build the corpus with the parent's tokenizer.json"
        )


def _same_tokens(path: LocalPath, corpus: JobCorpus) -> None:
    """Raise UserError unless the corpus's tokenizer has the same merges as that of `path`, and the same token
    for each of its ids. The corpus's tokenizer may have additional ids.
    """
    theirs, ours = _definition(path), read_definition(str(verified_tokenizer(corpus)))
    others = {number for number, token in theirs.tokens.items() if ours.tokens.get(number) != token}
    if others or theirs.data["model"].get("merges") != ours.data["model"].get("merges"):
        what = f"{len(others):,} of {len(theirs.tokens):,} ids, the first is {min(others)}" if others else "the merges"
        raise UserError(
            f"init.path: the tokenizer of {path} and that of the corpus differ ({what}); build the corpus with "
            f"`shards: {{tokenizer: {path}/tokenizer.json}}`"
        )


def _definition(path: LocalPath) -> Definition:
    if not (path / "tokenizer.json").is_file():
        raise UserError(f"init.path: {path} has no tokenizer.json; put the one that it was trained with there")
    try:
        return read_definition(str(path))
    except ValueError as error:
        raise UserError(f"init.path: {error}") from None


def read_published(path: Path) -> dict[str, Any]:
    """Return the content of `config.json` in a Hugging Face directory. Raises UserError if the file is not
    valid JSON or does not hold an object.
    """
    file = path / "config.json"
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"init.path: {file} cannot be read ({error}); save the model again") from None
    if not isinstance(written, dict):
        raise UserError(f"init.path: {file} holds no mapping; save the model again")
    return written


def weight_files(path: Path) -> list[Path]:
    """Return the weight files of a Hugging Face directory. Raises UserError if it has neither
    `model.safetensors` nor `model.safetensors.index.json`, or if the index is malformed.
    """
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"init.path: {index}: is not an index of weight files; fetch the model again") from None
        return [path / Path(name).name for name in names]
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    raise UserError(f"init.path: {path} has no model.safetensors; other formats are not read: save it as safetensors")


def weights_digest(path: Path) -> str:
    """Return a digest of the configuration and the weights in a Hugging Face model directory."""
    return digest([file_checksum(file) for file in [path / "config.json", *weight_files(path)]])


def require_unchanged(path: Path, current: str, recorded: str) -> None:
    """Raise UserError if the checksum `current` of a parent's weights differs from the one `recorded` when
    the new run began.
    """
    if current != recorded:
        raise UserError(f"init.path: {path} has changed since this run began; restore it, or begin another run")
