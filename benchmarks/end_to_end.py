"""Benchmark a whole build, from text to shards: wall-clock time, processor time and peak memory of its
processes.

    python -m benchmarks.end_to_end prose                              61 MB of prose in 8 files of JSON lines
    python -m benchmarks.end_to_end web --pages 990                    pages of a crawl in 8 WARC files
    python -m benchmarks.end_to_end prose --checkout OTHER             the same with another checkout, in turns
    python -m benchmarks.end_to_end prose --repeat 10 --once           609 MB of prose, only the build from nothing
    python -m benchmarks.end_to_end prose --peer-python PY --peer FILE the same work with datatrove

Each checkout builds the corpus from scratch, again with nothing changed, with one more rule and without it
again, and after `kill -9` at half the time. FILE is called as `FILE prose|web INPUT OUTPUT TOKENIZER [LID]`,
with the Python of an environment that has datatrove.

Processor time is summed over the whole process tree, and memory is the peak of the summed PSS. Both are
sampled twice a second, so the last half second of a process may be missed. Python bytecode is cached even if
PYTHONDONTWRITEBYTECODE is set.

`--repeat` writes the prose several times. From the second copy on, lower-case words of five letters or more
are replaced by others of about the same frequency. The copies are then not duplicates, and rules and
tokenizer still see ordinary prose.
"""

import argparse
import gzip
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path

from benchmarks.signals import machine
from benchmarks.verdicts import show_differences
from gristmill.storage.disk import LocalPath
from gristmill.storage.store import read_json
from pipelines.contracts.manifest import load_corpus

_FILES = 8
_LONG_WORD = re.compile(r"\b[a-z]{5,}\b")
_TICK = os.sysconf("SC_CLK_TCK")
_RULES = ", ".join(f"{{rules: {name}@datatrove}}" for name in ("gopher_repetition", "gopher_quality", "fineweb", "c4"))
_ENGLISH = "{signal: language, one_of: [en]}, {signal: language_score, at_least: 0.65}"
_STEPS = """
  - quality_signals: {}
  - peer_signals: {}
  - minhash_signatures: {normalisation: fineweb}
  - c4_lines: {rules: datatrove}
  - pii: {entities: [EMAIL_ADDRESS, IP_ADDRESS]}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["prose", "web"])
    parser.add_argument("--workers", type=int, default=2, help="Ray workers; 0 builds in one process without Ray")
    parser.add_argument("--pages", type=int, default=990, help="pages of `web`; 990 are all")
    parser.add_argument("--repeat", type=int, default=1, help="how often to write the prose, with other words")
    parser.add_argument("--once", action="store_true", help="measure only the build from nothing")
    parser.add_argument("--pairs", type=int, default=1, help="rounds of all checkouts and the peer")
    parser.add_argument("--checkout", type=Path, action="append", default=[], help="another checkout to measure")
    parser.add_argument("--peer-python", type=Path, help="Python of an environment with datatrove")
    parser.add_argument("--peer", type=Path, help="script that does the same work with datatrove")
    options = parser.parse_args()
    if "GRISTMILL_DATA" not in os.environ:
        raise SystemExit("error: set GRISTMILL_DATA to the folder of shared data")
    data, here = Path(os.environ["GRISTMILL_DATA"]), Path(__file__).parents[1]
    print(machine())
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        (work / "input").mkdir()
        if options.kind == "prose":
            write_prose(data, work / "input", options.repeat)
        else:
            write_pages(data, work / "input", options.pages)
        write_tokenizer(data, work / "gpt2.json")
        print(f"{'':24} {'run':18} {'wall':>9} {'processor':>9} {'PSS':>9}")
        for number in range(options.pairs):
            for checkout in (*options.checkout, here):
                built = work / f"{checkout.resolve().name}-{number}"
                measure_checkout(checkout.resolve(), options, work, built.name)
            if options.peer is None or options.peer_python is None or not options.peer_python.exists():
                print("datatrove: not measured; give --peer and the --peer-python of an environment that has it")
                continue
            lid = [str(data / "models" / "lid.176.ftz")] if options.kind == "web" else []
            peer = [str(options.peer_python), str(options.peer), options.kind]
            places = [str(work / "input"), str(work / f"peer-{number}"), str(work / "gpt2.json")]
            run([*peer, *places, *lid], here).show("datatrove", "from nothing")
            if number == 0:
                show_differences(built, work / "input", work / "peer-0", options.kind)


def measure_checkout(checkout: Path, options: argparse.Namespace, work: Path, name: str) -> None:
    """Measure and print the builds with one checkout, and the time budget of the build from scratch."""
    config = work / f"{name}.yaml"
    config.write_text(corpus_file(options.kind, work, work / name))
    workers = ["--workers", str(options.workers)] if options.workers else ["--in-process"]
    command = [sys.executable, "-m", "pipelines", "build", str(config), *workers]
    # The first build with a checkout compiles its kernels. Its input is the first file of each source.
    first = work / f"{name}-first.yaml"
    first.write_text(corpus_file(options.kind, work, work / "compiled", "-0.*"))
    run([*command[:4], str(first), *workers], checkout)
    whole = run(command, checkout)
    whole.show(name, "from nothing")
    budget = LocalPath(work / name) / "run.json"
    if budget.exists():  # checkouts from before builds had a budget write none
        by_purpose = read_json(budget)["by_purpose"]
        print("  " + ", ".join(f"{purpose} {seconds:.1f}" for purpose, seconds in by_purpose.items()))
    size = read_json(LocalPath(work / name) / "report.json")["totals"]["text_bytes"] / 1e6
    print(f"  {size:.1f} MB of text, {size / sum(whole.seconds.values()):.2f} MB/s per core")
    shutil.rmtree(work / "compiled")
    if options.once:
        return
    run(command, checkout).show(name, "nothing changed")
    rules = _rules(options.kind).removesuffix("]")
    stricter = f"steps.filter={rules}, {{signal: word_count, at_least: 100}}]"
    run([*command, stricter], checkout).show(name, "one more rule")
    run(command, checkout).show(name, "without it again")
    killed = f"output={work / name}-killed"
    run([*command, killed], checkout, kill_after=whole.wall / 2).show(name, "killed at half")
    run([*command, killed], checkout).show(name, "and continued")
    clean, again = (load_corpus(LocalPath(work / each)) for each in (name, f"{name}-killed"))
    assert clean.shard_sets == again.shard_sets, "a killed build ends with other shards"
    shutil.rmtree(work / f"{name}-killed")


def corpus_file(kind: str, work: Path, output: Path, files: str = "*") -> str:
    """Return the text of the corpus file; `files` is the end of the glob pattern of the input files."""
    names = ("wiki_en", "forum_20news") if kind == "prose" else ("pages",)
    read = (
        "format: jsonl, part_bytes: 16000000"
        if kind == "prose"
        else "format: warc, extract: trafilatura, max_quarantined: 1.0, part_bytes: 4000000"
    )
    sources = "\n".join(
        f"  - {{name: {name}, root: {work}/input, include: ['{name}{files}'], {read}}}" for name in names
    )
    language = (
        "" if kind == "prose" else f"\n  - language: {{models: [{os.environ['GRISTMILL_DATA']}/models/lid.176.ftz]}}"
    )
    return (
        f"name: benchmark\noutput: {output}\nsources:\n{sources}\nsteps:{language}{_STEPS}  - filter: {_rules(kind)}\n"
        f"  - dedup_minhash: {{}}\n  - shards: {{tokenizer: {work}/gpt2.json, validation_share: 0}}\n"
    )


def _rules(kind: str) -> str:
    return f"[{_RULES}]" if kind == "prose" else f"[{_ENGLISH}, {_RULES}]"


def write_prose(data: Path, target: Path, repeat: int) -> None:
    """Write two thirds of the documents of wiki_en and of forum_20news, in four files each per repetition."""
    for name in ("wiki_en", "forum_20news"):
        with gzip.open(data / "prose" / f"{name}.jsonl.gz", "rb") as source:
            lines = [line for number, line in enumerate(source) if number % 3 < 2]
        share = -(-len(lines) // (_FILES // 2))
        for number, changed in enumerate(islice(change_words(lines), repeat)):
            for part in range(_FILES // 2):
                file = target / f"{name}-{number * _FILES // 2 + part}.jsonl.gz"
                with gzip.open(file, "wb", compresslevel=3) as sink:
                    sink.writelines(changed[part * share : (part + 1) * share])


def change_words(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Yield the documents (lines of JSON) unchanged, then endlessly yield altered copies.

    In a copy, long words are shuffled within blocks of 64 words of similar frequency.
    """
    yield lines
    records = [json.loads(line) for line in lines]
    ranked = [word for word, _ in Counter(w for r in records for w in _LONG_WORD.findall(r["text"])).most_common()]
    for seed in count(1):
        shuffle, other = random.Random(seed).shuffle, {}
        for start in range(0, len(ranked), 64):
            block = ranked[start : start + 64]
            shuffle(shuffled := block.copy())
            other.update(zip(block, shuffled, strict=True))
        texts = (_LONG_WORD.sub(lambda word, other=other: other[word[0]], record["text"]) for record in records)
        yield [
            json.dumps({**record, "text": text}).encode() + b"\n" for record, text in zip(records, texts, strict=True)
        ]


def write_pages(data: Path, target: Path, pages: int) -> None:
    """Divide the first pages of a crawl into eight WARC files, keeping each record as its own gzip member."""
    from fastwarc.warc import ArchiveIterator, WarcRecordType

    path = data / "raw_web" / "trafilatura_pages.warc.gz"
    records = ArchiveIterator(str(path), parse_http=False, record_types=WarcRecordType.any_type)
    places = [(record.stream_pos, record.record_type == WarcRecordType.response) for record in records]
    content = path.read_bytes()
    ends = [place for place, _ in places[1:]] + [len(content)]
    responses = [number for number, (_, response) in enumerate(places) if response][:pages]
    share = -(-len(responses) // _FILES)
    for part in range(_FILES):
        own = responses[part * share : (part + 1) * share]
        if own:
            (target / f"pages-{part}.warc.gz").write_bytes(b"".join(content[places[n][0] : ends[n]] for n in own))


def write_tokenizer(data: Path, target: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = data / "models" / "gpt2"
    tokenizer = Tokenizer(models.BPE.from_file(str(folder / "encoder.json"), str(folder / "vocab.bpe")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(target))


@dataclass
class Measured:
    """Measurements of a command: wall-clock seconds, processor seconds by process, and the peak of summed PSS in bytes."""

    wall: float = 0.0
    seconds: dict[tuple[int, str], float] = field(default_factory=dict)
    peak: int = 0

    def show(self, name: str, what: str) -> None:
        print(
            f"{name:24} {what:18} {self.wall:7.1f} s {sum(self.seconds.values()):7.1f} s {self.peak / 1e6:6.0f} MB",
            flush=True,
        )


def run(command: list[str], checkout: Path, kill_after: float = float("inf")) -> Measured:
    """Run a command in a checkout and sample its processes; kill it after `kill_after` seconds."""
    began, result = time.monotonic(), Measured()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # without bytecode every start compiles the libraries again
    process = subprocess.Popen(
        command, cwd=checkout, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    output = process.stdout
    assert output is not None
    os.set_blocking(output.fileno(), False)
    said = b""
    while process.poll() is None:
        _sample(process.pid, result)
        said += output.read() or b""
        if time.monotonic() - began > kill_after:
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.5)
    result.wall = time.monotonic() - began
    process.wait()
    said += output.read() or b""
    if process.returncode and kill_after == float("inf"):
        raise SystemExit(f"error: {' '.join(command)} ends with {process.returncode}: {said.decode()[-2000:]}")
    output.close()
    return result


def _sample(root: int, result: Measured) -> None:
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(stat.parent.name)
        parents[number], used[number] = int(fields[1]), (fields[19], (int(fields[11]) + int(fields[12])) / _TICK)
    tree = {root}
    while more := {number for number, parent in parents.items() if parent in tree} - tree:
        tree |= more
    memory = 0
    for number in tree & used.keys():
        start, seconds = used[number]
        result.seconds[number, start] = seconds
        try:
            lines = (Path("/proc") / str(number) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        memory += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    result.peak = max(result.peak, memory)


if __name__ == "__main__":
    main()
