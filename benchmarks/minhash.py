"""Benchmark MinHash signatures from text, including shingling, on one core against datasketch.

    python -m benchmarks.minhash [FILE.jsonl.gz ...]      default: $GRISTMILL_DATA/prose/wiki_en.jsonl.gz

datasketch runs in its fastest configuration (scheme "affine32", xxh32, update_batch), once over shingles made by `re` in
Python and once over shingles made beforehand. The signatures of both libraries are compared bit by bit.
"""

import re
import sys

import pyarrow as pa
import xxhash
from datasketch import MinHash

from benchmarks.signals import PEER_BYTES, first_call, head, load, machine, rate
from pipelines.stages.measure.minhash_signatures import MinhashSignatures

WORD = re.compile(r"\w+")


def shingles(text: str, ngram: int) -> list[bytes]:
    words = WORD.findall(text.lower())
    return [" ".join(words[i : i + ngram]).encode() for i in range(max(1, len(words) - ngram + 1))] if words else []


def by_datasketch(documents: list[list[bytes]], stage: MinhashSignatures) -> list[MinHash]:
    knobs = {"num_perm": stage.num_perm, "seed": stage.seed, "scheme": "affine32", "hashfunc": xxhash.xxh32_intdigest}
    return MinHash.bulk(documents, **knobs)


def main() -> None:
    names, texts = load(sys.argv[1:])
    docs = pa.table({"text": pa.array(texts, pa.large_string())})
    size = sum(len(text.encode()) for text in texts)
    stage = MinhashSignatures()
    print(machine())
    print(f"{', '.join(names)}: {len(texts):,} documents, {size / 1e6:.1f} MB; MB/s of one core's processor time")
    print(f"{stage.num_perm} permutations, word {stage.ngram}-grams")
    seconds = first_call(lambda: stage.annotate(docs[:1]))
    print(f"first call (kernels compiled or loaded, Unicode tables built): {seconds:.2f} s")
    ours = rate(lambda: stage.annotate(docs), size)
    print(f"minhash_signatures                {ours:8.2f} MB/s")
    sample, sample_size = head(texts, PEER_BYTES)
    ready = [shingles(text, stage.ngram) for text in sample]
    works = {
        "datasketch, shingling in Python": lambda: by_datasketch([shingles(t, stage.ngram) for t in sample], stage),
        "datasketch, ready-made shingles": lambda: by_datasketch(ready, stage),
    }
    for name, work in works.items():
        peer = rate(work, sample_size, repeat=1)
        print(f"{name:<33} {peer:8.2f} MB/s   we are {ours / peer:.1f} x")
    found = stage.annotate(docs[: len(sample)])["minhash"].to_pylist()
    same = sum(a == b.hashvalues.tolist() for a, b in zip(found, by_datasketch(ready, stage), strict=True))
    print(f"identical signatures: {same} of {len(sample)}")


if __name__ == "__main__":
    main()
