"""Carry out the commands `forget` and `gc`, and print what they have done."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from gristmill.config import load_yaml
from gristmill.errors import ConfigError, CorruptFileError, UserError
from gristmill.storage.disk import LocalPath
from gristmill.storage.lease import Lease, lock
from gristmill.storage.location import Location
from gristmill.storage.paths import is_url
from gristmill.storage.store import read_json
from gristmill.terminal import human_bytes, printable
from pipelines.building.earlier_builds import KEPT, earlier_builds, surplus_builds
from pipelines.contracts.lineage import Corpus, Located, open_corpus
from pipelines.contracts.manifest import sweep
from pipelines.contracts.search_index.index_units import INDEX_FOLDER
from pipelines.contracts.tombstone import read_tombstone
from pipelines.erasure.forget import find_documents, forget
from pipelines.erasure.gc import find_unreached, remove_steps
from pipelines.erasure.scan import make_probes, scan
from pipelines.planning.corpus import CorpusConfig


def erase(corpus: Location, ids: Path | None, urls: Path | None, runs: LocalPath | None) -> None:
    """Forget the documents listed in the files `ids` and `urls`, one id or URL per line. Without either file,
    finish an interrupted run. Print what was done, which URLs no document has and, if the directory `runs` is
    given, which training runs below it may have read the documents.

    Raises UserError if `corpus` is not a directory on a local disk, `runs` is not a directory, or an input
    file is not UTF-8. Raises CorruptFileError if a scan of the corpus directory afterwards still finds one of
    the documents or cannot read a file. Also raises the errors of `forget` and `lock`.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    directory = _require_local(corpus)
    before = open_corpus(directory)
    if runs is not None and not runs.is_dir():
        raise UserError(f"--runs: {runs}: no such directory; name the one that holds the training runs")
    identifiers, addresses = _read_lines(ids), _read_lines(urls)
    keys, texts, unknown = _find_targets(before, identifiers, addresses)
    probes = make_probes(texts)
    texts.clear()
    with lock(directory, "forgetting documents", console.print, wait=False) as lease:
        names, written = forget(directory, identifiers, addresses, lease.check)
    for name in names:
        console.print(f"forgotten: {printable(name)}", soft_wrap=True)
    for url in unknown:
        console.print(f"no document has the URL {printable(url)}", soft_wrap=True)
    console.print(
        f"{written} files rewritten; counts, funnel and manifest describe the remaining documents", soft_wrap=True
    )
    hits, files, size = scan(directory, probes, keys)
    console.print(
        f"scanned {files} files, {human_bytes(size)}, for {len(probes)} excerpts of the removed texts and {len(keys)} ids"
    )
    after = open_corpus(directory)
    others = sorted({after.printed_id(identifier) for hit in hits for identifier in hit.ids if identifier not in keys})
    rows_left = [hit for hit in hits if any(identifier in keys for identifier in hit.ids)]
    # A file without ids may hold these excerpts of the remaining documents.
    shared = {probe for hit in hits if hit.ids and hit not in rows_left for probe in hit.probes}
    left = [hit.path for hit in hits if hit in rows_left or (not hit.ids and not hit.probes <= shared)]
    if left:
        raise CorruptFileError(f"{directory}: still there, in {', '.join(left)}; this is a defect: please report it")
    if others:
        console.print("they are gone; other documents have the same words, and you may want to forget these too:")
        for name in others:
            console.print(f"  {printable(name)}", soft_wrap=True)
    else:
        console.print("nothing is left of them")
    for line in _describe_runs(runs, directory) if runs is not None else ():
        console.print(line, soft_wrap=True)
    console.print("Earlier exports still hold them; `build` writes the report again.")


def _find_targets(
    corpus: Corpus, identifiers: Sequence[str], addresses: Sequence[str]
) -> tuple[list[bytes], list[str], list[str]]:
    """Return the ids of the documents to forget (16 bytes each), the texts of those that have not been
    removed yet, and the URLs that no document has. If an earlier run was interrupted, return the documents of
    that run instead of the requested ones, and no URLs. Raises UserError for an unknown id.
    """
    pending = [corpus.find(doc["id"]) for doc in read_tombstone(corpus.directory)["pending"]]
    documents, unknown = (pending, []) if pending else find_documents(corpus, identifiers, addresses)
    located = [each for each in documents if isinstance(each, Located)]
    texts = [each.part.table(("text",))["text"][each.row].as_py() for each in located]
    return [each.id for each in documents], texts, unknown


def _require_local(location: Location) -> LocalPath:
    if location.local is None:
        raise UserError(
            f"{location}: forget and gc need a local directory: copy the corpus to one, and copy it back afterwards"
        )
    if location.suffix == ".json":
        raise UserError(
            f"{location}: is one manifest, but forget and gc work on all builds and variants of a corpus; name its directory, "
            f"{location.parent}"
        )
    return LocalPath(location.local)


def _read_lines(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; expected one id or URL per line") from None
    return [line for line in lines if line and not line.startswith("# ")]


def _describe_runs(runs: LocalPath, directory: LocalPath) -> list[str]:
    before = read_tombstone(directory)["before"]
    lines = []
    for record in sorted(runs.rglob("run.json")):
        try:
            value = read_json(record, "restore it from a copy")
            marks = [
                value.get("fingerprints", {}).get("corpus"),
                *(each["corpus"] for each in value.get("earlier", ())),
            ]
            data = load_yaml(record.with_name("resolved.yaml")).get("data") or {}
        except CorruptFileError as error:
            if record.with_name("resolved.yaml").exists():  # it is a training run
                lines.append(f"cannot tell whether it was trained on the corpus: {error}")
            continue
        except ConfigError:
            data = {}
        if not set(before).isdisjoint(marks):
            lines.append(f"trained on the corpus with them: {record.parent}")
        elif directory.resolve() in _directories(data.get("corpora") or ()):
            lines.append(
                f"trained on another state of the corpus or on several corpora, possibly on the forgotten documents: "
                f"{record.parent}"
            )
    return lines or [f"no run under {runs} was trained on this corpus"]


def _directories(corpora: Sequence[str]) -> set[Path]:
    """Return the directories of the local corpora in `corpora`, in which a variant is named by the path of
    its manifest.
    """
    paths = [Path(name).resolve() for name in corpora if not is_url(name)]
    return {path.parent if path.suffix == ".json" else path for path in paths}


def collect_garbage(configs: Sequence[CorpusConfig], *, delete: bool, keep: int = KEPT) -> None:
    """Print the step directories and search indexes that nothing uses, and all earlier builds except the last
    `keep`. With `delete`, also remove them.
    """
    console = Console(highlight=False, markup=False, emoji=False)
    output = _require_local(configs[0].place)
    lease = (
        lock(output, "collecting garbage", console.print, wait=False) if delete and output.exists() else nullcontext()
    )
    with lease as held:
        _collect(configs, output, console, held, keep)


def _collect(
    configs: Sequence[CorpusConfig], output: LocalPath, console: Console, lease: Lease | None, keep: int
) -> None:
    if lease is not None:
        sweep(output)
        sweep(output / INDEX_FOLDER)
    surplus = [build.file for build in surplus_builds(output, keep)]
    steps = find_unreached(configs, output, surplus)
    for path in surplus:
        console.print(f"{path} (an earlier build)", soft_wrap=True)
    for step in steps:
        state = "" if step.published else ", unfinished"
        console.print(f"{step.path} ({human_bytes(step.bytes)}{state})", soft_wrap=True)
    total = human_bytes(sum(step.bytes for step in steps))
    if lease is not None and (steps or surplus):
        lease.check()
        for path in surplus:
            path.unlink(missing_ok=True)
        remove_steps(steps, lease.check)
        console.print(f"removed {len(steps)} steps, {total}")
    else:
        console.print(f"{len(steps)} unused steps, {total}" + ("; --delete removes them" if steps or surplus else ""))
    kept = [build.fingerprint for build in earlier_builds(output) if build.file not in surplus]
    if kept:
        console.print(
            f"kept for `diff`: {'earlier build' if len(kept) == 1 else 'earlier builds'} {', '.join(kept)} (--keep)"
        )
