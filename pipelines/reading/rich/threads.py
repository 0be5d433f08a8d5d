"""Compose the text of a question and its answers from the HTML in a Stack Exchange data dump."""

from pipelines.reading.web.extraction import PageLimits, fragment_text


def thread_text(data: bytes, label: str, limits: PageLimits) -> tuple[dict[str, object], str]:
    """Return ({"meta": {}}, text) of a question with its answers, or ({"reason": ...}, "") if the HTML of one
    of them exceeds `limits.nodes` or `limits.depth`. `label` is not used. `data` holds the title as plain
    text, then the question and the answers as HTML, separated by NUL. In the text, `Q: ` precedes the title
    and the question, and `A: ` precedes each answer. Answers without text are left out.
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
