"""A generator of documents with planted duplicates and their ground truth: which are copies of which, and
how.
"""

import random
import unicodedata
from dataclasses import dataclass

_SYLLABLES = ["ba", "con", "di", "fer", "gal", "hi", "jo", "kra", "lum", "mé", "nor", "öst", "pi", "qua", "ri", "su"]


@dataclass(frozen=True)
class Planted:
    """One document. `of` is the number of the document it was made from, itself if original; `kind` says how."""

    text: str
    kind: str
    of: int


def words(rng: random.Random, count: int) -> list[str]:
    """Words of a large artificial vocabulary: two texts share a 5-gram only by design."""
    return ["".join(rng.choices(_SYLLABLES, k=rng.randint(2, 4))) for _ in range(count)]


def edited(rng: random.Random, text: str, rate: float) -> str:
    """The text with that share of its words, spread evenly, replaced."""
    parts = text.split(" ")
    step = max(1, round(1 / rate))
    for place in range(rng.randrange(step), len(parts), step):
        parts[place] = words(rng, 1)[0] + "x"
    return " ".join(parts)


def plant(seed: int, originals: int = 12) -> list[Planted]:
    """Originals of 120 words, in random order with what was made from them.

    exact: the same characters. near: one word in 60 replaced (Jaccard of word 5-grams about 0.84). far: one in 8 (about 0.23).
    case: in capitals. unicode: accents as combining marks, which reading composes. spaces: other white space. templated: pages
    of one form, half of each the same. short: a word, and copies. empty: no word at all, and copies.
    """
    rng = random.Random(seed)
    form = " ".join(words(rng, 60))
    made = [Planted(" ".join(words(rng, 120)), "original", number) for number in range(originals)]
    variants = {
        "exact": lambda text: text,
        "near": lambda text: edited(rng, text, 1 / 60),
        "far": lambda text: edited(rng, text, 1 / 8),
        "case": str.upper,
        "unicode": lambda text: unicodedata.normalize("NFD", text),
        "spaces": lambda text: text.replace(" ", " \n\t", 7),
    }
    for number in range(originals):
        for kind in rng.sample(sorted(variants), 3):
            made.append(Planted(variants[kind](made[number].text), kind, number))
    made += [Planted(f"{form} {' '.join(words(rng, 60))}", "templated", len(made) + i) for i in range(4)]
    for text, kind in (("Once", "short"), ("?!", "empty")):
        first = len(made)
        made += [Planted(text, kind, first) for _ in range(3)]
    order = rng.sample(range(len(made)), len(made))
    place = {old: new for new, old in enumerate(order)}
    return [Planted(made[old].text, made[old].kind, place[made[old].of]) for old in order]
