"""Perplexity of a document under a KenLM n-gram model."""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from gristmill.errors import UserError
from gristmill.libraries.extras import install_extra
from gristmill.storage.store import file_checksum
from pipelines.contracts.reads_text import ReadsText
from pipelines.contracts.stage import PartStage, library_versions

_ROWS = 1024  # documents held as Python strings at a time
# How KenLM tells its binary files and compressed ones (gzip, bzip2, xz) from ARPA, which begins with \data\ after blank
# lines and comments (lm/binary_format.cc, lm/read_arpa.cc, util/read_compressed.cc).
_BINARY = (b"mmap lm http://kheafield.com/code", b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
_ARPA = (b"\\data\\", b"#")


@dataclass(frozen=True)
class Perplexity(ReadsText, PartStage):
    """Write the perplexity of a document: 10 ** (-(sum of the log10 probabilities of all lines) / (tokens +
    lines)), low for text like the model's training text.

    The model sees each non-blank line as a sentence, with marks of its beginning and its end; `+ lines`
    counts the end marks. The formula is that of CCNet (Wenzek et al. 2020, "CCNet: Extracting High Quality
    Monolingual Datasets from Web Crawl Data"), but without CCNet's normalisation: tokens are separated by
    ASCII white space, punctuation and digits are kept, and lower-casing (`lower`) is the only option. The
    text must be prepared like the model's training text, so this stage does not suit models over
    SentencePiece pieces. The perplexity of a document without tokens is null.
    """

    model: str
    """A KenLM model, ARPA or binary, relative to the working directory. Binary models load instantly and share memory."""
    lower: bool = False
    """Lower-case text first."""
    column: str = "perplexity"
    """Name of the column."""

    paths: ClassVar[tuple[str, ...]] = ("model",)

    def writes(self) -> pa.Schema:
        return pa.schema([(self.column, pa.float32())])

    def depends(self) -> dict[str, str]:
        from pipelines.kernels.text.tables import unicode_version

        versions = library_versions("kenlm") | {"model xxh3_128": self._checksum}
        return versions | unicode_version() if self.lower else versions

    def check(self) -> None:
        if find_spec("kenlm") is None:
            raise ValueError(f"model: KenLM is not installed; run: {install_extra('kenlm')}")
        if not Path(self.model).is_file():
            raise ValueError(f"model: got {self.model!r}, which is not a file; expected the path of a KenLM model")
        with Path(self.model).open("rb") as file:
            begin = file.read(4096)
        if not (begin.startswith(_BINARY) or begin.lstrip().startswith(_ARPA)):
            raise ValueError(
                f"model: {self.model} does not begin as a KenLM model does, ARPA or binary; other files, such as pickles, are "
                "not read"
            )
        if not self.column.isidentifier():
            raise ValueError(f"column: got {self.column!r}, expected letters, digits and underscores")
        super().check()

    def libraries(self) -> tuple[tuple[str, str], ...]:
        return (("kenlm", install_extra("kenlm")),)

    def setup(self) -> None:
        checksum = file_checksum(Path(self.model))
        if checksum != self._checksum:
            raise UserError(
                f"perplexity: {self.model}: its xxh3_128 is {checksum}, the build was planned with {self._checksum}; restore "
                "the planned file, or run the command again"
            )
        _ = self._kenlm

    @cached_property
    def _checksum(self) -> str:
        """The xxh3_128 of the model, computed on first use, when the build is planned."""
        return file_checksum(Path(self.model))

    @cached_property
    def _kenlm(self) -> Any:
        import kenlm

        config = kenlm.Config()
        config.show_progress = False
        config.arpa_complain = kenlm.ARPALoadComplain.NONE
        try:
            return kenlm.Model(self.model, config)
        except OSError as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"perplexity: {self.model}: not a KenLM model ({reason})") from None

    def annotate(self, docs: pa.Table) -> pa.Table:
        column = docs[self.text]
        values: list[float | None] = []
        for first in range(0, len(column), _ROWS):
            values += [self._perplexity(text) for text in column.slice(first, _ROWS).to_pylist()]
        return pa.table([pa.array(values, pa.float32())], schema=self.writes())

    def _perplexity(self, text: str) -> float | None:
        logarithm, tokens = 0.0, 0
        for line in (text.lower() if self.lower else text).encode().split(b"\n"):
            if words := len(line.split()):
                logarithm += self._kenlm.score(line)
                tokens += words + 1
        return min(10.0 ** min(300.0, -logarithm / tokens), 3.4e38) if tokens else None
