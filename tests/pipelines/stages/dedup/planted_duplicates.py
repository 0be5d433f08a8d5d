"""Generates documents with planted duplicates, and the ground truth: which document is a copy of which, and
of what kind.
"""

import random
import unicodedata
from dataclasses import dataclass

_SYLLABLES = ["ba", "con", "di", "fer", "gal", "hi", "jo", "kra", "lum", "mé", "nor", "öst", "pi", "qua", "ri", "su"]


@dataclass(frozen=True)
class Planted:
    """One document. `of` is the number of the document it was made from (its own if it is an original);
    `kind` names how it was made.
    """

    text: str
    kind: str
    of: int


def words(rng: random.Random, count: int) -> list[str]:
    """Return words from a large artificial vocabulary, so that two texts share a 5-gram only by design."""
    return ["".join(rng.choices(_SYLLABLES, k=rng.randint(2, 4))) for _ in range(count)]


def edited(rng: random.Random, text: str, rate: float) -> str:
    parts = text.split(" ")
    step = max(1, round(1 / rate))
    for place in range(rng.randrange(step), len(parts), step):
        parts[place] = words(rng, 1)[0] + "x"
    return " ".join(parts)


def plant(seed: int, originals: int = 12) -> list[Planted]:
    """Return `originals` random texts of 120 words, shuffled together with documents of these kinds, the
    first six made from such a text:

    - `exact`: the same characters.
    - `near`: one word in 60 replaced (Jaccard of word 5-grams about 0.84).
    - `far`: one word in 8 replaced (about 0.23).
    - `case`: in capitals.
    - `unicode`: accents as combining marks, which reading composes.
    - `spaces`: other white space.
    - `templated`: pages that share a form of half their words.
    - `short`: copies of a single word.
    - `empty`: copies of a text without words.
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
