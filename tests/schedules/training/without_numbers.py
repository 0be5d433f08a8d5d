"""Stand-ins for the slow parts of training and related commands that do not depend on storage, such as
models, configurations and report pages.
"""

import json
import marshal
import threading
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file

from gristmill.host import host, lent
from gristmill.storage import store
from tests.schedules.agents.pure_results import json_once, once_by_id, value_once
from tests.schedules.process_caches import replaced
from tests.schedules.training.small_runs import READER, StandInEngine
from trainers.config.job_kinds import parse_job
from trainers.engine.hardware.mfu import Flops
from trainers.evaluation.checkpoints import evaluate_checkpoints
from trainers.inference import export_form, model_export
from trainers.report import run_page
from trainers.runs import checkpoint, run
from trainers.training import interval, launch, loop

_parse, _dump_once, _identity_once = run.load_yaml, once_by_id(run.as_yaml), once_by_id(run.identity)
_parsed: dict = {}
_jobs: dict = {}


def _yaml_once(path):
    data = path.read_bytes()
    if data not in _parsed:
        _parsed[data] = marshal.dumps(_parse(path))
    return marshal.loads(_parsed[data])


def _job_once(data, where):
    key = marshal.dumps(data, 2)
    if key not in _jobs:
        _jobs[key] = parse_job(data, where)
    return _jobs[key]


class _Clock:
    @staticmethod
    def perf_counter():
        return host().monotonic()


class _Page:
    def __new__(cls, runs):
        return json.dumps([[each.state, each.last_step, [step for step, _, _ in each.checkpoints]] for each in runs])


class _Evaluation:
    def __init__(self, results, suite):
        self.value = results[0].value

    def write_rows(self, path):
        path.write_atomic(str(self.value).encode())


class _Meter:
    def cost(self, scorer):
        return SimpleNamespace(plain=dict)


def _save_model(path, found, form, output):
    weights = checkpoint.read_weights(found)

    def save(directory):
        save_file(weights, f"{directory}/{export_form.WEIGHTS}")
        with open(f"{directory}/config.json", "w") as config:
            config.write("{}")

    host().deliver(str(output), save)
    return [output]


def _save_tokenizer(source, specials, config, output):
    content = source.read_bytes()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        with (output / name).open("wb") as sink:
            sink.write(content)


def _exported_model(path, sizes):
    (path / "config.json").read_bytes()
    return int(load_file(lent(path / export_form.WEIGHTS))["weight"][0])


def _trained_forward(path, found, weights=None):
    weights = checkpoint.read_weights(found) if weights is None else weights
    return SimpleNamespace(model=int(weights["weight"][0]))


_FORWARD = SimpleNamespace(parameters=lambda: (torch.nn.Parameter(torch.zeros(1)),), model=None)


_COST = SimpleNamespace(sources="", fields=lambda flops: {}, finish=lambda step: None)


@contextmanager
def without_numbers():
    with replaced(
        (store, "_with_checksum", json_once),
        (store, "_parse_intact", value_once),
        (run, "as_yaml", _dump_once),
        (run, "identity", _identity_once),
        (run, "load_yaml", _yaml_once),
        (run, "parse_job", _job_once),
        (export_form, "parse_job", _job_once),
        (launch, "refuse_known", lambda *_: None),
        (loop, "check_compiler", lambda config: None),
        (loop, "needs_compiler", lambda config: False),
        (loop, "start_group", lambda: (0, 1)),
        (loop, "set_threads", lambda threads: 1),
        (loop, "choose_micro_batch", lambda *_: 2),
        (loop, "Validator", lambda *_: SimpleNamespace(measure=lambda: None)),
        (loop, "reader_of", lambda config: READER),
        (loop, "build_forward", lambda *_: _FORWARD),
        (loop, "flops_of", lambda *_: Flops(1.0, 0.0, 1.0)),
        (loop, "peak_flops", lambda *_: None),
        (loop, "device_name", lambda: "none"),
        (loop, "memory_bytes", lambda: 0),
        (loop, "CostMeter", lambda *_: _COST),
        (loop, "utilisation", lambda *_: None),
        (loop, "Engine", StandInEngine),
        (loop, "stop_signal", lambda: nullcontext(threading.Event())),
        (loop, "time", _Clock),
        (interval, "time", _Clock),
        (run_page, "render", _Page),
        (evaluate_checkpoints, "read_columns", lambda *_: ()),
        (evaluate_checkpoints, "name_of", lambda *_: "words"),
        (evaluate_checkpoints, "Scorer", SimpleNamespace(of=lambda path, trained, pseudo: trained.model)),
        (
            evaluate_checkpoints,
            "score_columns",
            lambda where, model, *_: (SimpleNamespace(value=model, plain=dict),),
        ),
        (evaluate_checkpoints, "Evaluation", _Evaluation),
        (evaluate_checkpoints, "_scores", lambda evaluation: {"words.mean": {"value": evaluation.value}}),
        (evaluate_checkpoints, "EvaluationMeter", _Meter),
        (model_export, "_save_model", _save_model),
        (model_export, "save_tokenizer", _save_tokenizer),
        (model_export, "_exported_model", _exported_model),
        (model_export, "trained_forward", _trained_forward),
        (model_export, "print", lambda *_, **__: None),
        (run, "print", lambda *_, **__: None),
    ):
        yield
