"""The corpora of a study: existing directories, or variants of one corpus file, which the study builds.

A variant is the corpus file with some fields changed. It is built in the output directory of the corpus file,
so it reuses the unchanged steps that are finished there.
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
    """A variant of the corpus file `file`, with some of its fields changed. Each of `changes` has the form
    `a.b=value`.
    """

    file: str
    changes: tuple[str, ...] = ()

    @cached_property
    def _fields(self) -> dict[str, Any]:
        return override(load_yaml(parse_local(self.file, "corpus_file")), self.changes)

    @cached_property
    def key(self) -> str:
        """A digest of all fields of the changed corpus file except its output directory."""
        return digest({name: value for name, value in self._fields.items() if name != "output"})[:_KEY]

    @cached_property
    def manifest(self) -> LocalPath:
        """The path of the variant's manifest. Raises ConfigError unless the output directory is a local path."""
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
        """The changes as text for messages and tables."""
        return ", ".join(self.changes) or "as the file says"


class OpenCorpora:
    """A cache of the corpora that a study has opened. It also caches whether each corpus variant is built."""

    def __init__(self) -> None:
        self._opened: dict[tuple[Any, ...], TrainingCorpus] = {}
        self._built: dict[str, bool] = {}

    def has(self, variant: CorpusVariant | None) -> bool:
        """Return whether the corpus of `variant` was built at the first call for it; later calls repeat the
        answer. Always True for None.
        """
        if variant is None:
            return True
        if variant.key not in self._built:
            self._built[variant.key] = variant.is_built
        return self._built[variant.key]

    def of(self, job: Pretraining) -> TrainingCorpus:
        """Return the corpus of a job, which is opened only once. Raises UserError if the corpus does not
        exist.
        """
        key = (job.data.corpora, job.data.shard_set, job.objective.frame)
        if key not in self._opened:
            self._opened[key] = corpus_of(job)
        return self._opened[key]


def measured_domains(corpora: Sequence[TrainingCorpus], study: Study) -> tuple[str, ...]:
    """Return the leaf domains that a study measures: those that its `metrics` name or, by default, all whose
    held-out text is the same in all `corpora`.

    Raises ConfigError if there are none, if the held-out text of a named domain is missing or differs between
    corpora, or if the measure depends on the tokenizer and the corpora have different tokenizers.
    """
    same = sorted(corpora[0].validation)
    if len(corpora) > 1:
        documents = [{name: _documents(corpus, name) for name in corpus.validation} for corpus in corpora]
        same = [name for name in same if all(its.get(name) == documents[0][name] for its in documents)]
        _check_tokenizers(corpora, study)
    if not same:
        raise ConfigError(f"metrics: no domain has the same held-out text in all corpora of the study; {_advice(same)}")
    leaves = sorted({name for corpus in corpora for name in corpus.validation})
    names: list[str] = []
    for wanted in study.metrics.domains:
        below = [leaf for leaf in leaves if wanted in names_above(leaf)]
        if not below:
            raise ConfigError(f"metrics.domains: got {wanted!r}, domains with held-out text are {', '.join(leaves)}")
        for leaf in below:
            if leaf not in same:
                raise ConfigError(
                    f"metrics.domains: the held-out text of {leaf} differs between the corpora of the study, so its "
                    f"metric cannot be compared; {_advice(same)}"
                )
        names += [leaf for leaf in below if leaf not in names]
    return tuple(names) or tuple(same)


def _check_tokenizers(corpora: Sequence[TrainingCorpus], study: Study) -> None:
    tokenizers = {corpus.tokenizer.xxh3_128 for corpus in corpora}
    if len(tokenizers) > 1 and study.metrics.measure != "document_bits_per_byte":
        raise ConfigError(
            f"metrics.measure: got {study.metrics.measure}, which depends on the tokenizer, but the corpora of the "
            f"study have {len(tokenizers)} tokenizers; set it to document_bits_per_byte"
        )


def _advice(same: Sequence[str]) -> str:
    if same:
        return f"domains with the same text in all corpora: {', '.join(same)}"
    return "add a source with `split: validation` to the corpus file, one that the changed steps do not process"


def _documents(corpus: TrainingCorpus, name: str) -> str:
    source = corpus.validation[name]
    shards = [source.shard(number) for number in range(len(source.shards))]
    rows = [row for s in shards for row in zip(s.doc_ids.to_pylist(), np.asarray(s.n_bytes).tolist(), strict=True)]
    return digest([[identifier.hex(), size] for identifier, size in sorted(rows)])


def check_changes(section: str, study: Study, changes: Mapping[str, Any]) -> None:
    """Check `changes`, the fields of the corpus file that an entry changes. Raises ConfigError if the study
    has no corpus file, or if one of the fields must be the same for all entries.
    """
    if changes and study.corpus_file is None:
        raise ConfigError(f"{section}.corpus: needs a corpus file to change; set corpus_file instead of corpora")
    for name in changes:
        if name in ("name", "output") or name.startswith("remote"):
            raise ConfigError(f"{section}.corpus.{name}: cannot differ between entries; set it in {study.corpus_file}")
