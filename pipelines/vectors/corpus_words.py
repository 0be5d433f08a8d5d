"""Write the words of a corpus's kept documents to a file for fastText, one document per line. The words are
those of the edited text.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import BinaryIO

from pipelines.contracts.lineage import Corpus
from pipelines.contracts.parts import Part


def write_words(corpus: Corpus, sources: Sequence[str], lower: bool, sink: BinaryIO) -> Counter[str]:
    """Write one line for every kept document of `sources`: the words of its edited text, separated by spaces.
    Return how often each word occurs.

    No word begins with `<`, so fastText cannot mistake one for its end-of-line mark `</s>`.
    """
    counts: Counter[str] = Counter()
    for source in sources:
        for part in corpus.parts(source):
            for words in _documents(part, lower):
                counts.update(words)
                sink.write(" ".join(words).encode() + b"\n")
    return counts


def _documents(part: Part, lower: bool) -> Iterator[list[str]]:
    from pipelines.kernels.text.buffers import blocks, text_buffers
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.words import find_words

    texts = part.table(("edited_text",), part.kept_rows())["edited_text"]
    for _, _, offsets, data in blocks(*text_buffers(texts)):
        words, content = find_words(offsets, data, classify(offsets, data)), data.tobytes()
        spans = list(zip(words.starts.tolist(), words.ends.tolist(), strict=True))
        for first, last in zip(words.offsets[:-1].tolist(), words.offsets[1:].tolist(), strict=True):
            # Joined before they are decoded: one call for a document instead of one for a word.
            text = b" ".join([content[start:end] for start, end in spans[first:last]]).decode()
            yield (text.lower() if lower else text).split(" ") if text else []
