"""Task files of lm-evaluation-harness (0.4.13) that need no Python code.

    task.yaml (+ include) -> HarnessTask -> render_rows -> contexts and continuations

Unsupported fields raise ConfigError if they could change a score.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gristmill.config import load_yaml, near_match
from gristmill.errors import ConfigError
from trainers.tasks.harness_format.answer_filters import AnswerFilter, TextComparison, read_comparison, read_filters
from trainers.tasks.schema.task_prompt import Generation

OutputType = Literal["multiple_choice", "loglikelihood", "loglikelihood_rolling", "generate_until"]

# {output type: {metric of the library: its aggregation}}; those that a file without metric_list has are in _DEFAULT
METRICS: dict[str, dict[str, str]] = {
    "multiple_choice": {"acc": "mean", "acc_norm": "mean", "acc_bytes": "mean", "acc_mutual_info": "mean"},
    "loglikelihood": {"perplexity": "perplexity", "acc": "mean"},
    "loglikelihood_rolling": {
        "word_perplexity": "weighted_perplexity", "byte_perplexity": "weighted_perplexity", "bits_per_byte": "bits_per_byte",
    },
    "generate_until": {"exact_match": "mean"},
}  # fmt: skip
_DEFAULT = {
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "generate_until": ("exact_match",),
}
_LOADERS = ("json", "csv", "parquet")
_NO_SCORE = {
    "tag",
    "group",
    "task_alias",
    "metadata",
    "should_decontaminate",
    "doc_to_decontamination_query",
    "dataset_name",
}
_READ = {
    "task", "include", "dataset_path", "dataset_kwargs", "training_split", "validation_split", "test_split", "fewshot_split",
    "output_type", "doc_to_text", "doc_to_target", "doc_to_choice", "description", "target_delimiter", "fewshot_delimiter",
    "num_fewshot", "fewshot_config", "generation_kwargs", "metric_list", "filter_list", "gen_prefix",
}  # fmt: skip
_MARKS = {"dataset_path", "output_type", "doc_to_text", "include"}
_MOST_INCLUDES = 10
_NUMBERS = ("max_gen_toks", "max_new_tokens", "temperature", "top_k", "top_p")
_TOKENS = 256  # written without max_gen_toks, as in the library


@dataclass(frozen=True)
class HarnessTask:
    """A task of lm-evaluation-harness.

    `files` maps each split to its file names. A relative name is looked up in the folder of `path`, then in
    the directory that `data=DIR` of the command names. `split` is the split that is scored. `shots` is the
    number of solved examples before each item. They come from `samples` if the task has any, otherwise from
    `shots_split`; they are drawn at random unless `first_shots` is set.

    `texts`, `targets`, `choices` and `prefix` are the fields `doc_to_text`, `doc_to_target`, `doc_to_choice`
    and `gen_prefix` of the task's file. A field that is a string is the name of a column or else a Jinja
    template.

    `metrics` lists the metrics by their names in the library. `filters`, `comparison` and `generation` apply
    to answers that the model writes. `version` is the version in the file's `metadata`, or 1 if it has none.
    """

    path: Path
    name: str
    output_type: OutputType
    loader: str
    files: dict[str, tuple[str, ...]]
    split: str
    shots_split: str
    texts: str | int
    targets: str | int | list[Any]
    choices: str | list[Any] | None
    description: str
    target_delimiter: str
    shot_delimiter: str
    shots: int
    first_shots: bool
    samples: tuple[dict[str, Any], ...]
    prefix: str | None
    metrics: tuple[str, ...]
    filters: tuple[AnswerFilter, ...]
    comparison: TextComparison
    generation: Generation | None
    version: str = "1"


def is_harness_task(path: Path) -> bool:
    """Return whether a YAML file is a task file of lm-evaluation-harness rather than one of gristmill."""
    try:
        data = load_yaml(path)
    except ConfigError as error:
        return "!function" in str(error)
    return "kind" not in data and bool(_MARKS & set(data))


def load_harness_task(path: Path, shots: int | None = None) -> HarnessTask:
    """Load a task; `shots`, if given, replaces its number of solved examples. Raises ConfigError for what is
    not supported here, such as Python code.
    """
    data = _with_included(path)
    for name in data:
        if (
            name not in _READ | _NO_SCORE
            and not (name == "repeats" and data[name] == 1)
            and data[name] not in (None, False)
        ):
            raise ConfigError(f"{path}: {name}: is not read here{near_match(name, sorted(_READ))}")
    kind = _choice(path, "output_type", data.get("output_type", "generate_until"), tuple(METRICS))
    shown = _choice(path, "dataset_path", data.get("dataset_path"), _LOADERS)
    split, shots_split = _splits(path, data)
    first, samples = _shots(path, data)
    if kind == "multiple_choice" and data.get("doc_to_choice") is None:
        raise ConfigError(f"{path}: doc_to_choice: missing, and multiple_choice needs it")
    metrics, comparison = _metrics(path, kind, data.get("metric_list"))
    number = data.get("num_fewshot") or 0
    task = HarnessTask(
        path=path, name=_text(path, data, "task", path.stem), output_type=kind, loader=shown, files=_files(path, data),
        split=split, shots_split=shots_split, texts=_template(path, data, "doc_to_text", kind == "loglikelihood_rolling"),
        targets=_target(path, data), choices=_choices(path, data), description=_text(path, data, "description", ""),
        target_delimiter=_text(path, data, "target_delimiter", " "),
        shot_delimiter=_text(path, data, "fewshot_delimiter", "\n\n"), shots=number if shots is None else shots,
        first_shots=first, samples=samples, prefix=data.get("gen_prefix"), metrics=metrics,
        filters=read_filters(path, data.get("filter_list")), comparison=comparison,
        generation=_generation(path, data) if kind == "generate_until" else None, version=_version(data),
    )  # fmt: skip
    _check_splits(task)
    return task


def without_shots(task: HarnessTask) -> HarnessTask:
    """Return a copy of the task whose prompts contain no solved examples."""
    return replace(task, shots=0)


def _with_included(path: Path, depth: int = 0) -> dict[str, Any]:
    if depth > _MOST_INCLUDES:
        raise ConfigError(f"{path}: include: more than {_MOST_INCLUDES} files include one another; remove a cycle")
    try:
        data = load_yaml(path)
    except ConfigError as error:
        if "!function" in str(error):
            raise ConfigError(
                f"{path}: !function names Python code, which is not run here; write a template instead, or use "
                f"`python -m trainers harness` for files that you trust"
            ) from None
        raise
    if isinstance(data.get("task"), list):
        raise ConfigError(f"{path}: task: is a group of tasks; give the files of its tasks, separated by commas")
    if (included := data.get("include")) is None:
        return data
    if not isinstance(included, str):
        raise ConfigError(f"{path}: include: got {included!r}, expected the name of a file")
    return {**_with_included(path.parent / included, depth + 1), **data}


def _mapping(path: Path, data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    if not isinstance(value, dict | None):
        raise ConfigError(f"{path}: {name}: got {value!r}, expected names and values")
    return value or {}


def _text(path: Path, data: Mapping[str, Any], name: str, default: str) -> str:
    value = data.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{path}: {name}: got {value!r}, expected a text")
    return default if value is None else value


def _version(data: Mapping[str, Any]) -> str:
    metadata = data.get("metadata")
    return str(metadata.get("version", 1)) if isinstance(metadata, dict) else "1"


def _choice(path: Path, name: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise ConfigError(f"{path}: {name}: got {value!r}, expected one of {', '.join(allowed)}")
    return value


def _template(path: Path, data: Mapping[str, Any], name: str, optional: bool = False) -> str | int:
    value = data.get(name, "" if optional else None)
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ConfigError(f"{path}: {name}: got {value!r}, expected a Jinja template or the name of a column")
    return value


def _target(path: Path, data: Mapping[str, Any]) -> str | int | list[Any]:
    value = data.get("doc_to_target")
    return value if isinstance(value, list) else _template(path, data, "doc_to_target")


def _choices(path: Path, data: Mapping[str, Any]) -> str | list[Any] | None:
    value = data.get("doc_to_choice")
    if isinstance(value, dict):
        return list(value.values())
    if value is not None and not isinstance(value, str | list):
        raise ConfigError(f"{path}: doc_to_choice: got {value!r}, expected a template, a column or a list")
    return value


def _files(path: Path, data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    options = _mapping(path, data, "dataset_kwargs")
    named = options.get("data_files")
    if others := sorted(set(options) - {"data_files"}):
        raise ConfigError(f"{path}: dataset_kwargs.{others[0]}: is not read here; give data_files alone")
    if named is None:
        raise ConfigError(
            f"{path}: dataset_kwargs.data_files: missing; name the files, such as {{test: items.jsonl}}; nothing is downloaded"
        )
    splits = named if isinstance(named, dict) else {"train": named}
    files = {
        name: tuple(names) if isinstance(names, list) else (names,) if isinstance(names, str) else ()
        for name, names in splits.items()
    }
    for name, names in files.items():
        if not names or not all(isinstance(each, str) for each in names):
            raise ConfigError(
                f"{path}: dataset_kwargs.data_files.{name}: got {splits[name]!r}, expected names of files"
            )
    return files


def _splits(path: Path, data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the split to score and the split to take solved examples from, in the order of precedence of
    lm-evaluation-harness.
    """
    scored = data.get("test_split") or data.get("validation_split")
    if scored is None:
        raise ConfigError(f"{path}: test_split: missing, and so is validation_split; name a split of data_files")
    others = (data.get(name) for name in ("fewshot_split", "training_split", "validation_split", "test_split"))
    return str(scored), str(next(each for each in others if each is not None))


def _check_splits(task: HarnessTask) -> None:
    needed = {"test_split": task.split} | (
        {"fewshot_split": task.shots_split} if task.shots and not task.samples else {}
    )
    for name, split in needed.items():
        if split not in task.files:
            raise ConfigError(f"{task.path}: {name}: got {split!r}, data_files has {', '.join(task.files)}")
    if not isinstance(task.shots, int) or task.shots < 0:
        raise ConfigError(f"{task.path}: num_fewshot: got {task.shots!r}, allowed 0 or more")


def _shots(path: Path, data: Mapping[str, Any]) -> tuple[bool, tuple[dict[str, Any], ...]]:
    how = _mapping(path, data, "fewshot_config")
    if others := sorted(set(how) - {"sampler", "samples"}):
        raise ConfigError(f"{path}: fewshot_config.{others[0]}: is not read here; sampler and samples are")
    sampler = _choice(path, "fewshot_config.sampler", how.get("sampler", "default"), ("default", "first_n"))
    samples = how.get("samples") or []
    if not isinstance(samples, list) or not all(isinstance(row, dict) for row in samples):
        raise ConfigError(f"{path}: fewshot_config.samples: expected a list of rows")
    return sampler == "first_n", () if data.get("fewshot_split") else tuple(samples)


def _metrics(path: Path, kind: str, given: Any) -> tuple[tuple[str, ...], TextComparison]:
    if not isinstance(given, list | None):
        raise ConfigError(f"{path}: metric_list: got {given!r}, expected a list of metrics")
    names, comparison = [], TextComparison()
    for number, entry in enumerate(given or [{"metric": name} for name in _DEFAULT[kind]]):
        place = f"{path}: metric_list[{number}]"
        name = entry.get("metric") if isinstance(entry, dict) else None
        if name not in METRICS[kind]:
            raise ConfigError(f"{place}: got {name!r}, {kind} allows {', '.join(METRICS[kind])}")
        usual = METRICS[kind][name]
        if entry.get("aggregation", usual) != usual:
            raise ConfigError(f"{place}: aggregation: got {entry['aggregation']!r}, {name} is aggregated by {usual}")
        options = {
            key: value for key, value in entry.items() if key not in ("metric", "aggregation", "higher_is_better")
        }
        comparison = read_comparison(place, options)
        names.append(name)
    return tuple(dict.fromkeys(names)), comparison


def _generation(path: Path, data: Mapping[str, Any]) -> Generation:
    until = (_text(path, data, "fewshot_delimiter", "\n\n"),)
    return read_generation(f"{path}: generation_kwargs", _mapping(path, data, "generation_kwargs"), until)


def read_generation(place: str, given: Mapping[str, Any], until: tuple[str, ...]) -> Generation:
    """Convert the `generation_kwargs` of lm-evaluation-harness to settings for generating answers. If they
    name no stop sequences, `until` is used. The default temperature is 0, or 1 with `do_sample: true`.
    Decoding is greedy at temperature 0, and always with `do_sample: false`.

    Raises ConfigError for unknown names and values that are not allowed.
    """
    how = dict(given)
    stops, sampled = how.pop("until", None), how.pop("do_sample", None)
    stops = until if stops is None else (stops,) if isinstance(stops, str) else stops
    if not isinstance(stops, list | tuple) or not all(isinstance(stop, str) for stop in stops):
        raise ConfigError(f"{place}.until: got {stops!r}, expected a text or a list of texts")
    numbers = {name: how.pop(name) for name in _NUMBERS if name in how}
    for name, value in numbers.items():
        if not isinstance(value, int | float | None) or isinstance(value, bool):
            raise ConfigError(f"{place}.{name}: got {value!r}, expected a number")
    if how:
        raise ConfigError(f"{place}.{next(iter(how))}: is not read here; until, do_sample, {', '.join(_NUMBERS)} are")
    temperature = numbers.get("temperature")
    if temperature is None or sampled is False:
        temperature = 1.0 if sampled else 0.0
    tokens = next((numbers[name] for name in _NUMBERS[:2] if numbers.get(name) is not None), _TOKENS)
    limits = {name: numbers[name] for name in ("top_k", "top_p") if numbers.get(name) is not None}
    made = Generation(tuple(stops), int(tokens), float(temperature), **limits)
    try:
        made.check()
    except ValueError as error:
        raise ConfigError(f"{place}.{error}") from None
    return made
