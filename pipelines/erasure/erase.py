"""The commands forget and gc: what they do, said to people."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from gristmill.config import load_yaml
from gristmill.errors import ConfigError, CorruptFileError, UserError
from gristmill.storage.lease import lock
from gristmill.storage.location import RemotePath
from gristmill.storage.paths import is_url
from gristmill.storage.store import read_json
from gristmill.terminal import human_bytes, printable
from pipelines.contracts.lineage import Corpus, Located, open_corpus
from pipelines.erasure.forget import find_documents, forget
from pipelines.erasure.gc import find_unreached, remove
from pipelines.erasure.scan import probes_of, scan
from pipelines.planning.corpus import CorpusConfig
from pipelines.planning.tombstone import read_tombstone


def erase(directory: Path, ids: Path | None, urls: Path | None, runs: Path | None) -> None:
    """Forget the documents that the files name, one per line; say what was done, and prove by a scan that they are gone."""
    console = Console(highlight=False, markup=False)
    _check_local(directory)
    corpus = open_corpus(directory)
    identifiers, addresses = _lines(ids), _lines(urls)
    keys, texts = _held(corpus, identifiers, addresses)
    probes = probes_of(texts)
    texts.clear()
    with lock(directory, "forgetting documents", console.print, wait=False):
        names, written = forget(directory, identifiers, addresses)
    for name in names:
        console.print(f"forgotten: {printable(name)}", soft_wrap=True)
    console.print(
        f"{written} files written again; counts, funnel and manifest are those of what is left", soft_wrap=True
    )
    hits, files, size = scan(directory, probes, keys)
    console.print(
        f"scanned {files} files, {human_bytes(size)}: {len(probes)} stretches of the removed texts and {len(keys)} ids"
    )
    after = open_corpus(directory)
    others = sorted({after.printed_id(identifier) for hit in hits for identifier in hit.ids if identifier not in keys})
    left = [hit.path for hit in hits if not hit.ids or any(identifier in keys for identifier in hit.ids)]
    if left:
        raise CorruptFileError(f"{directory}: still there, in {', '.join(left)}; this is a defect: please report it")
    if others:
        console.print(
            "none of them is left; the same words also stand in other documents, which you may want to forget too:"
        )
        for name in others:
            console.print(f"  {printable(name)}", soft_wrap=True)
    else:
        console.print("nothing is left of them")
    for line in _trained(runs, directory) if runs is not None else ():
        console.print(line, soft_wrap=True)
    console.print("Exports made before hold them still; `build` writes the report again.")


def _held(corpus: Corpus, identifiers: Sequence[str], addresses: Sequence[str]) -> tuple[list[bytes], list[str]]:
    """Ids and, where they are still there, texts of the documents to forget and of those that are half forgotten."""
    half_done = [corpus.find(doc["id"]) for doc in read_tombstone(corpus.directory)["pending"]]
    found = half_done or find_documents(corpus, identifiers, addresses)
    located = [each for each in found if isinstance(each, Located)]
    return [each.id for each in found], [each.part.table(("text",))["text"][each.row].as_py() for each in located]


def _check_local(place: Path) -> None:
    if isinstance(place, RemotePath):
        raise UserError(f"{place}: forget and gc work on directories: copy the corpus to one, and back when it is done")


def _lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; expected one id or URL a line") from None
    return [line for line in lines if line and not line.startswith("# ")]


def _trained(runs: Path, directory: Path) -> list[str]:
    """A line per training run under a directory that was given this corpus while it held what is forgotten now.

    A run is known by the corpus's fingerprints of those times; one that was given it in another state, or among other corpora, by
    the directory that its configuration names.
    """
    before = read_tombstone(directory)["before"]
    found = []
    for record in sorted(runs.rglob("run.json")):
        try:
            value = read_json(record, "restore it from a copy")
            marks = [
                value.get("fingerprints", {}).get("corpus"),
                *(each["corpus"] for each in value.get("earlier", ())),
            ]
            data = load_yaml(record.with_name("resolved.yaml")).get("data") or {}
        except CorruptFileError as error:
            if record.with_name("resolved.yaml").exists():  # a run of ours
                found.append(f"cannot tell whether it was trained on the corpus: {error}")
            continue
        except ConfigError:
            data = {}
        if not set(before).isdisjoint(marks):
            found.append(f"trained on the corpus with them: {record.parent}")
        elif directory.resolve() in {Path(name).resolve() for name in data.get("corpora") or () if not is_url(name)}:
            found.append(
                f"trained on another state of the corpus, or on several: they may have been in it: {record.parent}"
            )
    return found or [f"no run under {runs} was trained on this corpus"]


def collect_garbage(configs: Sequence[CorpusConfig], *, delete: bool) -> None:
    """List the steps that nothing reaches, and remove them if asked."""
    console = Console(highlight=False, markup=False)
    for config in configs:
        _check_local(config.place)
    output = configs[0].place
    lease = (
        lock(output, "collecting garbage", console.print, wait=False) if delete and output.exists() else nullcontext()
    )
    with lease:
        _collect(configs, console, delete=delete)


def _collect(configs: Sequence[CorpusConfig], console: Console, *, delete: bool) -> None:
    found = find_unreached(configs)
    for step in found:
        state = "" if step.published else ", unfinished"
        console.print(f"{step.path} ({human_bytes(step.bytes)}{state})", soft_wrap=True)
    total = human_bytes(sum(step.bytes for step in found))
    if delete and found:
        remove(found)
        console.print(f"removed {len(found)} steps, {total}")
    else:
        console.print(
            f"{len(found)} steps that nothing reaches, {total}" + ("; --delete removes them" if found else "")
        )
