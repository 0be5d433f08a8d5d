"""How much of a page is links and boilerplate: fields of `meta` for rules, which no text shows once it is extracted.

Both count letters and digits of a page's text: that of all its elements without scripts and styles. Link density is that
of Kohlschütter et al. 2010 ("Boilerplate Detection using Shallow Text Features"): there the share of a block's words that
are in links, here of a page's letters, so that scripts without spaces are measured alike.
"""

import re
from typing import Any

VERSION = "1"
"""Part of what documents with these fields depend on; increase it when other values are found."""
_NO_LETTERS = re.compile(r"[\W_]+")


def page_letters(tree: Any) -> tuple[int, int]:
    """Return how many letters and digits the text of a page, resiliparse's HTMLTree, has: all, and those outside links."""
    from resiliparse.extract.html2text import extract_plain_text

    everything = extract_plain_text(tree, preserve_formatting=False, alt_texts=False)
    outside = extract_plain_text(tree, preserve_formatting=False, alt_texts=False, skip_elements=["a"])
    return _letters(everything), _letters(outside)


def page_measures(letters: tuple[int, int], text: str) -> dict[str, float]:
    """Return `page_link_density` and `page_boilerplate`, shares of 4 decimals, of a page with these letters and extracted text.

    Both are 0 for a page that shows nothing, whose text an extractor found elsewhere, such as in JSON-LD.
    """
    everything, outside = letters
    if not everything:
        return {"page_link_density": 0.0, "page_boilerplate": 0.0}
    missing = max(0.0, 1 - _letters(text) / everything)  # an extractor may find more than that
    return {"page_link_density": round(1 - outside / everything, 4), "page_boilerplate": round(missing, 4)}


def _letters(text: str) -> int:
    return len(_NO_LETTERS.sub("", text))
