"""The rules of the house that a script can check: who imports whom, where heavy libraries live, what every module carries."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("pipelines", "trainers", "tokenizer")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# library -> the files that may import it
HOMES = {
    "ray": (
        "pipelines/cluster/ray.py",
        "gristmill/metrics.py",
        "pipelines/commands/jobs.py",
        "trainers/training/launch.py",
    ),
    "deepspeed": ("trainers/engine/engine.py", "trainers/engine/partitions.py"),
    "presidio_analyzer": ("pipelines/stages/pii",),
    "tldextract": ("pipelines/stages/pii", "pipelines/stages/measure/url_rules.py"),
    "phonenumbers": ("pipelines/stages/pii",),
    "datasketch": ("pipelines/stages/measure/minhash_signatures.py",),
    "fasttext": ("pipelines/classifiers/fasttext_training.py",),
    "resiliparse": ("pipelines/stages/", "pipelines/reading/"),
    "fastwarc": ("pipelines/reading/",),
    "kenlm": ("pipelines/stages/score/perplexity.py",),
    "trafilatura": ("pipelines/reading/web/page_worker.py",),
    "zlib_ng": ("pipelines/reading/entries/decompress.py",),
    "tokenizers": ("tokenizer/",),
    "gigatoken": ("tokenizer/",),
    "transformers": ("trainers/", "pipelines/stages/score/transformer_classifier.py"),
    "torch": ("trainers/", "pipelines/stages/score/transformer_classifier.py"),
    "numba": ("pipelines/kernels/", "trainers/"),
    "matplotlib": ("pipelines/report/", "tokenizer/chart.py"),
    "jinja2": ("pipelines/report/", "trainers/report/"),
    "tensorboard": ("trainers/runs/sinks.py",),
    "wandb": ("trainers/runs/sinks.py",),
    "mlflow": ("trainers/runs/sinks.py",),
    "fsspec": ("gristmill/storage/remote.py",),
    "aiohttp": ("gristmill/storage/remote.py",),
}


def imports(path):
    """(top-level module or dotted module of ours, line) of every import, those inside functions and type blocks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def allowed(importer, imported):
    """Imports go one way: tokenizer and contracts <- pipelines, and tokenizer and contracts <- trainers."""
    package = importer.split(".")[0]
    if package == "tokenizer":
        return imported.startswith("tokenizer")
    if importer.startswith("pipelines.contracts"):
        return imported.startswith(("pipelines.contracts", "gristmill.storage.paths"))
    if package == "pipelines":
        return imported.split(".")[0] in ("pipelines", "tokenizer")
    return imported.startswith(("pipelines.contracts", "trainers", "tokenizer"))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way_and_heavy_libraries_have_one_home(path):
    place = path.relative_to(ROOT).as_posix()
    for imported, line in imports(path):
        top = imported.split(".")[0]
        if top in PACKAGES:
            assert allowed(name_of(path), imported), f"{place}:{line} imports {imported}"
        assert place.startswith(HOMES.get(top, (place,))), f"{place}:{line} imports {top}, whose home is {HOMES[top]}"


def test_contracts_need_only_what_they_may():
    permitted = {"numpy", "pyarrow", "yaml", "xxhash", "pipelines", "tokenizer"}
    # Inside functions: what a URL needs, what a running Ray needs, and nothing else does.
    more = {"remote.py": {"fsspec", "aiohttp"}, "metrics.py": {"ray"}}
    for path in (ROOT / "pipelines" / "contracts").glob("*.py"):
        allowed_here = permitted | more.get(path.name, set())
        outside = {name.split(".")[0] for name, _ in imports(path)} - set(sys.stdlib_module_names) - allowed_here
        assert not outside, f"{path.name} imports {outside}"


def test_there_are_no_import_cycles():
    """Imports at module level, type checking aside, form no cycle."""
    names = {name_of(path): path for path in MODULES}
    edges = {name: set() for name in names}
    for name, path in names.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                candidates = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                candidates = [alias.name for alias in node.names]
            else:
                continue
            edges[name].update(found for found in candidates if found in names and found != name)
    state = {}

    def visit(name, trail):
        if state.get(name) == "done":
            return
        assert state.get(name) != "open", " -> ".join([*trail, name])
        state[name] = "open"
        for following in sorted(edges[name]):
            visit(following, [*trail, name])
        state[name] = "done"

    for name in sorted(edges):
        visit(name, [])


@pytest.mark.parametrize("path", [p for p in MODULES if p.read_text().strip()], ids=name_of)
def test_modules_say_what_they_are_and_stay_readable(path):
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "no module docstring"
    lines = [line for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 450, f"{len(lines)} lines"


def test_planning_loads_nothing_heavy():
    code = (
        "import sys, pipelines.__main__, pipelines.planning.plan, pipelines.commands.show_plan, tokenizer.__main__\n"
        "heavy = {'ray', 'torch', 'numba', 'presidio_analyzer', 'spacy', 'fasttext', 'transformers', 'deepspeed', "
        " 'tokenizers', 'gigatoken', 'datasketch', 'resiliparse', 'fastwarc', 'trafilatura', 'scipy', 'matplotlib', "
        " 'fsspec', 's3fs', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[]"
