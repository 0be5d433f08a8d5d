"""The data of a fine-tuning run: the files of its tasks, and its tokenizer.

files -> Examples -> inputs -> TaskData (train), HeldOut (dev and others)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from gristmill.config import plain
from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from gristmill.storage.parsing import parse_local
from gristmill.storage.store import digest, read_json
from pipelines.contracts.shard_set import TokenizerRecord
from tokenizer.vocabulary.definition import read_definition
from tokenizer.vocabulary.specials import add_fallback_marks
from trainers.config.finetuning import Finetuning
from trainers.data.examples.encoded_texts import TextEncoder
from trainers.data.examples.held_out import HeldOut
from trainers.data.examples.make_inputs import InputMaker
from trainers.data.examples.task_data import TaskData, order_of_tasks
from trainers.data.examples.task_inputs import TaskInputs
from trainers.data.examples.text_format import text_format
from trainers.tasks.examples import Examples
from trainers.tasks.leaks import Leak, check_leaks
from trainers.tasks.read_examples import read_examples
from trainers.tasks.schema.task import Task
from trainers.tasks.task_files import available_splits, data_directory, find_split, read_content
from trainers.tasks.text_to_text import render_inputs, render_targets

TRAIN, DEV = "train", "dev"


@dataclass(frozen=True)
class TaskCorpus:
    """The data of a fine-tuning run. `files` is the directory of the tasks' files, and `directory` holds the
    tokenizer's file.
    """

    tasks: tuple[Task, ...]
    files: Location | None
    directory: LocalPath
    tokenizer: TokenizerRecord

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens."""
        file = str(self.directory.verify(self.tokenizer.file))
        ids = TextEncoder(file, self.tokenizer.xxh3_128).encode(pa.array([text], pa.large_string())).tokens
        return [int(each) for each in ids]

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the tasks' definitions and of the contents of their training and validation files."""
        parts = []
        for task in self.tasks:
            paths = [path for split in self.splits(task) for path in find_split(task, split, self.files).paths]
            checksums = [read_content(path)[1].xxh3_128 for path in paths]
            parts.append([plain(replace(task, folder=None)), checksums])
        return digest(parts)

    @cached_property
    def leaks(self) -> dict[str, list[Leak]]:
        """For each task, the leaks found so far between its training split and its other labelled splits.
        `examples` checks a split when it first reads it.
        """
        return {task.name: [] for task in self.tasks}

    @cached_property
    def _examples(self) -> dict[tuple[str, str], Examples]:
        return {}

    def splits(self, task: Task) -> tuple[str, ...]:
        """Return `train` and the split to validate on: `dev` or, in a task without `dev`, the first split
        whose name begins with `dev`. If there is no such split, or it has no files or no gold, only `train`
        is returned.
        """
        dev = [split for split in task.splits if split == DEV] or [s for s in task.splits if s.startswith(DEV)]
        known = [
            split
            for split in available_splits(task, self.files)
            if split not in find_split(task, split, self.files).layout.unlabelled
        ]
        return (TRAIN, *(split for split in dev[:1] if split in known))

    def examples(self, task: Task, split: str) -> Examples:
        """Return the examples of a split. Raises UserError if the split is labelled and shares examples with
        the training split, unless the task allows it.
        """
        if (task.name, split) not in self._examples:
            examples = read_examples(task, split, self.files)
            if split != TRAIN and examples.labelled and TRAIN in task.splits:
                both = {TRAIN: self.examples(task, TRAIN), split: examples}
                self.leaks[task.name] += check_leaks(task, both, self.files)
            self._examples[task.name, split] = examples
        return self._examples[task.name, split]


def open_tasks(job: Finetuning) -> TaskCorpus:
    """Open the tasks and the tokenizer of a run. The tasks' files are not read yet.

    Raises UserError if the tokenizer's file is missing or invalid, and ConfigError if the run has neither a
    base nor a tokenizer.
    """
    if job.init is not None:
        directory, name = parse_local(job.init.path, "init.path"), "tokenizer.json"
    elif job.tokenizer is not None:
        file = parse_local(job.tokenizer, "tokenizer")
        file = file / "tokenizer.json" if file.is_dir() else file
        directory, name = LocalPath(file.parent), file.name
    else:
        raise ConfigError("tokenizer: missing; a model without a base needs tokenizer=FILE, a tokenizer.json")
    return TaskCorpus(job.tasks, data_directory(job.files), directory, _tokenizer_record(directory, name))


def _tokenizer_record(directory: LocalPath, name: str) -> TokenizerRecord:
    """Return the record of the tokenizer in the file `name`. The roles of the special tokens come from
    `run.json` if it records them, otherwise from the tokenizer's file.
    """
    path = directory / name
    if not path.is_file():
        raise UserError(
            f"{path}: no such file; the base's directory must hold the tokenizer.json that it was trained with"
        )
    try:
        definition = read_definition(str(path))
    except ValueError as error:
        raise UserError(f"{error}; give a base with an intact tokenizer.json") from None
    run, file = directory / "run.json", directory.record(name)
    recorded = read_json(run) if run.is_file() else {}  # a corpus's step also has a run.json, without specials
    specials = recorded.get("specials") or add_fallback_marks(definition.roles)
    size = (definition.vocab_size, definition.kind, dict(specials))
    return TokenizerRecord(file.path, file.bytes, file.xxh3_128, *size)


def task_training(corpus: TaskCorpus, job: Finetuning, excluded: frozenset[bytes] = frozenset()) -> TaskData:
    """Return the training inputs of a resolved run, in the order in which it reads them. `excluded` is
    ignored: documents are excluded only in pretraining.
    """
    tasks = tuple(_inputs(corpus, job, corpus.examples(task, TRAIN)) for task in job.tasks)
    order = order_of_tasks(tasks, job.mixing, job.seed, corpus.fingerprint)
    return TaskData(tasks, order, _input_maker(corpus, job).length, job.encoding.packed)


def task_validation(corpus: TaskCorpus, job: Finetuning) -> HeldOut:
    """Return the inputs for validation: the dev split of each task that has one."""
    having = [(task, corpus.splits(task)[1]) for task in job.tasks if len(corpus.splits(task)) == 2]
    return _held_out(corpus, job, having)


def task_split(corpus: TaskCorpus, job: Finetuning, split: str, task: Task | None = None) -> HeldOut:
    """Return the inputs and examples of `split` for `task` or, if `task` is None, for every task of the run."""
    return _held_out(corpus, job, [(each, split) for each in (job.tasks if task is None else (task,))])


def _held_out(corpus: TaskCorpus, job: Finetuning, splits: Sequence[tuple[Task, str]]) -> HeldOut:
    examples = [corpus.examples(task, split) for task, split in splits]
    inputs = [_inputs(corpus, job, read) for read in examples]
    return HeldOut(tuple(inputs), tuple(examples), _input_maker(corpus, job).length, job.encoding.packed)


def _inputs(corpus: TaskCorpus, job: Finetuning, examples: Examples) -> TaskInputs:
    pairs = _as_text(examples) if job.writes_text else None
    names = [task.name for task in job.tasks]
    return _input_maker(corpus, job, names.index(examples.task.name)).make(examples, pairs)


def _as_text(examples: Examples) -> tuple[pa.LargeStringArray, pa.LargeStringArray]:
    targets = [accepted[0] for accepted in render_targets(examples)] if examples.labelled else [""] * len(examples)
    return pa.array(render_inputs(examples), pa.large_string()), pa.array(targets, pa.large_string())


def _input_maker(corpus: TaskCorpus, job: Finetuning, task: int = 0) -> InputMaker:
    """Return the maker of inputs for the task with index `task`. The limit `encoding.max_length` includes
    virtual tokens, but not the prefix of a fine-tuning method.
    """
    virtual, first = job.method.virtual_tokens, job.method.prefix_length
    form = text_format(job.model, corpus.tokenizer.specials, job.writes_text, virtual, first)
    form = replace(form, first_virtual=job.method.first_virtual(form.first_virtual, task))
    length = job.encoding.max_length or job.model.positions
    if job.model.scheme != "t5_bias":  # its relative positions do not limit the length
        length = min(length, job.model.positions - first)
    encoder = TextEncoder(str(corpus.directory.verify(corpus.tokenizer.file)), corpus.tokenizer.xxh3_128)
    return InputMaker(encoder, form, length - virtual, job.encoding.stride)
