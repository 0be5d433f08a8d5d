"""Signals computed one document at a time in plain Python: the reference for the kernels.

The code is slow, uses no arrays, and is written to be read. `signals(text)` gives every column except the
first thirteen (those are in test_quality_signals.py): integers as int, ratios as float (the columns hold them
as float32), None where the denominator is 0.

Columns with the suffix `_datatrove` follow the code of datatrove 0.10.1 (gopher_quality_filter,
gopher_repetition_filter, c4_filters, fineweb_quality_filter). `_tfds` follows tensorflow_datasets'
text/c4_utils.py. `_paper` and columns without a suffix follow the text of the papers, with our segmentation
(pipelines/kernels/text/segment.py).
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from tests.pipelines.kernels.scripts import ABUGIDA, IDEOGRAPH, TIBETAN
from tests.pipelines.kernels.test_segment import (
    reference_lines,
    reference_paragraphs,
    reference_sentences,
    reference_words,
)

Columns = dict[str, int | float | None]
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


def signals(text: str) -> Columns:
    return {
        **repetition(text),
        **repetition_datatrove(text),
        **quality_datatrove(text),
        **c4(text),
        **fineweb(text),
        **fineweb_datatrove(text),
        **redpajama(text),
        **code(text),
    }


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def size(parts: Sequence[str]) -> int:
    return sum(map(len, parts))


# --- Gopher repetition by the words of the paper (Rae et al. 2021, appendix A.1.1 and table A1) ---


def copies(parts: Sequence[str]) -> list[str]:
    seen: set[str] = set()
    return [part for part in parts if part in seen or seen.add(part)]  # type: ignore[func-returns-value]


def repetition(text: str) -> Columns:
    """Return the repetition columns of our segmentation; lines, paragraphs and words are compared
    case-sensitively.

    Ratios of characters are relative to the characters of all lines, all paragraphs or all words, so white
    space between them is not counted.
    """
    found: Columns = {}
    for name, parts in (("line", reference_lines(text)), ("paragraph", reference_paragraphs(text))):
        found[f"dup_{name}_ratio"] = ratio(len(copies(parts)), len(parts))
        found[f"dup_{name}_char_ratio"] = ratio(size(copies(parts)), size(parts))
    words = reference_words(text)
    scale = units_per_word(words)
    for n in (2, 3, 4):
        found[f"top_{n}gram_char_ratio"] = ratio(chars_of_top_ngram(words, round(scale * n)), size(words))
    for n in (5, 6, 7, 8, 9, 10):
        found[f"dup_{n}gram_char_ratio"] = ratio(chars_of_duplicate_ngrams(words, round(scale * n)), size(words))
    return found


def units_per_word(words: Sequence[str]) -> float:
    """Return how many units count as one word: 1 word, 1.6 Han or kana letters or Tibetan syllables, 3
    Southeast Asian letters, and the harmonic mean for mixed text.
    """
    held = 0.0
    for word in words:
        ideograph = IDEOGRAPH.match(word) or TIBETAN.match(word)
        held += 1 / (1.6 if ideograph else 3.0 if ABUGIDA.match(word) else 1.0)
    return len(words) / held if words else 1.0


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def chars_of_top_ngram(words: Sequence[str], n: int) -> int:
    """Count the characters of words inside the most frequent n-gram, each word once; 0 unless the n-gram
    occurs twice.

    If several n-grams are equally frequent, the first one counts.
    """
    grams = ngrams(words, n)
    counts = Counter(grams)
    if not counts or max(counts.values()) < 2:
        return 0
    top = max(counts, key=lambda gram: counts[gram])  # max takes the first of equals; a Counter keeps the order
    inside = {i + k for i, gram in enumerate(grams) if gram == top for k in range(n)}
    return size([words[i] for i in inside])


def chars_of_duplicate_ngrams(words: Sequence[str], n: int) -> int:
    """Count the characters of words inside n-grams that occur twice or more, including the first occurrence, each word once."""
    grams = ngrams(words, n)
    counts = Counter(grams)
    inside = {i + k for i, gram in enumerate(grams) if counts[gram] > 1 for k in range(n)}
    return size([words[i] for i in inside])


# --- datatrove's word tokens ---
#
# datatrove splits English with spaCy's blank tokenizer, whose rules are about 1,500 exceptions and some regular expressions.
# The rules below are those that matter: over 150 documents of all shared sources, 81,000 tokens, they differ from spaCy's in
# about 300 places, most of them "im" that spaCy takes apart into "i m".


def code_points(ranges: str) -> frozenset[str]:
    bounds = [tuple(int(bound, 16) for bound in part.split("-")) for part in ranges.split()]
    return frozenset(chr(code) for low_high in bounds for code in range(low_high[0], low_high[-1] + 1))


# Marks that end a sentence in some script. spaCy's sentencizer knows all but 31 rare ones of them.
TERMINAL = code_points(
    "21 2E 3F 589 61D-61F 6D4 700-702 7F9 837 839 83D-83E 964-965 104A-104B 1362 1367-1368 166E 1735-1736 17D4-17D6 "
    "17D9-17DA 1803 1809 1944-1945 1AA8-1AAB 1B5A-1B5B 1B5E-1B5F 1B7D-1B7E 1C3B-1C3C 1C7E-1C7F 203C-203D 2047-2049 2E2E "
    "2E3C 2E53-2E54 3002 A4FF A60E-A60F A6F3 A6F7 A876-A877 A8CE-A8CF A92F A9C8-A9C9 AA5D-AA5F AAF0-AAF1 ABEB FE52 "
    "FE56-FE57 FF01 FF0E FF1F FF61 10A56-10A57 10F55-10F59 10F86-10F89 11047-11048 110BE-110C1 11141-11143 111C5-111C6 "
    "111CD 111DE-111DF 11238-11239 1123B-1123C 112A9 1144B-1144C 115C2-115C3 115C9-115D7 11641-11642 1173C-1173E 11944 "
    "11946 11A42-11A43 11A9B-11A9C 11C41-11C42 11EF7-11EF8 11F43-11F44 16A6E-16A6F 16AF5 16B37-16B38 16B44 16E98 1BC9F "
    "1DA88"
)
# A token of nothing but these is a symbol, not a word: ASCII punctuation, control characters, some others (the full-width
# digit one among them).
SYMBOLS = TERMINAL | code_points(
    "0-8 B-1F 21-2F 3A-40 5B-60 7B-9F AB B4 BB 2013-2014 2019 201C-201E 2026 2236 2501 25BA 3001 3008-300D 3010-3011 FF05 "
    "FF08-FF09 FF0C FF11 FF1A-FF1B FF5E"
)
PUNCTUATION = frozenset("…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪")
QUOTES = frozenset("'\"”“`‘´’‚,„»«「」『』（）〔〕【】《》〈〉〈〉⟦⟧")
CURRENCY = frozenset("$£€¥฿₽﷼₴₠₡₢₣₤₥₦₧₨₩₪₫₭₮₯₰₱₲₳₵₶₷₸₹₺₻₼₾₿")
HYPHENS = frozenset("-–—~")
DIGITS = frozenset("0123456789")
WITH_STOP = frozenset(
    re.findall(
        r"\S+",
        "a.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs. Mo. Mont. "
        "Mr. Mrs. Ms. p.m. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo. Conn. Dec. "
        "Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss. Neb. Nebr. Nev. "
        "Nov. Oct. Okla. Ore. Pa. Sep. Sept. Tenn. Va. Wash. Wis.",
    )
)
CLITICS = ("n't", "'re", "'ve", "'ll", "'s", "'m", "'d")  # in any case; ’ stands for '

category = cache(unicodedata.category)


def letter(c: str) -> bool:
    return category(c)[0] == "L"


def upper(c: str) -> bool:
    """Return whether a character is a letter other than a lower-case one; letters of scripts without case are both upper and
    lower.
    """
    return letter(c) and category(c) != "Ll"


def lower(c: str) -> bool:
    return letter(c) and category(c) != "Lu"


def edge(c: str) -> bool:
    """Return whether a character is a token of its own at either end of a chunk. Category `So` covers emoji and other
    pictographs.
    """
    return c in PUNCTUATION or c in QUOTES or category(c) == "So"


@lru_cache(maxsize=8)  # several columns ask for those of one text
def datatrove_tokens(text: str) -> list[str]:
    """Split a text into tokens. Chunks between white space lose tokens at the front, then at the back, and
    what remains is split inside.
    """
    return [token for chunk in text.split() for token in tokens_of_chunk(chunk)]


def tokens_of_chunk(chunk: str) -> list[str]:
    front: list[str] = []
    back: list[str] = []
    while chunk and (taken := length_off_front(chunk)):
        front.append(chunk[:taken])
        chunk = chunk[taken:]
    while chunk and (taken := length_off_back(chunk)):
        back.append(chunk[-taken:])
        chunk = chunk[:-taken]
    middle = [chunk] if not chunk or is_url(chunk) else split_inside(chunk)
    return [token for token in (*front, *middle, *reversed(back)) if token]


def dots(chunk: str, start: int) -> int:
    return len(chunk) - start - len(chunk[start:].lstrip("."))


def length_off_front(chunk: str) -> int:
    first = chunk[0]
    if dots(chunk, 0) > 1:
        return dots(chunk, 0)
    if first == "+":
        return int(chunk[1:2] not in DIGITS)
    return int(edge(first) or first in CURRENCY or first in "§%=—–")


def length_off_back(chunk: str) -> int:
    last, before = chunk[-1], chunk[-2:-1]
    if last == ".":
        if before == ".":
            return len(chunk) - len(chunk.rstrip("."))
        if chunk in WITH_STOP or not before:
            return 0
        two_capitals = upper(before) and len(chunk) > 2 and upper(chunk[-3])
        return int(before in DIGITS or lower(before) or before in "%²-+" or edge_mark(before) or two_capitals)
    if edge(last) or last in "—–":
        return 1
    if before in DIGITS and (last in CURRENCY or last in "+%"):
        return 1
    ending = chunk[-3:].lower().replace("’", "'")
    return next((len(c) for c in CLITICS if ending.endswith(c) and len(chunk) > len(c)), 0)


def edge_mark(c: str) -> bool:
    return c in PUNCTUATION or c in QUOTES


def is_url(chunk: str) -> bool:
    """Return whether a chunk has the form [letters://][user@]host[: / ? # anything], where the host has a dot and ends with
    two or more lower-case letters.
    """
    start = chunk.find("://") + 3
    if start == 2:
        start = 0
    elif not all(map(letter, chunk[: start - 3])):
        return False
    end = after_host(chunk, start)
    if chunk[end : end + 1] == "@":
        start = end + 1
        end = after_host(chunk, start)
    if end < len(chunk) and chunk[end] not in ":/?#":
        return False
    dot = chunk.rfind(".", start, end)
    return dot > start and end - dot > 2 and all(map(lower, chunk[dot + 1 : end]))


def after_host(chunk: str, start: int) -> int:
    end = start
    while end < len(chunk) and (category(chunk[end])[0] in "LN" or chunk[end] in "-_.+"):
        end += 1
    return end


def split_inside(chunk: str) -> list[str]:
    tokens: list[str] = []
    begin, i = 0, 1
    while i < len(chunk):
        length = length_inside(chunk, i)
        if length:
            tokens += [chunk[begin:i], chunk[i : i + length]]
            begin = i = i + length
        else:
            i += 1
    return [token for token in (*tokens, chunk[begin:]) if token]


def length_inside(chunk: str, i: int) -> int:
    """Return the length of a token at `i` that splits the chunk, or 0 if there is none."""
    c, before = chunk[i], chunk[i - 1]
    if dots(chunk, i) > 1:
        return dots(chunk, i)
    if c == "…" or category(c) == "So":
        return 1
    if c in HYPHENS:
        length = 1
        while c in "-—" and length < 3 - (c == "—") and chunk[i + length : i + length + 1] == c:
            length += 1
        after = chunk[i + length : i + length + 1]
        if after and letter(after) and (letter(before) or before in DIGITS):
            return length
    after = chunk[i + 1 : i + 2]
    if not after:
        return 0
    splits = (
        (c in "+-*^" and before in DIGITS and (after in DIGITS or after == "-"))
        or (c == "." and (lower(before) or before in QUOTES) and (upper(after) or after in QUOTES))
        or (c == "," and letter(before) and letter(after))
        or (c in ":<>=/" and (letter(before) or before in DIGITS) and letter(after))
    )
    return int(splits)


# --- Gopher repetition and quality as datatrove computes them ---


def repetition_datatrove(text: str) -> Columns:
    """Return datatrove's repetition columns. Ratios of characters are relative to the whole text. With fewer
    than n tokens, the column of the top n-gram is None and that of duplicate n-grams is 0; if the text is
    empty, all are None.
    """
    found: Columns = {}
    paragraphs = re.split("\n{2,}", text.strip())
    for name, parts in (("line", re.split("\n+", text)), ("paragraph", paragraphs)):
        found[f"dup_{name}_ratio_datatrove"] = ratio(len(copies(parts)), len(parts)) if text else None
        found[f"dup_{name}_char_ratio_datatrove"] = ratio(size(copies(parts)), len(text))
    tokens = datatrove_tokens(text)
    for n in (2, 3, 4):
        counts = Counter(ngrams(tokens, n))
        top = max(counts, key=lambda gram: counts[gram], default=None)  # the first of the most frequent
        # Joined by spaces and times its count, even where that is 1 or where occurrences overlap.
        found[f"top_{n}gram_char_ratio_datatrove"] = top and ratio((size(top) + n - 1) * counts[top], len(text))
    for n in (5, 6, 7, 8, 9, 10):
        found[f"dup_{n}gram_char_ratio_datatrove"] = ratio(chars_of_duplicates_datatrove(tokens, n), len(text))
    return found


def chars_of_duplicates_datatrove(tokens: Sequence[str], n: int) -> int:
    """Count the characters of n-grams seen before. Such an n-gram is skipped as a whole: n-grams that overlap
    it are neither tested nor remembered.
    """
    seen: set[tuple[str, ...]] = set()
    chars, i = 0, 0
    while i <= len(tokens) - n:
        gram = tuple(tokens[i : i + n])
        if gram in seen:
            chars += size(gram)
            i += n
        else:
            seen.add(gram)
            i += 1
    return chars


def quality_datatrove(text: str) -> Columns:
    """Return datatrove's Gopher quality columns. Words are tokens that are not symbols; ratios of words are
    relative to all tokens; lines are those of str.splitlines, blank or not.
    """
    tokens = datatrove_tokens(text)
    words = [token for token in tokens if not all(c in SYMBOLS for c in token)]
    lines = text.splitlines()
    return {
        "word_count_datatrove": len(words),
        "mean_word_length_datatrove": ratio(size(words), len(words)),
        "hash_to_word_ratio_datatrove": ratio(text.count("#"), len(tokens)),
        "ellipsis_to_word_ratio_datatrove": ratio(text.count("...") + text.count("…"), len(tokens)),
        "bullet_line_ratio_datatrove": ratio(sum(line.lstrip().startswith(("•", "-")) for line in lines), len(lines)),
        "ellipsis_line_ratio_datatrove": ratio(sum(line.rstrip().endswith(("...", "…")) for line in lines), len(lines)),
        "alpha_word_ratio_datatrove": ratio(sum(any(map(letter, token)) for token in tokens), len(tokens)),
        "stop_word_count_datatrove": len(set(tokens) & set(STOP_WORDS)),  # in lower case only
    }


# --- C4 (Raffel et al. 2020, section 2.2) ---

LOREM, CURLY, KEPT = "lorem_ipsum", "curly_bracket", "kept"
POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
MARKER = re.compile(r"\[[0-9]*\]|\[edit\]|\[citation needed\]")


class C4Line(NamedTuple):
    """A line [start, end) of the text without its terminator, and its verdict."""

    start: int
    end: int
    verdict: str
    """The first test that the line fails, or KEPT. LOREM and CURLY drop the page."""
    sentences: int
    """Of a kept line; otherwise 0."""
    markers: tuple[tuple[int, int], ...]
    """Citation markers [start, end) within a kept line."""


def c4(text: str) -> Columns:
    """Return the C4 columns. In the two implementations, testing of a line stops at the first test that it
    fails, so a line dropped earlier cannot drop the page; in the paper, any line can.
    """
    found: Columns = {}
    for variant in ("paper", "tfds", "datatrove"):
        lines = list(c4_lines(text, variant))
        found[f"c4_sentences_{variant}"] = sum(line.sentences for line in lines)
        if variant == "paper":  # any page where it appears, on whatever line
            found["c4_lorem_ipsum_paper"] = sum(holds(text[line.start : line.end], "lorem ipsum") for line in lines)
            found["c4_curly_paper"] = sum("{" in text[line.start : line.end] for line in lines)
        else:
            found[f"c4_lorem_ipsum_{variant}"] = sum(line.verdict == LOREM for line in lines)
            found[f"c4_curly_{variant}"] = sum(line.verdict == CURLY for line in lines)
    return found


def holds(line: str, phrase: str) -> bool:
    return re.search(re.escape(phrase), line, re.IGNORECASE | re.ASCII) is not None


def c4_lines(text: str, variant: str, without: Collection[str] = ()) -> Iterator[C4Line]:
    """Yield every line of a document: split at line feeds for the paper, by str.splitlines for the two implementations."""
    verdict, sentences = C4_TESTS[variant]
    cited = "citation" not in without
    start = 0
    for piece in re.findall("[^\n]*\n|[^\n]+", text) if variant == "paper" else text.splitlines(keepends=True):
        line = piece.removesuffix("\n") if variant == "paper" else piece.splitlines()[0]
        stripped = line.strip()
        outcome = verdict(stripped, without)
        kept = outcome == KEPT
        markers = [(start + m.start(), start + m.end()) for m in MARKER.finditer(line)] if kept and cited else []
        clean = MARKER.sub("", stripped).strip() if cited else stripped
        yield C4Line(start, start + len(line), outcome, sentences(clean) if kept else 0, tuple(markers))
        start += len(piece)


def verdict_paper(line: str, without: Collection[str] = ()) -> str:
    """Judge a line as the paper does: without citation markers, by the line rules in the paper's order. Page rules are not
    tested here.
    """
    if "citation" not in without:
        line = MARKER.sub("", line).strip()
    if "terminal_punctuation" not in without and not line.endswith((".", "!", "?", '"', "”")):
        return "terminal_punctuation"
    if "few_words" not in without and len(reference_words(line)) < 5:
        return "few_words"
    return after_page_tests(line, without)


def after_page_tests(line: str, without: Collection[str]) -> str:
    if "javascript" not in without and holds(line, "javascript"):
        return "javascript"
    return "policy" if "policy" not in without and any(holds(line, policy) for policy in POLICIES) else KEPT


def verdict_tfds(line: str, without: Collection[str] = ()) -> str:
    if "long_word" not in without and any(len(word) > 1000 for word in line.split()):
        return "long_word"
    if "citation" not in without:
        line = MARKER.sub("", line)  # and not stripped again: "text. [1]" ends with a space, so it is dropped
    if "terminal_punctuation" not in without and (not line.endswith((".", "?", "!", '"')) or line.endswith("...")):
        return "terminal_punctuation"
    if "few_words" not in without and len(line.split()) < 5:
        return "few_words"
    return with_page_tests(line, without)


def verdict_datatrove(line: str, without: Collection[str] = ()) -> str:
    words = line.split()  # counted with the markers
    if "long_word" not in without and any(len(word) > 1000 for word in words):
        return "long_word"
    if "citation" not in without:
        line = MARKER.sub("", line)
    if "terminal_punctuation" not in without and (not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...")):
        return "terminal_punctuation"
    if "few_words" not in without and len(words) < 3:
        return "few_words"
    return with_page_tests(line, without)


def with_page_tests(line: str, without: Collection[str]) -> str:
    if "lorem_ipsum" not in without and holds(line, "lorem ipsum"):
        return LOREM
    if "javascript" not in without and holds(line, "javascript"):
        return "javascript"
    if "curly_bracket" not in without and "{" in line:
        return CURLY
    return after_page_tests(line, without)


def sentences_datatrove(line: str) -> int:
    """Count sentences as spaCy's sentencizer does: after a terminal mark, the next token that is not punctuation begins a
    sentence.
    """
    found, ended = 1, False
    for token in datatrove_tokens(line):
        if token in TERMINAL:
            ended = True
        elif ended and not all(category(c)[0] == "P" for c in token):
            found, ended = found + 1, False
    return found


def sentences_ours(line: str) -> int:
    return len(reference_sentences(line))


C4_TESTS: dict[str, tuple[Callable[[str], str], Callable[[str], int]]] = {
    "paper": (verdict_paper, sentences_ours),
    "tfds": (verdict_tfds, sentences_ours),  # NLTK's Punkt there, a trained model
    "datatrove": (verdict_datatrove, sentences_datatrove),
}


# --- FineWeb (Penedo et al. 2024, section 3, "custom filters") ---


def fineweb(text: str) -> Columns:
    """Return the FineWeb columns; the paper's third filter is Gopher's dup_line_char_ratio with another threshold."""
    lines = reference_lines(text)
    ends = (*".!?…‼⁇⁈⁉؟۔։।॥።၊။។៕。｡！？．", '"', "'", "”", "’")  # sentence stops of segment.py, and quotation marks
    return {
        "terminal_line_ratio": ratio(sum(line.endswith(ends) for line in lines), len(lines)),
        "short_line_ratio": ratio(sum(len(line) < 30 for line in lines), len(lines)),  # "shorter than 30 characters"
    }


def fineweb_datatrove(text: str) -> Columns:
    """Return datatrove's FineWeb columns. Lines are split at line feeds alone and keep white space at their
    ends; blank lines are left out.
    """
    lines = [line for line in text.split("\n") if line.strip()]
    return {
        "terminal_line_ratio_datatrove": ratio(sum(line[-1] in TERMINAL for line in lines), len(lines)),
        "short_line_ratio_datatrove": ratio(sum(len(line) <= 30 for line in lines), len(lines)),
        "dup_line_char_ratio_fineweb_datatrove": ratio(size(copies(lines)), len(text) - text.count("\n")),
        "newline_to_word_ratio_datatrove": ratio(text.count("\n"), len(datatrove_tokens(text))),
    }


# --- RedPajama-v2 (Weber et al. 2024, table of quality signals): those of the text alone that no column above holds ---


def redpajama(text: str) -> Columns:
    words = reference_words(text)
    chars = len(text)
    counts = Counter(words)
    symbols = text.count("#") + text.count("...") + text.count("…")
    return {
        "curly_bracket_ratio": ratio(text.count("{") + text.count("}"), chars),
        "all_caps_word_ratio": ratio(sum(map(all_capitals, words)), len(words)),
        "unique_word_ratio": ratio(len(counts), len(words)),
        "unigram_entropy": entropy(list(counts.values())),
        "numerical_char_ratio": ratio(sum(category(c)[0] == "N" for c in text), chars),
        "uppercase_char_ratio": ratio(sum(category(c) == "Lu" for c in text), chars),
        "stop_word_ratio": ratio(sum(word.lower() in STOP_WORDS for word in words), len(words)),  # Gopher's eight
        "lorem_ipsum_ratio": ratio(len(re.findall("lorem ipsum", text, re.IGNORECASE | re.ASCII)), chars),
        "javascript_line_count": sum(holds(line, "javascript") for line in reference_lines(text)),
        "symbol_to_word_ratio": ratio(symbols, len(words)),
    }


def code(text: str) -> Columns:
    """Return the columns that follow Codex (Chen et al. 2021, section 3.1) and The Stack: lengths of lines,
    and the share of letters.
    """
    sizes = [len(line) for line in reference_lines(text)]
    return {
        "max_line_chars": max(sizes, default=0),
        "mean_line_chars": ratio(sum(sizes), len(sizes)),
        "alpha_char_ratio": ratio(sum(map(letter, text)), len(text)),
    }


def all_capitals(word: str) -> bool:
    return any(category(c) == "Lu" for c in word) and not any(category(c) == "Ll" for c in word)


def entropy(counts: list[int]) -> float | None:
    total = sum(counts)
    return math.log(total) - math.fsum(c * math.log(c) for c in counts) / total if total else None
