"""House rules that a script can check: layers, where heavy libraries may be imported, sizes of folders, names, docstrings."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

from gristmill.storage.disk import LocalPath
from gristmill.storage.location import Location
from gristmill.storage.object_store import RemotePath

ROOT = Path(__file__).parents[2]
PACKAGES = ("gristmill", "pipelines", "trainers", "tokenizer")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
LARGEST_FOLDER = 14  # files beside __init__ and __main__

# library -> the files that may import it
HOMES = {
    "ray": (
        "pipelines/cluster/ray.py",
        "gristmill/metrics.py",
        "gristmill/libraries/local_ray.py",
        "pipelines/commands/submit/jobs.py",
        "trainers/training/launch.py",
        "trainers/training/ray_tasks.py",
    ),
    "deepspeed": ("trainers/engine/zero.py", "trainers/engine/partitions.py"),
    "presidio_analyzer": ("pipelines/stages/pii/",),
    "tldextract": ("pipelines/stages/pii/", "pipelines/stages/measure/url_rules.py"),
    "phonenumbers": ("pipelines/stages/pii/",),
    "datasketch": ("pipelines/stages/measure/minhash_signatures.py",),
    "fasttext": ("pipelines/classifiers/fasttext_training.py", "pipelines/vectors/train_vectors.py"),
    "resiliparse": ("pipelines/stages/", "pipelines/reading/"),
    "fastwarc": ("pipelines/reading/",),
    "kenlm": ("pipelines/stages/score/perplexity.py",),
    "pypdfium2": ("pipelines/reading/rich/pdf.py",),
    "ftfy": ("pipelines/stages/decide/mojibake.py",),
    "trafilatura": ("pipelines/reading/web/extraction.py",),
    "zlib_ng": ("pipelines/reading/entries/decompress.py",),
    "tokenizers": ("tokenizer/",),
    "gigatoken": ("tokenizer/",),
    "transformers": ("trainers/", "pipelines/stages/score/transformer_", "pipelines/stages/pii/token_classifier.py"),
    "torch": ("trainers/", "pipelines/stages/score/transformer_", "pipelines/stages/pii/token_classifier.py"),
    "numba": ("gristmill/compilation.py", "pipelines/kernels/text/words.py"),
    "jinja2": ("gristmill/page/", "trainers/tasks/harness_format/doc_templates.py"),
    "tensorboard": ("trainers/runs/sinks.py",),
    "wandb": ("trainers/runs/sinks.py",),
    "mlflow": ("trainers/runs/sinks.py",),
    "peft": ("trainers/adapters/shared/peft_layers.py",),
    "sklearn": ("trainers/evaluation/probing/classifiers.py", "pipelines/classifiers/column_training.py"),
    "lm_eval": ("trainers/evaluation/harness_model.py",),
    "scipy": ("trainers/studies/", "pipelines/report/intervals.py"),
    "lightgbm": ("trainers/studies/laws/boosted_trees.py",),
    "fsspec": ("gristmill/storage/remote.py",),
    "aiohttp": ("gristmill/storage/remote.py",),
}


@cache
def parsed(path):
    return ast.parse(path.read_text())


@cache
def imports(path):
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def name_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.long
def test_heavy_libraries_have_one_home():
    wrong = [
        f"{place}:{line} imports {top}, whose home is {HOMES[top]}"
        for path in MODULES
        for place in [path.relative_to(ROOT).as_posix()]
        for imported, line in imports(path)
        for top in [imported.partition(".")[0]]
        if not place.startswith(HOMES.get(top, (place,)))
    ]
    assert not wrong


@pytest.mark.long
def test_layers():
    """The contracts of import-linter in pyproject.toml hold."""
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter, "--no-logo", "--no-cache"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert result.returncode == 0, result.stdout


def test_what_all_packages_share_needs_little():
    permitted = {"numpy", "pyarrow", "yaml", "xxhash", "rich", "gristmill"}
    # Inside functions: what a URL needs, what Ray needs, and nothing else does.
    more = {
        "remote.py": {"fsspec", "aiohttp"},
        "metrics.py": {"ray"},
        "local_ray.py": {"ray"},
        "compilation.py": {"numba"},
    }
    more |= {path.name: {"jinja2", "markupsafe"} for path in (ROOT / "gristmill/page").iterdir()}
    for folder, permitted_here in (("gristmill", permitted), ("pipelines/contracts", permitted | {"pipelines"})):
        for path in (ROOT / folder).rglob("*.py"):
            allowed = permitted_here | more.get(path.name, set()) | set(sys.stdlib_module_names)
            outside = {name.split(".")[0] for name, _ in imports(path)} - allowed
            assert not outside, f"{path.name} imports {outside}"


LOCATIONS = {"Location", "LocalPath", "RemotePath", "Path", "PosixPath", "PurePath"}


def location_checks(tree):
    """Yield the lines that test for the class of a location, or cast to one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in (
            "isinstance",
            "issubclass",
            "cast",
        ):
            asked = node.args
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        elif isinstance(node, ast.Compare) and "type(" in ast.unparse(node):
            asked = [node]
        else:
            continue
        if any(LOCATIONS & set(re.findall(r"\w+", ast.unparse(part))) for part in asked):
            yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(x, Path)", "isinstance(x, RemotePath | LocalPath)", "isinstance(x, (int, disk.LocalPath))",
        "cast(Path, x)", "typing.cast('Path', x)", "type(x) is LocalPath", "match x:\n case Path(): pass",
    ],
)  # fmt: skip
def test_a_test_of_a_location_is_found(line):
    assert list(location_checks(ast.parse(line)))


@pytest.mark.long
def test_where_a_location_is_only_storage_knows():
    """Local and remote locations differ in the methods of two final classes, not in branches of their callers."""
    for path in MODULES:
        if path.is_relative_to(ROOT / "gristmill/storage"):
            continue
        place, tree = path.relative_to(ROOT), parsed(path)
        assert not [f"{place}:{line}" for line in location_checks(tree)]
        assert not [
            f"{place}:{line}" for name, line in imports(path) if name.startswith("gristmill.storage.object_store")
        ]
    assert set(Location.__subclasses__()) == {LocalPath, RemotePath}
    assert LocalPath.__final__ is RemotePath.__final__ is True


@cache
def import_edges():
    """Return, for each of our modules, those that it imports: at the top, inside functions, or for type checking."""
    names = {name_of(path): path for path in MODULES}
    edges = {}
    for name, path in names.items():
        targets = set()
        for imported, _ in imports(path):
            targets.add(imported if imported in names else imported.rpartition(".")[0])
        edges[name] = targets & names.keys() - {name}
    return edges


def find_cycle(edges):
    state = {}

    def visit(name, trail):
        if state.get(name) == "done":
            return []
        if state.get(name) == "open":
            return [*trail[trail.index(name) :], name]
        state[name] = "open"
        for following in sorted(edges[name]):
            if cycle := visit(following, [*trail, name]):
                return cycle
        state[name] = "done"
        return []

    return next((cycle for name in sorted(edges) if (cycle := visit(name, []))), [])


def test_a_cycle_is_found():
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.long
def test_no_module_imports_itself_by_way_of_others():
    assert find_cycle(import_edges()) == []


def test_no_folder_imports_itself_by_way_of_others():
    packages = {name_of(path) for path in MODULES if path.name == "__init__.py"}
    folders = defaultdict(set)
    for name, targets in import_edges().items():
        here = name if name in packages else name.rpartition(".")[0]
        folders[here] |= {target if target in packages else target.rpartition(".")[0] for target in targets} - {here}
    assert find_cycle({name: folders[name] for name in packages}) == []


def test_folders_stay_small():
    for top in (*PACKAGES, "tests"):
        folders = Counter(
            path.parent for path in (ROOT / top).rglob("*.py") if path.name not in ("__init__.py", "__main__.py")
        )
        for folder, files in folders.items():
            assert files <= LARGEST_FOLDER, f"{folder.relative_to(ROOT)} holds {files} files"


@pytest.mark.long
def test_a_file_name_and_a_public_class_name_occur_once():
    files = Counter(path.stem for path in MODULES if path.stem not in ("__init__", "__main__"))
    assert [name for name, count in files.items() if count > 1] == []
    classes = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_modules_say_what_they_are_and_stay_readable():
    wrong = []
    for path in MODULES:
        text = path.read_text()
        lines = sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())
        if text.strip() and not ast.get_docstring(parsed(path)):
            wrong.append(f"{name_of(path)}: no module docstring")
        if lines > 450:
            wrong.append(f"{name_of(path)}: {lines} lines")
    assert not wrong


def class_name(node):
    """Return the last name of a base class: `Stage` for `stages.Stage[T]`."""
    return ast.unparse(node).partition("[")[0].rpartition(".")[2]


def undocumented_methods(trees):
    """Return the public methods that have no docstring, neither their own nor one of a method that they
    override. The docstring of a Protocol may describe those of its methods that have no body.
    """
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}

    def methods(owner):
        body = classes[owner].body if owner in classes else ()
        return {each.name: each for each in body if isinstance(each, ast.FunctionDef)}

    def bases(owner):
        return [class_name(base) for base in classes[owner].bases] if owner in classes else []

    def documented(owner, name):
        method = methods(owner).get(name)
        if method and (ast.get_docstring(method) or ("Protocol" in bases(owner) and ast.unparse(method.body) == "...")):
            return True
        return any(documented(base, name) for base in bases(owner))

    public = [(owner, name) for owner in classes for name in methods(owner) if "_" not in (owner[0], name[0])]
    return [f"{owner}.{name}" for owner, name in public if not documented(owner, name)]


def test_an_undocumented_method_is_found():
    base = "class Base:\n  def a(self): 'Say what.'\n  def b(self): ...\n"
    derived = "class Derived(bases.Base[int]):\n  def a(self): ...\n  def c(self): ...\n  def _d(self): ...\n"
    protocol = "class Plan(Protocol):\n  def e(self): ...\n  def f(self): return 1\n"
    found = undocumented_methods(map(ast.parse, (base, derived, protocol)))
    assert found == ["Base.b", "Derived.c", "Plan.f"]


def test_methods_are_documented_here_or_where_they_are_declared():
    assert undocumented_methods(map(parsed, MODULES)) == []


@pytest.mark.long
def test_planning_loads_nothing_heavy():
    code = (
        "import sys, pipelines.__main__, pipelines.planning.plan, pipelines.commands.show_plan, tokenizer.__main__\n"
        "heavy = {'ray', 'torch', 'numba', 'presidio_analyzer', 'spacy', 'fasttext', 'transformers', 'deepspeed', "
        " 'tokenizers', 'gigatoken', 'datasketch', 'resiliparse', 'pypdfium2', 'fastwarc', 'trafilatura', 'scipy', 'jinja2', "
        " 'fsspec', 's3fs', 'aiohttp'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "path", sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("docs/*.py")]), ids=lambda path: path.name
)
def test_scripts_import_what_exists(path):
    """No type checker covers these scripts, and most are run by hand only."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in PACKAGES:
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not [name for name in missing if importlib.util.find_spec(f"{node.module}.{name}") is None]
