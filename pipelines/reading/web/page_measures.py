"""Measure what share of a page is links and what share is boilerplate. The extracted text alone does not show
this.

Link density follows Kohlschütter et al. 2010 ("Boilerplate Detection using Shallow Text Features"), but
counts letters and digits, not words, so that writing systems without spaces are measured in the same way.
"""

import re
from typing import Any

VERSION = "1"
"""Documents with these fields depend on this version. Increase it when a code change alters the values."""
_NO_LETTERS = re.compile(r"[\W_]+")


def page_letters(tree: Any) -> tuple[int, int]:
    """Count the letters and digits in the text of a page. Return (total, number outside links). `tree`,
    resiliparse's HTMLTree, must not have been changed by an extractor.
    """
    from resiliparse.extract.html2text import extract_plain_text

    everything = extract_plain_text(tree, preserve_formatting=False, alt_texts=False)
    outside = extract_plain_text(tree, preserve_formatting=False, alt_texts=False, skip_elements=["a"])
    return _letters(everything), _letters(outside)


def page_measures(letters: tuple[int, int], text: str) -> dict[str, float]:
    """Return `page_link_density`, the share of a page's letters and digits that are in links, and
    `page_boilerplate`, the share that is missing from `text`, the extracted text. `letters` is the result of
    `page_letters`.
    """
    everything, outside = letters
    if not everything:
        return {"page_link_density": 0.0, "page_boilerplate": 0.0}
    missing = max(0.0, 1 - _letters(text) / everything)  # an extractor may find more than that
    return {"page_link_density": round(1 - outside / everything, 4), "page_boilerplate": round(missing, 4)}


def _letters(text: str) -> int:
    return len(_NO_LETTERS.sub("", text))
