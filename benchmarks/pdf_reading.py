"""Benchmark the reading of PDFs against the library's own call.

    python -m benchmarks.pdf_reading FILE.pdf... [--copies 20] [--pairs 5]

The peer opens each file with pypdfium2 and takes the text of each page, in this process. Our reader loads the
file, sends it to the parser process, removes running heads and page numbers, joins divided words, normalises,
accounts for every record and writes documents into Arrow. Processor time is that of this process and its
children; in wall-clock time the reader's two processes overlap. Figures are medians over pairs of consecutive
runs. Every file is read `copies` times, so that the time to start the parser process (0.2 s) matters as
little as in a task of ordinary size.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.extraction import timed
from benchmarks.signals import machine
from pipelines.reading.documents import read_documents
from pipelines.reading.entries.listing import list_files
from pipelines.reading.sources.source import Source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--copies", type=int, default=20, help="how often each file is read in a run")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of timed runs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for copy in range(options.copies):
            for number, path in enumerate(options.files):
                (Path(scratch) / f"{copy}-{number}.pdf").symlink_to(path.resolve())
        compare(Path(scratch), options.pairs)


def bare(files: list[Path]) -> int:
    import pypdfium2

    pages = 0
    for path in files:
        with pypdfium2.PdfDocument(path.read_bytes()) as document:
            pages += sum(1 for page in document if page.get_textpage().get_text_bounded() is not None)
    return pages


def compare(root: Path, pairs: int) -> None:
    source = Source(name="benchmark", root=str(root), format="pdf")
    files = list_files(source)
    paths = [Path(file.location) for file in files]

    def reader() -> int:
        return sum(part.documents.num_rows for part in read_documents(source, files, source.part_bytes))

    pages, documents = bare(paths), reader()
    if documents != len(files):
        raise SystemExit(
            f"error: {len(files) - documents} of {len(files)} files have no text; name files with a text layer"
        )
    times = [(timed(reader), timed(lambda: bare(paths))) for _ in range(pairs)]
    print(machine())
    print(f"{pages:,} pages of {len(files)} files, {sum(file.size for file in files) / 1e6:.1f} MB")
    print(f"                     reader    bare   rate, reader / bare (median of {pairs} pairs)")
    for name, clock in (("CPU", 0), ("wall", 1)):
        ours, theirs = (statistics.median(pair[side][clock] for pair in times) for side in (0, 1))
        ratio = statistics.median(pair[1][clock] / pair[0][clock] for pair in times)
        print(f"pages/s by {name:4s} time {pages / ours:8.0f} {pages / theirs:7.0f} {ratio:8.2f}")


if __name__ == "__main__":
    main()
