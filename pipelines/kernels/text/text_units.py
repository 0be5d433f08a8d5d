"""Lines, paragraphs and sentences of documents as byte ranges, for stages that judge documents unit by unit."""

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

Unit = Literal["line", "paragraph", "sentence"]


def text_units(
    offsets: "np.ndarray", data: "np.ndarray", unit: Unit
) -> tuple["np.ndarray", "np.ndarray", "np.ndarray"]:
    """Return the document, start and end of every line, paragraph or sentence (`unit`), in order, int64
    [units] each: the index of the document, and positions in `data`. A sentence includes the white space
    after it.
    """
    import numpy as np

    from pipelines.kernels.text.buffers import blocks
    from pipelines.kernels.text.characters import classify
    from pipelines.kernels.text.segment import find_lines, find_sentences

    nothing = np.zeros(0, np.int64)
    documents, starts, ends = [nothing], [nothing], [nothing]
    for first, last, local, block in blocks(offsets, data):
        classes = classify(local, block)
        if unit == "sentence":
            spans = find_sentences(local, block, classes)
        else:
            spans = find_lines(local, block, classes)[unit == "paragraph"]
        documents.append(np.repeat(np.arange(first, last), np.diff(spans.offsets)))
        starts.append(spans.starts + np.int64(offsets[first]))
        ends.append(spans.ends + np.int64(offsets[first]))
    return np.concatenate(documents), np.concatenate(starts), np.concatenate(ends)
