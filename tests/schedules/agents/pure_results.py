"""Results that do not depend on storage, computed once per test process and reused in all schedules.

Everything here is pure: plans, documents read from sources on the real disk, tables read from files of given
content, values computed from such tables, and the JSON of given values. Reusing a result never skips an
operation on the simulated output. Tables are written without compression, because setting up the compressor
would take longer than everything else.
"""

import json
import marshal
from contextlib import contextmanager

from gristmill.host import lent
from gristmill.libraries import provenance
from gristmill.storage import store
from pipelines.building import annotate, build, publish, read_step
from pipelines.contracts import manifest, parts
from pipelines.erasure import erase, forget, gc
from pipelines.explore.searching import index_corpus
from pipelines.export import text_export
from pipelines.planning import published
from pipelines.planning.plan import make_plan
from pipelines.planning.source_check import check_sample
from pipelines.reading.documents import read_documents
from pipelines.stages.materialise import funnel
from tests.schedules.agents import toy_stages
from tests.schedules.agents.remembered_tables import once, part_key, plain_dictionary, read_and_tell, write_plain
from tests.schedules.agents.small_corpora import inventories
from tests.schedules.process_caches import replaced

_with_checksum, _parse_intact, _columns = store._with_checksum, store._parse_intact, manifest._columns
_provenance = provenance._provenance
_LIMIT = 5000
_jsons: dict = {}
_values: dict = {}
_tables: dict = {}
_plans: dict = {}
_documents: dict = {}
_samples: dict = {}


def _frozen(value):
    return tuple(sorted((key, tuple(entries)) for key, entries in (value or {}).items()))


def plan_once(config, found, poison=None, files=None):
    """`make_plan`, cached. `found` is not part of the key because it is always the result of `inventories`."""
    key = (config, _frozen(poison), _frozen(files))
    if key not in _plans:
        _plans[key] = make_plan(config, found, poison, files)
    return _plans[key]


def read_once(source, files, part_bytes, poison=(), forgotten=()):
    key = (source, tuple(file.path for file in files), part_bytes, tuple(poison), tuple(forgotten))
    if key not in _documents:
        _documents[key] = list(read_documents(source, files, part_bytes, poison, forgotten))
    return _documents[key]


def check_sample_once(source, files):
    if source not in _samples:
        _samples[source] = check_sample(source, files)
    return _samples[source]


def json_once(value):
    """`_with_checksum`, cached by the marshalled value because writing indented JSON is slow in pure Python.

    `run.json` holds times and hardly ever repeats, so it is written without indentation instead.
    """
    if "finished" in value:
        return json.dumps({**value, "checksum": store.digest(value)}).encode()
    key = marshal.dumps(value, 2)  # no references in it: equal values have equal keys
    if key not in _jsons:
        _jsons[key] = _with_checksum(value)
    return _jsons[key]


def value_once(data):
    if data not in _values:
        _values[data] = marshal.dumps(_parse_intact(data))
    return marshal.loads(_values[data])


def columns_once(path, wanted, expected):
    """`_columns`, cached by the name under which the simulated host lends the file; this name identifies the
    contents.
    """
    key = (lent(path), tuple(wanted), tuple(expected.items()))
    if key not in _tables:
        with replaced((manifest, "lent", lambda _: key[0])):
            _tables[key] = _columns(path, wanted, expected)
    return _tables[key]


def once_by_id(function):
    """Cache a function of one immutable value by the value's id."""
    memory = {}

    def remembering(value):
        known = memory.get(id(value))
        if known is None:
            if len(memory) >= _LIMIT:
                memory.clear()
            known = memory[id(value)] = (value, function(value))  # the value lives as long as its id is known
        return known[1]

    return remembering


def provenance_of_ours(module, name):
    """`_provenance`, except that stages defined in the tests count as the product's own.

    Otherwise the names of steps, and with them the order of directories, would depend on the source of the
    tests, so that editing a test would change the schedule of a seed.
    """
    return () if module.startswith("tests.") else _provenance(module, name)


def _ids(*tables):
    return tuple(map(id, tables))


def _view_key(part, columns, rows=None):
    return part_key(part), tuple(columns), rows if rows is None else tuple(rows.to_pylist())


def _funnel_key(task):
    return part_key(task.part), task.columns


def _stage_key(work, part):
    return work.key, work.where, work.stage, part_key(part)


_OF_TABLES = (
    (parts.Part, "table", _view_key),
    (read_step, "_index", lambda part, name: (id(part), name)),
    (read_step, "_join", lambda tables: _ids(*tables)),
    (read_step, "_text_bytes", _ids),
    (read_step, "_totals", _ids),
    (annotate, "_run_stage", _stage_key),
    (annotate, "count_drops", _ids),
    (toy_stages, "count_drops", _ids),
    (funnel, "count_part", _funnel_key),
    (funnel, "_merge_samples", lambda tables: _ids(*tables)),
)
"""(module or class, name of a function of tables, function that returns the key of its arguments in the cache)."""
_COMPUTED_ONCE = tuple((where, name, once(getattr(where, name), key)) for where, name, key in _OF_TABLES)


_plain_config = once_by_id(publish.plain_config)
_schema_facts = once_by_id(manifest.schema_facts)


class SilentDisplay:
    def __init__(self, *_, **__):
        self.print = self.say = self.progress = lambda *_, **__: None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@contextmanager
def remembered():
    with replaced(
        (provenance, "_provenance", provenance_of_ours),
        (build, "make_plan", plan_once),
        (published, "make_plan", plan_once),
        (gc, "make_plan", plan_once),
        (gc, "take_inventory", lambda sources, output: inventories(sources)),
        (read_step, "read_documents", read_once),
        (read_step, "has_changed", lambda file, checksum: False),
        (build, "check_sample", check_sample_once),
        (store, "_with_checksum", json_once),
        (store, "_parse_intact", value_once),
        (manifest, "_columns", columns_once),
        (manifest, "asdict", plain_dictionary),
        (publish, "plain_config", _plain_config),
        *((module, "schema_facts", _schema_facts) for module in (annotate, read_step, build)),
        (parts, "read_table", read_and_tell),
        *_COMPUTED_ONCE,
        *((module, "write_table", write_plain) for module in (annotate, read_step, toy_stages, funnel, forget)),
        (publish, "write_report", lambda *arguments: False),
        (erase, "Console", SilentDisplay),
        (text_export, "ProgressDisplay", SilentDisplay),
        (index_corpus, "ProgressDisplay", SilentDisplay),
    ):
        yield
