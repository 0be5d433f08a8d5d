"""Write kept, edited text as token shards: one shard set per tokenizer, split into training, validation and,
if a source has it, test. With `group_by`, each group of a source has separate shards.

docs/shard_format.md describes the files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from gristmill.config import ADDED
from gristmill.errors import UserError
from gristmill.host import lent
from gristmill.storage.location import Content, FileRecord
from gristmill.storage.paths import expand_home, is_url
from gristmill.storage.store import file_checksum
from pipelines.contracts.given_split import SPLITS
from pipelines.contracts.manifest import Receipt, StepOutput, load_step
from pipelines.contracts.parts import Part
from pipelines.contracts.reads import EDITED_TEXT, Column, Drop, GivenSplits, Input, StepFiles
from pipelines.contracts.shard_set import LEVEL, SpanType, TokenizerRecord, write_shard
from pipelines.contracts.stage import Cluster, CorpusStage, gather, library_versions
from pipelines.stages.decide.quantiles import Quantiles
from pipelines.stages.materialise.given_counts import refuse_missing_splits
from pipelines.stages.materialise.group_by import DomainGroups, GroupBy, bounds_of, refuse_many_groups
from pipelines.stages.materialise.named_spans import entities_of
from pipelines.stages.materialise.optional_columns import (
    TokenColumns,
    encode_pairs,
    encode_with_columns,
    sides_of,
    without_borders,
)
from pipelines.stages.materialise.overlap import measure_overlap
from pipelines.stages.materialise.validation_split import ValidationSplit
from pipelines.stages.pii.name_finders import NameFinder, check_model, model_library, model_notice, model_versions
from tokenizer.vocabulary.specials import required_tokens

if TYPE_CHECKING:
    from tokenizer.encode import Encoder


@dataclass(frozen=True)
class Shards(CorpusStage):
    """Encode the text with one tokenizer and write it as shards. To use another tokenizer as well, repeat the
    step under another `name`.

    A Hugging Face tokenizer is used unchanged, unless `add_reserved` is given. Its special tokens are
    recorded under the reserved names of their roles: `[CLS]` as `<cls>`, `<s>` as both `<bos>` and `<cls>`,
    and `<|endoftext|>` as both `<bos>` and `<eos>`.
    """

    tokenizer: str
    """Name of a learn_tokenizer step; or the path of a `tokenizer.json` (ends in .json), or of a directory
    that contains one (has a slash).
    """
    add_reserved: tuple[str, ...] = ()
    """For a tokenizer given by path: reserved tokens to add after its vocabulary if it lacks them. List the objectives that
    will use it (`masked`, `fill_in_the_middle`, ...), single tokens (`<mask>`), or `all`. The encoding of text does not
    change."""
    split_by: Literal["cluster", "content", "file", "host"] = "cluster"
    """The unit that is never split between training and validation: duplicate clusters (a document outside
    any cluster is grouped by its content), documents with equal texts, files (an archive member is a file),
    or hosts of URLs. Not for sources with a given `split`.
    """
    validation_share: float = 0.005
    """Share of the `split_by` groups that are held out for validation. Not for sources with a given `split`."""
    sentences: bool = False
    """Write the column `sentences`: token offsets at which the sentences of a document begin, ascending."""
    shard_bytes: int = 512 << 20
    """Maximum UTF-8 bytes of text per shard, unless a single part holds more."""
    check_documents: int = 256
    """Number of kept documents at the start of each source (within its first part) that are also encoded with
    `tokenizers`, if another library encodes the shards; any difference stops the build.
    """
    seed: int = 0
    """Changes the validation split."""
    group_by: tuple[str | GroupBy, ...] = field(default=(), metadata=ADDED)
    """Columns that split each source into domains, such as `[language, {column: fineweb_edu, quantiles: 5}]`: the domain
    `web:en:q5` holds the English documents among the best fifth of `web`. See docs/domains.md."""
    spans: tuple[SpanType, ...] = field(default=(), metadata=ADDED)
    """Write the column `spans`: the tokens of the `dates` and `names` of a document, for the objective
    `salient_spans`. They are found by patterns for English (`pipelines.kernels.text.dates_and_names`), or by
    `ner_model` if it is given.
    """
    ner_model: str = field(default="", metadata=ADDED)
    """The named-entity model that finds `spans`, given as for `pii`: the name of an installed spaCy model, or the
    path of a directory with a spaCy model or a Hugging Face token classifier. It is as slow as for `pii`
    (docs/benchmarks.md).
    """
    target: bool = field(default=False, metadata=ADDED)
    """Write the column `target`, for the objectives `translation_lm` and `multitask`: the token at which the
    target of a document begins, for sources that name a target (`text: {fields: [en], target: de}`); -1 for
    documents without two sides. The two sides are encoded separately, with nothing between them. Without this
    column, a line feed separates them.
    """

    version: ClassVar[int] = 3
    makes_shards: ClassVar[bool] = True

    def check(self) -> None:
        if not 0 <= self.validation_share < 1:
            raise ValueError(f"validation_share: got {self.validation_share}, expected 0 or more and less than 1")
        if self.add_reserved and not self.is_path:
            raise ValueError(
                f"add_reserved: got {list(self.add_reserved)}, but a tokenizer trained here has all reserved tokens; remove "
                "it"
            )
        if is_url(self.tokenizer):
            raise ValueError("tokenizer: got a URL, expected a local path, or the name of a step")
        try:
            required_tokens(self.add_reserved)
        except ValueError as error:
            raise ValueError(f"add_reserved: {error}") from None
        if not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed: got {self.seed}, expected 0 to 2^63 - 1")
        for name in ("shard_bytes", "check_documents"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        for number, kind in enumerate(self.spans):
            if kind in self.spans[:number]:
                raise ValueError(f"spans[{number}]: {kind!r} occurs twice")
        if self.ner_model:
            if not self.spans:
                raise ValueError(
                    f"ner_model: got {self.ner_model!r} without `spans`, which it finds; add spans: [dates, names]"
                )
            check_model(self.ner_model, entities_of(self.spans))
        columns = [each.column for each in self.groups]
        for number, each in enumerate(self.groups):
            if each.column in columns[:number]:
                raise ValueError(f"group_by[{number}]: the column {each.column!r} occurs twice")
            try:
                each.check()
            except ValueError as error:
                raise ValueError(f"group_by[{number}]: {error}") from None

    def split(self, parts: Sequence[Part]) -> ValidationSplit:
        """Return the settings of this step's validation split. `parts` must be all parts that the step reads."""
        is_hashed = all(part.has("text_hash") for part in parts if part.given is None)
        return ValidationSplit(self.split_by, self.validation_share, self.seed, is_hashed)

    @property
    def groups(self) -> tuple[GroupBy, ...]:
        """The entries of `group_by`, all as `GroupBy` objects. In `group_by`, an entry may also be the name
        of a column.
        """
        return tuple(GroupBy(each) if isinstance(each, str) else each for each in self.group_by)

    @property
    def is_path(self) -> bool:
        """Whether `tokenizer` is a path rather than the name of a step."""
        return self.tokenizer.endswith(".json") or "/" in self.tokenizer

    @property
    def _file(self) -> Path:
        path = Path(expand_home(self.tokenizer))
        return path if path.suffix == ".json" else path / "tokenizer.json"

    def reads(self) -> tuple[Input, ...]:
        tokenizer = () if self.is_path else (StepFiles(self.tokenizer),)
        optional = {
            "cluster": ("minhash_cluster", "exact_cluster", "text_hash"),
            "content": ("text_hash",),
        }.get(self.split_by, ())
        written = [Column(name, optional=True) for name in ("minhash", *optional)]
        url = (Column("url"),) if self.split_by == "host" else ()
        groups = [Column(each.column) for each in self.groups]
        return (EDITED_TEXT, Drop(), GivenSplits(), *written, *url, *groups, *tokenizer)

    def derived_steps(self) -> Mapping[str, CorpusStage]:
        requests = [request for each in self.groups for request in each.requests()]
        return {"quantiles": Quantiles(tuple(requests))} if requests else {}

    def check_types(self, types: pa.Schema) -> None:
        for each in self.groups:
            each.check_type(types.field(each.column).type)

    def depends(self) -> dict[str, str]:
        versions = library_versions("tokenizers", "gigatoken")
        if self.ner_model:
            versions |= self._model_versions
        elif self.spans:
            from pipelines.kernels.text.dates_and_names import PATTERNS

            versions["span_patterns"] = str(PATTERNS)
        if self.is_path:
            versions["tokenizer"] = self._checksum
        return versions

    def libraries(self) -> tuple[tuple[str, str], ...]:
        return model_library(self.ner_model)

    def notice(self) -> str:
        return model_notice(self.ner_model, "without it, patterns find the spans of English")

    @cached_property
    def finder(self) -> NameFinder | None:
        """The named-entity model that finds spans, loaded on first use; None without `ner_model`."""
        return NameFinder(self.ner_model, entities_of(self.spans), "shards") if self.ner_model else None

    @cached_property
    def _model_versions(self) -> dict[str, str]:
        return model_versions(self.ner_model)

    @cached_property
    def _checksum(self) -> str:
        if not self._file.is_file():
            raise UserError(
                f"shards: tokenizer: no file {self._file}; transformers' AutoTokenizer.from_pretrained(DIR)."
                "save_pretrained(DIR) writes one for a vocabulary in another format"
            )
        return file_checksum(self._file)

    def run(self, parts: Sequence[Part], out: StepOutput, cluster: Cluster) -> dict[str, Any]:
        refuse_missing_splits(parts, cluster, out.name)
        grouping = self._grouping(out)
        if self.group_by:
            refuse_many_groups(grouping, parts, cluster, out.name)
        record, encoder = self._tokenizer(out)
        split = self.split(parts)
        first = {part.source: part.index for part in reversed(parts)}
        measures = [
            _MeasureTask(part, record.file, out, self.check_documents if first[part.source] == part.index else 0)
            for part in parts
        ]
        measured = gather(cluster, measure_kept, measures, lambda task: f"shards: part {task.part.name}")
        sizes, compared = [size for size, _ in measured], sum(number for _, number in measured)
        tasks = [
            _EncodeTask(self, out, record.file, group, number, grouping, split)
            for number, group in _groups(parts, sizes, self.shard_bytes)
        ]
        receipts = gather(cluster, encode_documents, tasks, lambda task: f"shards: {task.unit}")
        shards = [shard for receipt in receipts for shard in receipt.counts["shards"]]
        overlap = measure_overlap(split, parts, out, cluster)
        files = [asdict(file) for receipt in receipts for file in receipt.files]
        if self.is_path:
            files.append(asdict(out.directory.record("tokenizer.json")))
        return {
            "files": files,
            "tokenizer": asdict(record),
            "encoder": encoder,
            "documents_compared": compared,
            "dtype": "uint16" if record.vocab_size <= 1 << 16 else "uint32",
            "columns": [name for name in ("sentences", "spans", "target") if getattr(self, name)],
            "shards": shards,
            "overlap": overlap,
            **({"groups": grouping.facts(parts)} if self.group_by else {}),
            **({"span_types": list(self.spans)} if self.spans else {}),
        }

    def _grouping(self, out: StepOutput) -> DomainGroups:
        if "quantiles" not in out.inputs:
            return DomainGroups(self.groups, {})
        computed = load_step(out.root, out.inputs["quantiles"].name)
        assert computed is not None, f"{out.name}: a step that is read is published"
        return DomainGroups(self.groups, bounds_of(self.groups, computed.facts["thresholds"]))

    def _tokenizer(self, out: StepOutput) -> tuple[TokenizerRecord, str]:
        """Return the record of the tokenizer, and the library that encodes with it. A tokenizer given as a
        file is copied into the step.
        """
        if self.is_path:
            directory, file = out.directory, out.write("tokenizer.json", self._read_tokenizer())
        else:
            directory = out.inputs[self.tokenizer]
            learned = load_step(out.root, directory.name)
            assert learned is not None, f"{directory}: a step that is read is published"
            (file,) = learned.files
        record = replace(file, path=f"{directory.name}/{file.path}")
        try:
            encoder = _load_encoder(out, record)
        except ValueError as error:
            raise UserError(f"shards: tokenizer: {error}") from None
        return TokenizerRecord(
            **asdict(record), vocab_size=encoder.vocab_size, kind=encoder.kind, specials=encoder.specials
        ), encoder.library

    def _read_tokenizer(self) -> bytes:
        from tokenizer.vocabulary.add_reserved import add_reserved
        from tokenizer.vocabulary.definition import read_definition

        content = self._file.read_bytes()
        if xxhash.xxh3_128_hexdigest(content) != self._checksum:
            raise UserError(
                f"shards: tokenizer: {self._file} changed since the build was planned; run the command again"
            )
        if not self.add_reserved:
            return content
        try:
            return add_reserved(read_definition(str(self._file)), self.add_reserved)
        except ValueError as error:
            raise UserError(f"shards: tokenizer: {error}") from None


def _load_encoder(out: StepOutput, tokenizer: FileRecord) -> "Encoder":
    return _encoder_at(lent(out.root.verify(tokenizer)), tokenizer.xxh3_128)


@lru_cache(maxsize=2)
def _encoder_at(path: str, checksum: str) -> "Encoder":
    from tokenizer.encode import Encoder

    return Encoder.load(path)


def _groups(parts: Sequence[Part], sizes: Sequence[int], limit: int) -> list[tuple[int, tuple[Part, ...]]]:
    """Combine neighbouring parts of a source as long as their kept text fits into `limit` bytes. `sizes`
    holds the bytes of each part's kept text. Return (index of the group within its source, parts) for each
    group.
    """
    groups: list[list[Part]] = []
    filled = 0
    for part, size in zip(parts, sizes, strict=True):
        if groups and groups[-1][0].source == part.source and filled + size <= limit:
            groups[-1].append(part)
            filled += size
        else:
            groups.append([part])
            filled = size
    counter: dict[str, int] = {}
    numbered = []
    for group in groups:
        source = group[0].source
        numbered.append((counter.get(source, 0), tuple(group)))
        counter[source] = counter.get(source, 0) + 1
    return numbered


@dataclass(frozen=True)
class _MeasureTask:
    part: Part
    tokenizer: FileRecord
    out: StepOutput
    documents: int


def measure_kept(task: _MeasureTask) -> tuple[int, int]:
    """Measure the text of a part's kept documents, with edits applied, and check the encoder on the first
    `task.documents` of them. Return the size of the text in UTF-8 bytes and the number of documents checked.
    Raises UserError if the encoder's tokens differ from those of the library `tokenizers`.
    """
    if not task.documents:
        return task.part.kept_text_bytes(), 0
    part = replace(task.part, loaded=task.part.table(("id", "text")))  # read once for both
    size, table = part.kept_text_bytes(), part.table(("id", EDITED_TEXT), part.kept_rows().slice(0, task.documents))
    if not table.num_rows:
        return size, 0
    names = [f"{part.source} {identifier.hex()}" for identifier in table["id"].to_pylist()]
    try:
        return size, _load_encoder(task.out, task.tokenizer).check(table["edited_text"].chunk(0), names)
    except ValueError as error:
        raise UserError(f"{task.out.name}: {error}") from None


@dataclass(frozen=True)
class _EncodeTask:
    stage: Shards
    out: StepOutput
    tokenizer: FileRecord
    parts: tuple[Part, ...]
    number: int
    grouping: DomainGroups
    split: ValidationSplit

    @property
    def source(self) -> str:
        return self.parts[0].source

    @property
    def unit(self) -> str:
        return f"{self.source}-{self.number:05d}"


def encode_documents(task: _EncodeTask) -> Receipt:
    """Encode neighbouring parts of a source into shards, one for each combination of `group_by` group and
    split that has documents. Commit the shards and return their receipt.
    """
    receipt = task.out.receipt(task.unit)
    if receipt is None:
        grouped = (each.column for each in task.grouping.levels(task.parts[0]))
        columns = ("id", EDITED_TEXT, *task.split.columns(task.parts[0]), *grouped)
        rows = [part.kept_rows() for part in task.parts]
        tables = [part.table(columns, own) for part, own in zip(task.parts, rows, strict=True)]
        kept = pa.concat_tables(tables).combine_chunks()
        labels = [part.splits() for part in task.parts]
        given = [label.take(own) for label, own in zip(labels, rows, strict=True) if label is not None]
        numbers = task.split.assign(kept, pa.concat_arrays(given) if given else None)
        contents: dict[str, Content] = {}
        shards = []
        for group, split, mask in _shares(task.grouping.assign(kept, task.parts[0]), numbers):
            folder = "/".join([task.source, *(group.split(LEVEL) if group else ())])
            name = f"{folder}/{split}-{task.number:05d}.arrow"
            try:
                contents[name], counts = _shard(task, kept.filter(pa.array(mask)).combine_chunks(), split, group)
            except ValueError as error:
                raise UserError(f"{task.out.name}: source {task.source}: {error}") from None
            shards.append({"path": f"{task.out.name}/{name}", **_facts(task, group, split), **counts})
        receipt = task.out.commit(task.unit, contents, {"shards": shards})
    for shard in receipt.counts["shards"]:
        file = next(f for f in receipt.files if shard["path"] == f"{task.out.name}/{f.path}")
        shard.update(bytes=file.bytes, xxh3_128=file.xxh3_128)
    return receipt


def _shares(groups: pa.Array, splits: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
    encoded = groups.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    of_group = encoded.indices.to_numpy()
    for code in sorted(range(len(names)), key=names.__getitem__):
        for number, split in enumerate(SPLITS):
            if (mask := (of_group == code) & (splits == number)).any():
                yield names[code], split, mask


def _facts(task: _EncodeTask, group: str, split: str) -> dict[str, str]:
    return {"source": task.source, **({"group": group} if group else {}), "split": split}


def _shard(task: _EncodeTask, docs: pa.Table, split: str, group: str) -> tuple[Content, dict[str, int]]:
    encoder = _load_encoder(task.out, task.tokenizer)
    made, n_bytes = _encoded(encoder, docs["edited_text"].chunk(0), task.stage)
    facts = {**_facts(task, group, split), "tokenizer": encoder.kind}
    ids = docs["id"].chunk(0)
    counts = {"documents": docs.num_rows, "tokens": len(made.tokens), "text_bytes": int(n_bytes.sum())}
    if made.targets is not None:
        counts["pairs"] = int((made.targets >= 0).sum())
    columns = (made.sentences, made.spans, made.targets)
    return (lambda sink: write_shard(sink, made.tokens, made.offsets, ids, n_bytes, facts, *columns)), counts


def _encoded(encoder: "Encoder", text: pa.LargeStringArray, stage: Shards) -> tuple[TokenColumns, np.ndarray]:
    if stage.target:
        sides = sides_of(text)
        n_bytes = pc.binary_length(sides).to_numpy().reshape(-1, 2).sum(axis=1)
        return encode_pairs(encoder, sides, stage.sentences, stage.spans, stage.finder), n_bytes
    text = without_borders(text)
    made = encode_with_columns(encoder, text, stage.sentences, stage.spans, stage.finder)
    return made, pc.binary_length(text).to_numpy()
