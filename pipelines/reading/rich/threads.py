"""Compose the text of a question and its answers from the HTML in a Stack Exchange data dump."""

from pipelines.reading.web.extraction import PageLimits, fragment_text


def thread_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Compose the text of a question and its answers. Return ({"meta": {}}, text), or ({"reason": ...}, "")
    if the HTML of the question or of an answer exceeds `limits.nodes` or `limits.depth`.

    `data` holds the title as plain text, then the question and the answers as HTML, separated by NUL. The
    text begins with `Q: `, the title and the question. `A: ` precedes each answer; answers without text are
    left out. `label` is not used.
    """
    title, *bodies = data.decode().split("\0")
    texts = []
    for body in bodies:
        head, text = fragment_text(body, limits)
        if head:
            return head, ""
        texts.append(text)
    question, *answers = texts
    return {"meta": {}}, "\n\n".join(
        ["\n\n".join(filter(None, [f"Q: {title}", question])), *(f"A: {answer}" for answer in answers if answer)]
    )
