"""The corpora of a study: directories that are already built, or variants of one corpus file that the study builds.

A variant is the corpus file with some fields changed. It is built into the file's own output, so that it shares every
step that is finished there, and published under the digest of its fields: OUTPUT/variant-KEY.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from gristmill.config import load_yaml, override
from gristmill.errors import ConfigError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.parsing import parse_local
from gristmill.storage.store import digest
from pipelines.contracts.manifest import load_corpus, variant_file
from trainers.config.pretraining import Pretraining
from trainers.data.domain_weights import names_above
from trainers.data.packed_corpus import TrainingCorpus, corpus_of
from trainers.studies.schema.study_file import Study

_KEY = 16  # hexadecimal digits of the name of a variant


@dataclass(frozen=True)
class CorpusVariant:
    """The corpus file `file` with `changes`, each `a.b=value`."""

    file: str
    changes: tuple[str, ...] = ()

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return override(load_yaml(parse_local(self.file, "corpus_file")), self.changes)

    @cached_property
    def key(self) -> str:
        """A digest of all fields of the corpus file except where it is built."""
        return digest({name: value for name, value in self._fields.items() if name != "output"})[:_KEY]

    @cached_property
    def manifest(self) -> LocalPath:
        """The path of the manifest that names the variant. Raises ConfigError unless the output is a local directory."""
        output = self._fields.get("output")
        if not isinstance(output, str):
            raise ConfigError(f"{self.file}: output: got {output!r}, expected the directory of the corpus")
        return parse_local(output, f"{self.file}: output") / variant_file(self.key)

    @property
    def is_built(self) -> bool:
        """Whether the variant is published and all of its shards and tokenizers exist."""
        try:
            sets = load_corpus(self.manifest).shard_sets.values()
        except UserError:
            return False
        files = [shard.path for each in sets for shard in each.shards] + [each.tokenizer.path for each in sets]
        return all((self.manifest.parent / path).exists() for path in files)

    @property
    def shown(self) -> str:
        """The changes as a text."""
        return ", ".join(self.changes) or "as the file says"


class OpenCorpora:
    """The corpora of a study, each opened once."""

    def __init__(self) -> None:
        self._opened: dict[tuple[Any, ...], TrainingCorpus] = {}
        self._built: dict[str, bool] = {}

    def has(self, variant: CorpusVariant | None) -> bool:
        """Whether a corpus is built. A study does not build those that it names without a corpus file."""
        if variant is None:
            return True
        if variant.key not in self._built:
            self._built[variant.key] = variant.is_built
        return self._built[variant.key]

    def of(self, job: Pretraining) -> TrainingCorpus:
        """Return the corpus of a job. Raises UserError if there is none."""
        key = (job.data.corpora, job.data.shard_set, job.objective.frame)
        if key not in self._opened:
            self._opened[key] = corpus_of(job)
        return self._opened[key]


def measured_domains(corpora: Sequence[TrainingCorpus], study: Study) -> tuple[str, ...]:
    """Return the domains that a study measures: those of its metrics, by leaf, or all with held-out text that is the same
    in all `corpora`, so that their metrics compare.

    Raises ConfigError if there is none, if the study names another one, or if the tokenizers differ and the measure
    depends on them.
    """
    same = sorted(corpora[0].validation)
    if len(corpora) > 1:
        documents = [{name: _documents(corpus, name) for name in corpus.validation} for corpus in corpora]
        same = [name for name in same if all(its.get(name) == documents[0][name] for its in documents)]
        _check_tokenizers(corpora, study)
    if not same:
        raise ConfigError(f"metrics: the corpora of the study hold out different text of every domain; {_advice(same)}")
    leaves = sorted({name for corpus in corpora for name in corpus.validation})
    names: list[str] = []
    for wanted in study.metrics.domains:
        below = [leaf for leaf in leaves if wanted in names_above(leaf)]
        if not below:
            raise ConfigError(f"metrics.domains: got {wanted!r}, held-out text have {', '.join(leaves)}")
        for leaf in below:
            if leaf not in same:
                raise ConfigError(
                    f"metrics.domains: the held-out text of {leaf} differs between the corpora of the study, so its metric "
                    f"does not compare; {_advice(same)}"
                )
        names += [leaf for leaf in below if leaf not in names]
    return tuple(names) or tuple(same)


def _check_tokenizers(corpora: Sequence[TrainingCorpus], study: Study) -> None:
    tokenizers = {corpus.tokenizer.xxh3_128 for corpus in corpora}
    if len(tokenizers) > 1 and study.metrics.measure != "document_bits_per_byte":
        raise ConfigError(
            f"metrics.measure: got {study.metrics.measure}, which depends on the tokenizer, and the corpora of the study have "
            f"{len(tokenizers)} tokenizers; set it to document_bits_per_byte"
        )


def _advice(same: Sequence[str]) -> str:
    if same:
        return f"the same everywhere is that of {', '.join(same)}"
    return "give the corpus file a source with `split: validation` to which no changed step applies"


def _documents(corpus: TrainingCorpus, name: str) -> str:
    """Return a digest of the held-out documents of a domain: their ids and the bytes of their text."""
    source = corpus.validation[name]
    shards = [source.shard(number) for number in range(len(source.shards))]
    rows = [row for s in shards for row in zip(s.doc_ids.to_pylist(), np.asarray(s.n_bytes).tolist(), strict=True)]
    return digest([[identifier.hex(), size] for identifier, size in sorted(rows)])


def check_changes(section: str, study: Study, changes: Mapping[str, Any]) -> None:
    """Raise ConfigError for changes of a corpus file if the study names none, or of a field that they cannot change."""
    if changes and study.corpus_file is None:
        raise ConfigError(f"{section}.corpus: changes a corpus file; name it in corpus_file, in place of corpora")
    for name in changes:
        if name in ("name", "output") or name.startswith("remote"):
            raise ConfigError(f"{section}.corpus.{name}: cannot be changed; set it in {study.corpus_file}")
