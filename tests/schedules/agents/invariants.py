"""Invariants of an output, checked after every operation of any command.

- The files of a published step exist and match its manifest.
- A reproducible step is never published twice with different bytes.
- A forgotten document stays forgotten, and no step of the published corpus holds it.
- A corpus is published only if all its steps are.
"""

import json
from functools import lru_cache

import xxhash

from pipelines.building.publish import corpus_fingerprint
from pipelines.contracts.tombstone import mark_of
from tests.schedules.agents.small_corpora import OUTPUT, TEXTS

_STEP_MANIFEST = "/manifest.json"
_REMOVALS = ("unlink", "rename", "rmdir", "delete")
_PUBLISHES = ("rename", "link", "put")


class Published:
    """Checks the output after each operation. `root` is its path on the simulated disk, or in the object
    store if `objects` is given.
    """

    def __init__(self, world, root=OUTPUT, objects=None):
        self.disk, self.root, self._below = objects or world.disk, root, f"{root}/"
        self.named: dict[str, dict] = {}  # by step directory: its files
        self.bytes: dict[tuple[str, str], bytes] = {}  # by step directory and mark: the manifest that was published
        self.late: dict[str, str] = {}  # receipts written into published steps, and by whom
        self.gone: frozenset[str] = frozenset()  # documents that the tombstone names
        self.pending: frozenset[str] = frozenset()  # of them those whose removal is unfinished
        self.world, self.seen = world, 0
        self.look_at_all()
        world.watch(self.look)

    def look_at_all(self):
        self.named.clear()
        self.bytes.clear()
        self.gone, self.pending = self._tombstone()
        for directory in self.disk.names(self.root) or ():
            if directory.startswith("."):  # a step whose removal has begun
                continue
            if self.disk.peek(f"{self.root}/{directory}{_STEP_MANIFEST}") is not None:
                self._published(directory, "")

    def look(self, world, event):
        if self.seen != len(world.record):
            decided, self.seen = world.record[self.seen :], len(world.record)
            if any(decision.action == "power" for decision in decided):
                self.look_at_all()
        for path in (event.path, event.other):
            if path.startswith(self._below):
                path = path[len(self._below) :]
                self._removed_as_a_whole(path, event)
                self._changed(path, event)

    def _removed_as_a_whole(self, directory, event):
        if "/" not in directory and event.operation == "rename":
            if self.disk.peek(f"{self.root}/{directory}{_STEP_MANIFEST}") is None:
                self.named.pop(directory, None)
            elif not directory.startswith("."):
                self._published(directory, event.agent)

    def _changed(self, path, event):
        directory, _, inside = path.partition("/")
        if inside and directory.startswith(".") and directory.endswith(".tmp") and event.operation in _REMOVALS:
            self._is_unused(directory.split(".")[1], event.agent)
        if inside == "manifest.json":
            if self.disk.peek(f"{self.root}/{path}") is None:
                self.named.pop(directory, None)
            elif event.operation in _PUBLISHES:
                self._published(directory, event.agent)
        elif directory in self.named and event.operation in _REMOVALS:
            gone = [name for name in self.named[directory] if not self._is_there(f"{directory}/{name}")]
            assert not gone, f"{event.agent} has removed {directory}/{gone[0]}, which its manifest names"
            self._whole(directory, inside, event.agent)
        if inside.startswith("units/") and event.operation in _PUBLISHES and directory in self.named:
            self.late[path] = event.agent
        if path == "forgotten.json":
            before, pending = self.gone, self.pending
            self.gone, self.pending = self._tombstone()
            undone = before - self.gone - pending  # a command withdraws its own if it cannot go on
            assert not undone, f"{event.agent} has removed {min(undone)} from the tombstone"
        if path in ("manifest.json", "forgotten.json"):
            self._corpus(event.agent)
        if path == "manifest.json" and event.operation in _PUBLISHES:
            gone = [step for step in corpus_steps(self.disk, self.root) if not self._is_published_or_aside(step)]
            assert not gone, f"{event.agent} has published a corpus without its step {gone[0]}"
        if path.startswith("earlier") and event.operation in _PUBLISHES and event.other.endswith(path):
            kept = [step["directory"] for step in parsed(self.disk.peek(f"{self.root}/{path}"))["steps"]]
            gone = [step for step in kept if not self._is_published_or_aside(step)]
            assert not gone, f"{event.agent} has kept an earlier build without its step {gone[0]}"

    def _is_unused(self, name, agent):
        """Check that a step removed for good by gc or forget is not used by the corpus, a variant or an
        earlier build, unless it has been rebuilt since.
        """
        if agent.startswith(("gc", "forget")):
            for file in self.disk.names(self.root):
                if file == "manifest.json" or file.startswith(("variant", "earlier")):
                    used = [step["directory"] for step in parsed(self.disk.peek(f"{self.root}/{file}"))["steps"]]
                    assert name not in used or name in self.named, f"{agent} has removed {name}, a step of {file}"

    def _is_published_or_aside(self, step):
        """Return whether a step is published or has been set aside by gc, which puts the step back if a
        corpus turns out to need it.
        """
        return step in self.named or any(name.startswith(f".{step}.") for name in self.disk.names(self.root))

    def check_late(self):
        """Check that every command that was not killed has removed the receipts it wrote into published
        steps. Runs with failed operations or losses of power are not checked.
        """
        if any(decision.action in ("fail", "power") for decision in self.world.record):
            return
        left = [path for path, agent in self.late.items() if self._is_there(path) and self.world.processes[agent].done]
        assert not left, f"{self.late[left[0]]} has left {left[0]} in a published step"

    def _is_there(self, name):
        return self.disk.peek(f"{self.root}/{name}") is not None

    def _published(self, directory, agent):
        data = self.disk.peek(f"{self.root}/{directory}{_STEP_MANIFEST}")
        manifest = parsed(data)
        assert manifest is not None, f"{agent} has published {directory} with a manifest that is not whole"
        self.named[directory] = files = files_of(data)
        for name in files:
            self._whole(directory, name, agent)
        key = directory, manifest["facts"].get("forgotten", "")
        before = self.bytes.setdefault(key, data)
        assert before == data or not self._reproducible(manifest), f"{agent} has published {directory} with other bytes"

    def _whole(self, directory, name, agent):
        if name in self.named[directory]:
            content = self.disk.peek(f"{self.root}/{directory}/{name}")
            assert content is not None, f"{directory}/{name} is in a manifest and missing ({agent})"
            same = (len(content), checksum_of(content)) == self.named[directory][name]
            assert same, f"{directory}/{name} is not what its manifest says ({agent})"

    def _reproducible(self, manifest):
        return manifest["step"] not in ("learn",)

    def _corpus(self, agent):
        records, pending = self._tombstone()
        if not pending:
            self._says_what_is_forgotten(agent)
        texts = [TEXTS[document].encode() for document in records & TEXTS.keys()]
        if texts and not pending:
            for directory in corpus_steps(self.disk, self.root):
                self._without(texts, directory, agent)

    def _says_what_is_forgotten(self, agent):
        """Check that the published corpus's fingerprint and each step's mark match the forgotten documents."""
        corpus = parsed(self.disk.peek(f"{self.root}/manifest.json"))
        tombstone = parsed(self.disk.peek(f"{self.root}/forgotten.json")) or {"records": {}}
        if corpus is not None:
            expected = corpus_fingerprint(corpus["steps"], tombstone["records"])
            assert corpus["fingerprint"] == expected, (
                f"{agent} has published a corpus as it was before documents were forgotten"
            )
            mark = mark_of(tombstone["records"])
            for step in corpus["steps"]:
                manifest = parsed(self.disk.peek(f"{self.root}/{step['directory']}{_STEP_MANIFEST}"))
                same = manifest is None or manifest["facts"].get("forgotten", "") == mark
                assert same, f"{step['directory']} of the corpus is as it was before documents were forgotten ({agent})"

    def _tombstone(self):
        tombstone = parsed(self.disk.peek(f"{self.root}/forgotten.json")) or {"records": {}, "pending": []}
        records = frozenset(f"{source}/{name}" for source, names in tombstone["records"].items() for name in names)
        return records, frozenset(f"{doc['source']}/{doc['path']}#{doc['record']}" for doc in tombstone["pending"])

    def _without(self, texts, directory, agent):
        for name in ("manifest.json", *self.named.get(directory, ())):
            content = self.disk.peek(f"{self.root}/{directory}/{name}") or b""
            assert not any(text in content for text in texts), (
                f"a forgotten document is in {directory}/{name} of the corpus ({agent})"
            )


def corpus_steps(disk, root):
    manifest = parsed(disk.peek(f"{root}/manifest.json"))
    return [step["directory"] for step in manifest["steps"]] if manifest else []


def parsed(data):
    """Parse a JSON file written by the product; return None if it is missing or incomplete."""
    return _parsed(data) if data is not None else None


@lru_cache(maxsize=1 << 12)
def _parsed(data):
    try:
        return json.loads(data)
    except ValueError:
        return None


@lru_cache(maxsize=1 << 12)
def files_of(data):
    manifest = _parsed(data)
    records = [*(part["file"] for part in manifest["parts"]), *manifest["files"]]
    return {record["path"]: (record["bytes"], record["xxh3_128"]) for record in records}


@lru_cache(maxsize=1 << 14)
def checksum_of(content):
    return xxhash.xxh3_128_hexdigest(content)
