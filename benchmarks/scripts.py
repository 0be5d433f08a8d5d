"""Benchmark near-duplicate detection and repetition rules by language and script.

    GRISTMILL_DATA=... python -m benchmarks.scripts

Near-copies: documents of at least 200 units (words, or letters in scripts without spaces) in which 1 % of the
units are replaced by others of the same document. The script prints the share of copies that have a band in
common with their original (14 bands of 8 values), and the share of documents that have a band in common with
the previous document. Texts are Wikipedia for en, ko and zh, and joined sentences of $GRISTMILL_DATA/lid for
other languages.

Repetition: the shares of ordinary Wikipedia articles, and of documents with planted repetition or
boilerplate, that the second filter of corpora_configs/multilingual.yaml drops.
"""

import gzip
import json
import os
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.signals import machine
from pipelines.planning.corpus import load_corpus_config
from pipelines.stages.decide.filter import Filter
from pipelines.stages.dedup.lsh import band_keys, signatures_of
from pipelines.stages.measure.minhash_signatures import MinhashSignatures
from pipelines.stages.measure.quality_signals import QualitySignals

LETTERS, WORDS = re.compile(r"[^\W\d_a-zA-Z]|[\u0e31-\u0e4e]"), re.compile(r"\S+")
UNSPACED = ("zh", "ja", "th")
LANGUAGES = ("ja", "th", "ru", "el", "ar", "he", "hi", "bn", "ta", "ka", "hy", "vi")
LEAST, MOST, DOCUMENTS = 200, 3000, 200
RECIPE = Path(__file__).parents[1] / "corpora_configs" / "multilingual.yaml"


def units(text: str, language: str) -> list[tuple[int, int]]:
    """Return the (start, end) of a text's units, found independently of the code under test."""
    return [match.span() for match in (LETTERS if language in UNSPACED else WORDS).finditer(text)]


def wikipedia(data: Path, language: str, most: int) -> list[str]:
    with gzip.open(data / "prose" / f"wiki_{language}.jsonl.gz", "rt") as lines:
        return [json.loads(line)["text"] for _, line in zip(range(most), lines, strict=False)]


def sentences(data: Path, language: str) -> Iterator[str]:
    """Yield documents of at least LEAST units, made by joining sentences."""
    with tarfile.open(data / "lid" / "lingua_testdata.tar.gz") as archive:
        member = archive.extractfile(f"lingua_testdata/{language}.txt")
        assert member is not None
        lines = member.read().decode().splitlines()
    random.Random(0).shuffle(lines)
    document = ""
    for line in lines:
        document = f"{document} {line.strip()}"
        if len(units(document, language)) >= LEAST:
            yield document
            document = ""


def changed(text: str, language: str, rng: random.Random) -> str:
    places = units(text, language)
    for place in sorted(rng.sample(range(len(places)), round(len(places) / 100)), reverse=True):
        start, end = places[place]
        others = [text[a:b] for a, b in rng.choices(places, k=20) if text[a:b] != text[start:end]]
        text = text[:start] + rng.choice(others or ["x"]) + text[end:]
    return text


def near_copies(data: Path, language: str) -> str:
    wiki = language in ("en", "ko", "zh")
    texts = wikipedia(data, language, 5000) if wiki else list(sentences(data, language))
    texts = [text for text in texts if LEAST <= len(units(text, language)) < MOST][:DOCUMENTS]
    rng, stage = random.Random(1), MinhashSignatures()
    keys = []
    for documents in (texts, [changed(text, language, rng) for text in texts]):
        signed = stage.annotate(pa.table({"text": pa.array(documents, pa.large_string())}))["minhash"]
        keys.append(band_keys(signatures_of(signed.combine_chunks()), 14, 8))
    found = (keys[0] == keys[1]).any(axis=1).mean()
    wrong = (keys[0][1:] == keys[0][:-1]).any(axis=1).mean()
    return f"{language}  {len(texts):5}  {found:10.3f}  {wrong:9.3f}"


def planted(text: str, language: str, rng: random.Random) -> dict[str, str]:
    places, gap = units(text, language), "" if language in UNSPACED else " "
    word = 1.6 if language in UNSPACED else 1

    def phrase(words: int) -> str:
        size = round(words * word)
        first = rng.randrange(len(places) - size)
        return text[places[first][0] : places[first + size - 1][1]]

    def strewn(piece: str, share: float) -> str:
        count = round(share / (1 - share) * len(places) / len(units(piece, language)))
        out = text
        for cut in sorted((rng.choice(places)[0] for _ in range(count)), reverse=True):
            out = f"{out[:cut]}{piece}{gap}{out[cut:]}"
        return out

    paragraph, keywords = phrase(60), [phrase(2) for _ in range(5)]
    stuffed = " ".join(rng.choice(keywords) for _ in range(round(len(places) / 2 / word)))
    menu = "\n".join(phrase(2).replace("\n", " ") for _ in range(40))
    stop = "。" if language in UNSPACED else ". "
    banner = phrase(6).replace("\n", " ")
    return {
        "phrase of 2 words, 40 %": strewn(phrase(2), 0.4),
        "phrase of 5 words, 25 %": strewn(phrase(5), 0.25),
        "sentence of 20 words, 25 %": strewn(phrase(20) + stop, 0.25),
        "paragraph of 60 words, twice more": f"{text[: places[LEAST - 1][1]]}\n{paragraph}\n{paragraph}\n{paragraph}",
        "keywords, half": f"{text}\n{stuffed}",
        "line of boilerplate, 20 times": "\n".join([text[: places[LEAST - 1][1]], *[banner] * 20]),
        "menu of 40 lines": f"{text[: places[99][1]]}\n{menu}",
    }


def dropped(filtered: Filter, texts: list[str], language: str) -> float:
    measured = QualitySignals().annotate(pa.table({"text": pa.array(texts, pa.large_string())}))
    measured = measured.append_column("language", pa.array([language] * len(texts)))
    return float(pc.mean(pc.is_valid(filtered.annotate(measured)["drop"])).as_py())


def repetition(data: Path, language: str, filtered: Filter) -> None:
    texts = wikipedia(data, language, 5000)
    print(f"{language}  ordinary documents ({len(texts):,}) {dropped(filtered, texts, language):22.3f}")
    long = [text for text in texts if LEAST <= len(units(text, language)) < MOST][:DOCUMENTS]
    rng = random.Random(2)
    made = [planted(text, language, rng) for text in long]
    for name in made[0]:
        print(f"{language}  {name:<40}  {dropped(filtered, [each[name] for each in made], language):.3f}")


def quality_rules() -> Filter:
    """Return the recipe's filter over `quality_signals`, loaded so that no language model needs to be
    installed.
    """
    without_model = ["steps.language.models=[resiliparse]", "steps.language.fallback_below=null"]
    steps = load_corpus_config(RECIPE, without_model).steps
    return [step.stage for step in steps if isinstance(step.stage, Filter)][1]


def main() -> None:
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("set GRISTMILL_DATA to the directory of the development data")
    data = Path(os.environ["GRISTMILL_DATA"])
    print(machine())
    print("    documents  found (1 %)  unrelated", flush=True)
    for language in ("en", "ko", "zh", *LANGUAGES):
        print(near_copies(data, language), flush=True)
    for language in ("zh", "ko"):
        repetition(data, language, quality_rules())


if __name__ == "__main__":
    main()
