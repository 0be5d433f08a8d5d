"""Generate rows and their gold from templates, for tasks that name a generator instead of files.

A generator returns the same rows every time. The generators probe subject-verb agreement (Linzen et al.,
2016; Marvin and Linzen, 2018), the comparison of ages, adverbs of frequency, and negation between antonyms
(the last three after Talmor et al., 2020, "oLMpics"). Words, sentences and gold are our own.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from gristmill.config import near_match
from gristmill.errors import UserError
from trainers.tasks.formats.row_set import RowSet

Row = dict[str, Any]
_MOST = 300  # rows of a subtask, drawn from all combinations
_SEED = 0

_PEOPLE = ("author", "pilot", "surgeon", "farmer", "customer", "officer", "teacher", "consultant")
_OTHERS = ("guard", "chef", "dancer", "minister", "skater", "taxi driver", "architect", "executive")
_THINGS = ("key", "picture", "book", "letter", "window", "chair", "report", "machine")
_PLACES = ("cabinet", "village", "garden", "museum", "office", "street", "house", "school")
_LINKS = ("near", "behind", "next to", "in front of")
_VERBS = (("laughs", "laugh"), ("swims", "swim"), ("smiles", "smile"), ("is tall", "are tall"), ("is old", "are old"))
_STATES = (
    ("is old", "are old"),
    ("was missing", "were missing"),
    ("looks new", "look new"),
    ("has changed", "have changed"),
)
_HEARD = ("admires", "likes", "hates", "loves"), ("admire", "like", "hate", "love")


def agreement() -> list[Row]:
    """Return minimal pairs of sentences. The verb agrees with its subject in the good sentence, but not in
    the bad one. `field` says whether the sentence has another noun and, if so, whether this noun has the same
    grammatical number as the subject.
    """
    parts = {"simple": _simple, "across_a_prepositional_phrase": _prepositional, "across_a_relative_clause": _relative}
    return [
        {"good": good, "bad": bad, "subtask": f"{name}_{kind}", "field": kind}
        for name, make in parts.items()
        for kind, rows in make().items()
        for good, bad in _draw(rows)
    ]


def _noun(word: str, plural: bool) -> str:
    return word + "s" * plural


def _pair(start: str, verb: tuple[str, str], plural: bool) -> tuple[str, str]:
    return f"{start} {verb[plural]}.", f"{start} {verb[not plural]}."


def _simple() -> dict[str, list[tuple[str, str]]]:
    people = [
        _pair(f"The {_noun(who, many)}", verb, many) for who, verb, many in product(_PEOPLE, _VERBS, (False, True))
    ]
    things = [
        _pair(f"The {_noun(it, many)}", state, many) for it, state, many in product(_THINGS, _STATES, (False, True))
    ]
    return {"without_another_noun": people + things}


def _prepositional() -> dict[str, list[tuple[str, str]]]:
    made: dict[str, list[tuple[str, str]]] = {"same_number": [], "other_number": []}
    for it, link, place, state in product(_THINGS, _LINKS, _PLACES, _STATES):
        for many, others in product((False, True), repeat=2):
            start = f"The {_noun(it, many)} {link} the {_noun(place, others)}"
            made["same_number" if many == others else "other_number"].append(_pair(start, state, many))
    return made


def _relative() -> dict[str, list[tuple[str, str]]]:
    made: dict[str, list[tuple[str, str]]] = {"same_number": [], "other_number": []}
    for who, other, verb, number in product(_PEOPLE, _OTHERS, _VERBS, range(len(_HEARD[0]))):
        for many, others in product((False, True), repeat=2):
            start = f"The {_noun(who, many)} that the {_noun(other, others)} {_HEARD[others][number]}"
            made["same_number" if many == others else "other_number"].append(_pair(start, verb, many))
    return made


def _draw(rows: list[Any]) -> list[Any]:
    if len(rows) <= _MOST:
        return rows
    kept = np.random.default_rng(_SEED).choice(len(rows), _MOST, replace=False)
    return [rows[number] for number in sorted(kept.tolist())]


def age_comparison() -> list[Row]:
    """Return rows that ask whether a person of one age is younger or older than a person of another age."""
    pairs = [(a, b) for a, b in product(range(10, 91), repeat=2) if a != b]
    rows = []
    for a, b in _draw([pair for pair in pairs if pair[0] < pair[1]]):
        for first, second in ((a, b), (b, a)):
            text = f"A {first} year old person, compared with a {second} year old person, is"
            rows.append({"text": text, "candidates": ["younger", "older"], "label": int(first > second)})
    return rows


_FREQUENCIES = ["always", "sometimes", "never"]
# (subjects, {what they always do}, {what they sometimes do}, {what they never do})
_TRUTHS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("A sparrow", "An eagle", "A pigeon", "A crow", "An owl"),
        ("has a beak", "hatches from an egg", "has feathers"),
        ("sits in a tree", "is hungry", "flies at noon"),
        ("has horns", "has four legs", "has fins", "reads a newspaper"),
    ),
    (
        ("A horse", "A cow", "A dog", "A cat", "A sheep"),
        ("is a mammal", "has a heart", "is an animal"),
        ("lies in the grass", "is hungry", "is brown"),
        ("has feathers", "has fins", "has a beak", "writes letters"),
    ),
    (
        ("A salmon", "A trout", "A tuna", "A shark"),
        ("is a fish", "has fins", "lives in water"),
        ("is hungry", "swims near the shore", "is caught by people"),
        ("has legs", "has feathers", "has wings", "sings songs"),
    ),
    (
        ("A triangle", "A square", "A pentagon", "A hexagon"),
        ("has corners", "has straight sides", "is a shape"),
        ("is drawn in blue", "is drawn on paper", "is larger than a hand"),
        ("is round", "has a birthday", "is alive"),
    ),
    (
        ("A hammer", "A spoon", "A chair", "A bottle", "A shirt"),
        ("is an object", "is made by someone", "has a weight"),
        ("is old", "is blue", "is expensive"),
        ("breathes", "is hungry", "has parents", "falls asleep"),
    ),
)


def always_never() -> list[Row]:
    """Return rows that ask whether something is always, sometimes or never true."""
    rows = []
    for subjects, *kinds in _TRUTHS:
        for subject, (label, predicates) in product(subjects, enumerate(kinds)):
            for predicate in predicates:
                verb, _, rest = predicate.partition(" ")
                # A form of "be" comes before the adverb, other verbs after it.
                text, after = (f"{subject} is", rest) if verb == "is" else (subject, predicate)
                rows.append({"text": text, "passage": after, "candidates": _FREQUENCIES, "label": label})
    return rows


_ANTONYMS = (
    ("hot", "cold"), ("wet", "dry"), ("fast", "slow"), ("rich", "poor"), ("full", "empty"), ("loud", "quiet"),
    ("strong", "weak"), ("heavy", "light"), ("early", "late"), ("clean", "dirty"), ("open", "closed"), ("young", "old"),
    ("big", "small"), ("hard", "soft"), ("happy", "sad"), ("safe", "dangerous"), ("cheap", "expensive"), ("deep", "shallow"),
)  # fmt: skip
_SYNONYMS = (
    ("big", "large"), ("fast", "quick"), ("rich", "wealthy"), ("quiet", "silent"), ("hard", "difficult"), ("happy", "glad"),
    ("sad", "unhappy"), ("odd", "strange"), ("afraid", "scared"), ("clever", "smart"), ("angry", "furious"), ("cold", "freezing"),
    ("tired", "exhausted"), ("dirty", "filthy"), ("small", "tiny"), ("pretty", "beautiful"), ("wrong", "incorrect"),
    ("ill", "sick"),
)  # fmt: skip


def negation() -> list[Row]:
    """Return rows whose `text` continues with the adjective in `passage`. The candidates are words to put in
    front of the text: `not` is right if the two adjectives are antonyms, `really` if they are synonyms.
    """
    return [
        {"text": f"{first}, it was really", "passage": second, "candidates": ["not", "really"], "label": label}
        for label, pairs in ((0, _ANTONYMS), (1, _SYNONYMS))
        for one, two in pairs
        for first, second in ((one, two), (two, one))
    ]


GENERATORS: dict[str, Callable[[], list[Row]]] = {
    made.__name__: made for made in (agreement, age_comparison, always_never, negation)
}


def generated_rows(name: str) -> RowSet:
    """Return the rows of the generator `name`. Raises UserError if no generator has this name."""
    if name not in GENERATORS:
        raise UserError(
            f"files: no generator {name!r}; allowed {', '.join(GENERATORS)}{near_match(name, [*GENERATORS])}"
        )
    rows = GENERATORS[name]()
    columns: dict[str | int, list[Any]] = {key: [row[key] for row in rows] for key in rows[0]}
    return RowSet(name, columns, range(1, len(rows) + 1), "row")
