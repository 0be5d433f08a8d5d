"""Compose the text of a question and its answers from the HTML in a Stack Exchange data dump."""

from pipelines.reading.web.extraction import PageLimits, fragment_text


def thread_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Return ({"meta": {}}, text) of a question with its answers, or ({"reason": ...}, "") if a piece of its
    HTML exceeds `limits.nodes` or `limits.depth`. `data` holds the title as plain text, then the question and
    the answers as HTML, separated by NUL. The text is `Q: `, the title and the body of the question, then `A:
    ` and the text of each answer that has any.
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
