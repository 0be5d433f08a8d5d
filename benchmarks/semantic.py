"""Benchmark semantic deduplication against brute force, and embeddings against the bare library.

    python -m benchmarks.semantic --model DIRECTORY [--texts news_bbc,forum_stackexchange] [--documents 1000] [--tokens 64]

`--model` is a sentence encoder in the layout of Hugging Face. Texts are files of $GRISTMILL_DATA/prose.
Everything runs on one core, and rates are by processor time. "bare" is the model's own call in batches of 16
texts of similar length, with the same pooling. "brute force" is SemDeDup's rule (Abbas et al. 2023) on the
matrix of all cosines, without clusters: a document is dropped if an earlier document in the order of
preference is similar, even if that document is dropped too. A pair is similar if its cosine is at least the
threshold.

The stage does not find pairs whose documents are in different clusters ("cells"): "pairs within cells" is the
share of similar pairs with both documents in the same cell. The last two columns show how many documents of
the same texts dedup_minhash (14 x 8, Jaccard 0.7 verified) drops, and how many of these dedup_semantic drops
with a single cell.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.signals import load, machine
from gristmill.storage.disk import LocalPath
from pipelines.cluster.local import LocalCluster
from pipelines.contracts.document import DOCUMENT, document_id, file_key
from pipelines.contracts.manifest import StepOutput, read_table, schema_facts, write_table
from pipelines.contracts.parts import Annotation, Part
from pipelines.kernels.search.cosine import nearest_centroids
from pipelines.stages.dedup.dedup_minhash import DedupMinhash
from pipelines.stages.dedup.semantic.dedup_semantic import DedupSemantic
from pipelines.stages.measure.minhash_signatures import MinhashSignatures
from pipelines.stages.score.transformer_embeddings import TransformerEmbeddings

_PARTS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of a sentence encoder")
    parser.add_argument("--texts", default="news_bbc,forum_stackexchange", help="names of files, divided by commas")
    parser.add_argument("--documents", type=int, default=1000, help="first documents of each file; 0 for all")
    parser.add_argument("--tokens", type=int, default=64, help="tokens read per document")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    print(machine())
    stage = TransformerEmbeddings(model=options.model, max_tokens=options.tokens)
    stage.setup()
    for name in options.texts.split(","):
        _, texts = load([str(Path(os.environ["GRISTMILL_DATA"]) / "prose" / f"{name}.jsonl.gz")])
        texts = texts[: options.documents or None]
        documents = pa.table({"text": pa.array(texts, pa.large_string())})
        embeddings, ours = timed(lambda: stage.annotate(documents)["embedding"].combine_chunks())  # noqa: B023
        _, bare = timed(lambda: bare_embeddings(stage, texts[::10]))  # noqa: B023
        rate, peer = len(texts) / ours, len(texts[::10]) / bare
        print(
            f"{name}: {len(texts):,} documents; embeddings {rate:.1f} documents/s, bare {peer:.1f}: {rate / peer:.2f}"
        )
        compare(texts, embeddings)


def bare_embeddings(stage: TransformerEmbeddings, texts: list[str]) -> None:
    import torch

    tokenizer, model, _ = stage.loaded
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    texts = sorted(texts, key=len)
    with torch.inference_mode():
        for first in range(0, len(texts), 16):
            batch = tokenizer(
                texts[first : first + 16],
                truncation=True,
                max_length=stage.max_tokens,
                padding=True,
                return_tensors="pt",
            )
            hidden = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
            weights = batch["attention_mask"].unsqueeze(-1)
            torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1)).numpy()
    torch.set_num_threads(threads)


def compare(texts: list[str], embeddings: pa.Array) -> None:
    from threadpoolctl import threadpool_limits

    signatures = MinhashSignatures().annotate(pa.table({"text": pa.array(texts, pa.large_string())}))["minhash"]
    vectors = embeddings.flatten().to_numpy().reshape(len(texts), -1).astype(np.float32)
    with tempfile.TemporaryDirectory() as place, threadpool_limits(1):
        root = LocalPath(place)
        columns = pa.table({"embedding": embeddings, "minhash": signatures.combine_chunks()})
        parts = parts_of(root, columns, [""] * len(texts))
        minhash, _ = run(DedupMinhash(threshold=0.7, bands=14, rows=8, verify="signature"), parts, root, "minhash")
        print(
            "| threshold | cells | pairs within cells | dropped | seconds | brute force | seconds | by dedup_minhash | of these |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for threshold in (0.8, 0.9, 0.95, 0.99):
            brute, slow = timed(lambda: brute_force(vectors, threshold))  # noqa: B023
            gone: list[bool] = []
            for cells in (1, 10, 50):
                name = f"{threshold}-{cells}"
                (dropped, _), fast = timed(lambda: run(DedupSemantic(threshold, cells), parts, root, name))  # noqa: B023
                gone = gone or dropped
                both = sum(a and b for a, b in zip(gone, minhash, strict=True))
                print(
                    f"| {threshold} | {cells} | {within(vectors, centroids(root, name, vectors.shape[1]), threshold):.1%} | "
                    f"{sum(dropped):,} | {fast:.2f} | {brute:,} | {slow:.2f} | {sum(minhash):,} | {both:,} |"
                )


def brute_force(vectors: np.ndarray, threshold: float) -> int:
    centre = vectors.mean(axis=0)
    ordered = vectors[np.argsort(vectors @ centre, kind="stable")]
    cosines = np.triu(ordered @ ordered.T, 1)
    return int((cosines.max(axis=0) >= threshold).sum())


def within(vectors: np.ndarray, centres: np.ndarray, threshold: float) -> float:
    """Return the share of similar pairs with both documents in the same cell."""
    cells = nearest_centroids(vectors, centres)
    first, second = np.nonzero(np.triu(vectors @ vectors.T, 1) >= threshold)
    return float((cells[first] == cells[second]).mean()) if len(first) else 1.0


def centroids(root: LocalPath, name: str, width: int) -> np.ndarray:
    out, schema = StepOutput(root, name), pa.schema([("centroid", pa.list_(pa.float32(), width))])
    receipt = out.receipt("centroids")
    assert receipt is not None
    table = read_table(out.directory, receipt.files[0], schema.names, schema_facts(schema))
    return np.array(table["centroid"].to_pylist(), np.float32)


def parts_of(root: LocalPath, measured: pa.Table, texts: list[str]) -> list[Part]:
    parts, size = [], -(-len(texts) // _PARTS)
    for index in range(_PARTS):
        notes = measured.slice(index * size, size).combine_chunks()
        notes = notes.append_column("drop", pa.nulls(len(notes), pa.string()))
        ids = [document_id(file_key("s", f"{index}.txt"), row) for row in range(len(notes))]
        nothing = [None] * len(notes)
        sources = pa.array(["s"] * len(notes)).dictionary_encode()
        own = texts[index * size : (index + 1) * size]
        columns = {"id": ids, "text": own, "source": sources, "url": nothing, "meta": nothing}
        records = []
        for name, table in ((f"{index}.docs", pa.table(columns, schema=DOCUMENT)), (f"{index}.notes", notes)):
            (root / name).write_atomic(write_table(table))
            records.append(root.record(name))
        note = Annotation("measured", root, records[1], schema_facts(notes.schema))
        facts = (schema_facts(DOCUMENT), notes.schema, ("measured",), (note,))
        parts.append(Part("s", index, len(notes), 0, root, records[0], *facts))
    return parts


def run(stage: DedupSemantic | DedupMinhash, parts: list[Part], root: LocalPath, name: str) -> tuple[list[bool], dict]:
    out = StepOutput(root, name)
    facts, dropped = stage.run(parts, out, LocalCluster()), []
    for part in parts:
        receipt = out.receipt(part.unit)
        assert receipt is not None
        schema = schema_facts(stage.writes())
        table = read_table(out.directory, receipt.files[0], stage.writes().names, schema)
        dropped += [rule is not None for rule in table["drop"].to_pylist()]
    return dropped, facts


def timed(call):  # noqa: ANN001, ANN201
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


if __name__ == "__main__":
    main()
