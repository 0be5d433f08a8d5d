"""Write the starter corpus file for `pipelines init`, with a source for each group of files in the given
directories.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.errors import ConflictError, UserError
from gristmill.terminal import is_utf8, printable
from pipelines.planning.starting.file_groups import FileGroup, group_files
from pipelines.planning.starting.starter_sample import StarterSample
from pipelines.stages.measure.language import UNDETERMINED

# Knobs of learn_tokenizer by bytes of the files, as they are stored: small corpora see rare pieces too seldom to learn
# them, and the smallest have too few pairs of tokens for any vocabulary.
_TOKENIZERS = (
    (1_000_000, "kind: bytes"),
    (20_000_000, "vocab_size: 4096"),
    (1_000_000_000, "vocab_size: 16384"),
)
_LARGEST_TOKENIZER = "vocab_size: 32768"
RULE_SETS = ("gopher_quality@massivetext", "gopher_repetition@massivetext")
"""The rule sets that a starter file uses."""
_SHOWN_LANGUAGES, _SHOWN_RULES = 4, 3
_PARTS = 16  # of a source, so that the workers of a small machine share it
_SMALLEST_PART, _LARGEST_PART = 2, 128  # MB; the larger one is about the default of a source


@dataclass(frozen=True)
class StarterSource:
    """A source in the starter corpus file: its name, its directory, and the group of files that it reads."""

    name: str
    root: Path
    group: FileGroup


def starter_sources(directories: Sequence[Path]) -> tuple[list[StarterSource], Counter[str]]:
    """Return a source for each group of files in the directories, and the number of files that no format
    reads, by suffix.

    Raises UserError if a directory does not exist, has a name that is not UTF-8 or no file that a format reads,
    or if the first records of a group have no text.
    """
    sources: list[StarterSource] = []
    unknown: Counter[str] = Counter()
    for directory in directories:
        if not directory.is_dir():
            raise UserError(f"{directory}: no such directory; name directories that hold the files")
        if not is_utf8(str(directory)):
            raise UserError(
                f"{directory}: its name is not UTF-8, which a corpus file cannot hold; rename the directory"
            )
        groups, others = group_files(directory)
        unknown += others
        if not groups:
            seen = ", ".join(f"{number:,} of {suffix}" for suffix, number in others.most_common(5)) or "no file"
            raise UserError(
                f"{directory}: holds nothing that a format reads ({seen}); `pipelines formats` lists the formats"
            )
        for group in groups:
            if group.text_field is None and group.turns is None:
                raise UserError(
                    f"{directory}: the first records of its {group.kind} files have no text; write the source by hand, "
                    "with the field in `text_field`"
                )
            name = _name(directory) if len(groups) == 1 else f"{_name(directory)}_{group.kind}"
            sources.append(StarterSource(_distinct(name, sources), directory, group))
    return sources, unknown


def _name(directory: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", directory.resolve().name).strip("_-") or "files"
    return name if name[0].isalpha() else f"source_{name}"


def _distinct(name: str, sources: Sequence[StarterSource]) -> str:
    taken = {source.name.lower() for source in sources}
    names = (name if number == 1 else f"{name}_{number}" for number in range(1, len(sources) + 2))
    return next(each for each in names if each.lower() not in taken)


def write_starter(
    sources: Sequence[StarterSource], name: str, file: Path, samples: Mapping[str, StarterSample] | None = None
) -> None:
    """Write a corpus file with these sources.

    `samples` maps names of sources to their samples. The file's `filter` step is not applied to sources whose
    sample is mainly in a language other than English.

    Raises ConflictError if the file exists and `samples` is None. With `samples`, an existing file is
    overwritten.
    """
    try:
        with file.open("x" if samples is None else "w", encoding="utf-8") as sink:
            sink.write(starter_text(sources, name, file, samples or {}))
    except FileExistsError:
        raise ConflictError(f"{file}: exists; remove it, or name another with --output") from None


def starter_text(sources: Sequence[StarterSource], name: str, file: Path, samples: Mapping[str, StarterSample]) -> str:
    """Return the text of a corpus file with these sources. `samples` maps names of sources to their samples;
    a source need not have one. `file` is only mentioned in comments.
    """
    prose = [source.name for source in sources if source.group.kind not in ("code", "git")]
    size, shown = sum(source.group.bytes for source in sources), printable(str(file))
    tokenizer = next((knobs for limit, knobs in _TOKENIZERS if size < limit), _LARGEST_TOKENIZER)
    lines = [
        "# Written by `pipelines init`: a start. docs/corpus_file.md explains every field.", "#",
        f"#   python -m pipelines plan  {shown}", f"#   python -m pipelines build {shown}",
        f"#   python -m pipelines whatif {shown} --sweep word_count      # after a build: what another threshold would do", "",
        f"name: {name}", f"output: data/corpora/{name}", "", "sources:",
    ]  # fmt: skip
    for source in sources:
        lines += _source_lines(source, samples.get(source.name))
    lines += ["", "steps:", *_step_lines(prose, len(prose) < len(sources), tokenizer, samples)]
    return "\n".join(lines) + "\n"


def _source_lines(source: StarterSource, sample: StarterSample | None) -> list[str]:
    group = source.group
    fields: dict[str, Any] = {"root": str(source.root), "format": group.kind, "include": list(group.patterns)}
    if group.members:
        fields["members"] = list(group.members)
    if group.text_field != "text" and group.text_field is not None:
        fields["text_field"] = group.text_field
    if group.turns is not None:
        fields["text"] = {"turns": group.turns[0], "template": group.turns[1]}
    if group.url_field != "url":
        fields["url_field"] = group.url_field
    lines = [f"  - name: {source.name}      # {group.amount}"]
    if sample is not None:
        lines.append(f"    # {sample_line(sample)}")
    # The escapes of `printable` are those of YAML in double quotes.
    lines += [f"    {name}: {printable(json.dumps(value, ensure_ascii=False))}" for name, value in fields.items()]
    part = max(_SMALLEST_PART, group.bytes // 1_000_000 // _PARTS)
    if part < _LARGEST_PART and group.bytes > part * 1_000_000:
        lines.append(f"    part_bytes: {part}e6      # several parts, so that workers share the files")
    if group.columns:
        columns = ", ".join(f"{name}: {kind}" for name, kind in group.columns)
        lines.append(f"    # columns: {{{columns}}}      # for rules; docs/sources.md")
    return [*lines, "    licence: unknown        # goes to the card of the corpus", '    origin: ""']


def sample_line(sample: StarterSample) -> str:
    """Describe the first documents of a source in one line: their languages, or why there are no documents."""
    if not sample.documents:
        return f"no documents were sampled: {printable(' '.join(sample.reason.split()))}"
    shown = [f"{name} {share:.0%}" for name, share in sample.languages[:_SHOWN_LANGUAGES]]
    more = len(sample.languages) - len(shown)
    languages = ", ".join(shown) + (f", {more} more" if more > 0 else "")
    return f"languages of its first {sample.documents:,} documents: {languages}"


def rule_lines(name: str, sample: StarterSample) -> list[str]:
    """Return a line for each rule set, with the shares of the sampled documents that the set and each of its
    strictest rules would drop, and a last line with the share that all sets together would drop. Return no
    lines if no sets were applied. Each line begins with the source's `name`.
    """
    lines = []
    for whole, *rules in (sample.dropped or {}).values():
        shown = [f"{rule.name} {rule.share:.1%}" for rule in rules[:_SHOWN_RULES]]
        more = f", {len(rules) - len(shown)} more" if len(rules) > len(shown) else ""
        by = f" ({', '.join(shown)}{more})" if shown else ""
        lines.append(f"{name}: {whole.name} would drop {whole.share:.1%} of {sample.documents:,} documents{by}")
    return [*lines, f"{name}: together they would drop {sample.dropped_by_any:.1%}"] if lines else []


def _step_lines(
    prose: Sequence[str], has_code: bool, tokenizer: str, samples: Mapping[str, StarterSample]
) -> list[str]:
    only = [f"    sources: {json.dumps(prose)}"] if has_code else []
    lines = ["  # Measure: every document gets these columns, whether it is kept or not."]
    if prose:
        lines += ["  - quality_signals: {}", *only]
    lines += ["  - text_hash: {}", "  - minhash_signatures: {}", "", "  # Decide."]
    others = [name for name in prose if name in samples and samples[name].language not in ("en", UNDETERMINED)]
    english = [name for name in prose if name not in others]
    for name in others:
        lines.append(
            f"  # {name} is not for these rules: most of it is {samples[name].language}. docs/rule_sets.md has others."
        )
    if english:
        lines += ["  - filter:                       # rules for English prose; docs/rule_sets.md has others"]
        lines += [f"      # {line}" for name in english if name in samples for line in rule_lines(name, samples[name])]
        lines += [f"      - rules: {rules}" for rules in RULE_SETS]
        lines += [f"    sources: {json.dumps(english)}"] if has_code or others else []
    return [
        *lines,
        "  - dedup_exact: {}",
        "  - dedup_minhash: {bands: 14, rows: 8, threshold: 0.75, verify: signature}",
        "",
        "  # Materialise.",
        f"  - learn_tokenizer: {{{tokenizer}}}",
        "  - shards: {tokenizer: learn_tokenizer, validation_share: 0.01}",
    ]
