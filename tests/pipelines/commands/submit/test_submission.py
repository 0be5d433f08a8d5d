"""Submission: equal work has the same id; which files are sent, and which must never be."""

import subprocess
import sys
from pathlib import Path

import pytest

from gristmill.errors import ConfigError, UserError
from pipelines.__main__ import main, parser
from pipelines.commands.submit import submission
from pipelines.commands.submit.submission import Work, check_address, check_uploaded, collect, describe, environment

ROOT = Path(__file__).parents[4]
SECRET = "swordfish-canary"


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "checkout"
    for name, text in {
        "pipelines/__main__.py": "print('pipelines')\n",
        "trainers/data/notes.py": "x = 1\n",
        "constraints.txt": "ray==1\n",
        "web.yaml": "name: web\nparts: [1, 2]\n",
        "data/huge.bin": "x",
        "runs/a/model.bin": "x",
        "pipelines/__pycache__/a.pyc": "x",
        ".env": f"KEY={SECRET}\n",
        ".venv/bin/python": "x",
        "certificates/server.pem": SECRET,
        "docs/page.md": "words\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


COMMAND = ("python", "-m", "benchmarks.run", "web.yaml", "depth=3")


def identify(checkout, command=COMMAND, slot=None):
    return describe(command, checkout, slot).id


def test_the_id_is_the_same_for_the_same_work_and_readable(checkout):
    first = identify(checkout, slot="2026-11-21")
    assert first == identify(checkout, slot="2026-11-21")
    assert first.startswith("run-2026-11-21-")
    assert len(first.rpartition("-")[2]) == 12
    (checkout / "docs" / "page.md").write_text("other words\n")  # not code
    (checkout / "web.yaml").write_text("# a comment\nname: web\nparts:\n  - 1\n  - 2\n")  # the same values
    assert first == identify(checkout, slot="2026-11-21")


def test_the_id_changes_with_command_configuration_code_pins_and_slot(checkout):
    seen = {identify(checkout), identify(checkout, slot="a"), identify(checkout, slot="b")}
    seen.add(identify(checkout, (*COMMAND[:-1], "depth=4")))
    (checkout / "web.yaml").write_text("name: web\nparts: [1, 3]\n")
    seen.add(identify(checkout))
    (checkout / "trainers" / "data" / "notes.py").write_text("x = 2\n")
    seen.add(identify(checkout))
    (checkout / "constraints.txt").write_text("ray==2\n")
    seen.add(identify(checkout))
    assert len(seen) == 7


def test_a_file_after_an_equals_sign_counts(checkout):
    for name in ("takedown.txt", "rules.yaml"):
        (checkout / name).write_text("a: 1\n")
        command = ("python", "-m", "benchmarks.run", f"--exclude={name}")
        before = identify(checkout, command)
        (checkout / name).write_text("b: 1\n")
        assert identify(checkout, command) != before


def test_a_word_too_long_to_name_a_file_is_taken(checkout):
    assert identify(checkout, (*COMMAND, "steps.1.filter=[" + "{signal: word_count, at_least: 2}, " * 20 + "]"))


def test_a_file_that_the_command_writes_elsewhere_does_not_count(checkout, tmp_path):
    command = ("python", "-m", "benchmarks.run", f"{tmp_path}/result.json")
    before = identify(checkout, command)
    (tmp_path / "result.json").write_text("{}")
    assert identify(checkout, command) == before


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("python", "-m", "pipelines", "gc", "web.yaml"), "gc"),
        (("python3", "-m", "benchmarks.clustering"), "clustering"),
        (("python", "tools/Do It.py"), "do-it"),
        (("python", "-m", "trainers"), "trainers"),
    ],
)
def test_work_is_named_after_its_command(command, name, checkout):
    assert describe(command, checkout, None).name == name


def test_the_interpreter_takes_the_place_of_python_and_words_are_quoted():
    work = Work(("python", "-m", "m", "a b; rm -rf /"), "m", "w", "k", None)
    assert work.entrypoint("/opt/venv/bin/python") == "/opt/venv/bin/python -m m 'a b; rm -rf /'"


@pytest.mark.parametrize(
    ("command", "slot", "message"),
    [
        ((), None, "expected python"),
        (("bash", "-c", "x"), None, "got 'bash'"),
        (("python",), None, "expected python and its arguments"),
        (("python", "\udcff.py"), None, r"'\\udcff.py' is not UTF-8"),
        (("python", "x.py", "s3://me:secret@bucket/a"), None, "'s3://...@bucket/a' holds credentials"),
        (("python", "x.py", "s3://me:sec/r@et@bucket/a"), None, "'s3://...@bucket/a' holds credentials"),
        (("python", "x.py", "a=https://data.example/b?sig=secret"), None, "'a=https://...' holds credentials"),
        (("python", "-m", "m", "missing.yaml"), None, "missing.yaml: no such file"),
        (("python", "-m", "m", "config=missing.yml"), None, "COMMAND: missing.yml: no such file"),
        (("python", "x.py"), "Two Words", "--slot: got 'Two Words'"),
        (("python", "x.py"), "-", "--slot"),
        (("python", "-m", "trainers", "pretrain", "demo_decoder"), None, "say run=DIR"),
        (("python", "-m", "trainers", "finetune", "sst2", "model=/m"), None, "say run=DIR"),
        (
            ("python", "-m", "trainers", "finetune", "sst2", "model=/m", "run=/r", "data=d"),
            None,
            "COMMAND: data: got 'd'",
        ),
        (("python", "-m", "trainers", "pretrain", "demo_decoder", "run=runs/a"), None, "run: got 'runs/a'"),
        (("python", "-m", "trainers", "pretrain", "demo_decoder", "run=s3://b/a"), None, "run: got 's3://b/a'"),
        (("python", "-m", "trainers", "pretrain", "x", "run=/a", "corpus=/b,c"), None, "corpus: got 'c'"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(command, slot, message, checkout):
    with pytest.raises(ConfigError, match=message) as error:
        describe(command, checkout, slot)
    assert "secret" not in str(error.value)


def test_training_with_absolute_places_and_urls_is_taken(checkout):
    command = ("python", "-m", "trainers", "pretrain", "demo_decoder", "corpus=s3://b/c,/shared/d", "run=/shared/r")
    assert describe(command, checkout, None).name == "pretrain"


def test_a_build_must_write_where_it_stays(corpus_file, tmp_path):
    command = ("python", "-m", "pipelines", "build", str(corpus_file), "--quarantine-poison")
    assert describe(command, tmp_path, None).name == "build"
    with pytest.raises(ConfigError, match="output: got 'data/out'"):
        describe((*command, "output=data/out"), tmp_path, None)
    with pytest.raises(ConfigError, match="root of the source web: got 'raw/web'"):
        describe((*command, "sources.web.root=raw/web"), tmp_path, None)
    with pytest.raises(ConfigError, match=r"files of the source web: got 'names\.txt'"):
        describe((*command, "sources.web.files=names.txt"), tmp_path, None)
    signed = corpus_file.read_text().replace(f"root: {tmp_path}/raw/web", "root: 'https://data.example/a?sig=secret'")
    corpus_file.write_text(signed)
    assert describe(command, tmp_path, None).name == "build"  # the file does not go with the job
    with pytest.raises(
        ConfigError, match=r"root of the source web: 'https://data.example/a\?\.\.\.' has a query"
    ) as error:
        describe((*command[:4], corpus_file.name), tmp_path, None)
    assert "secret" not in str(error.value)


def test_only_code_and_configuration_travel(checkout, tmp_path):
    upload = collect(checkout, ["docs", "/trainers/data/notes.py"])
    assert [name for name, _ in upload.files] == ["constraints.txt", "pipelines/__main__.py", "web.yaml"]
    upload.copy_to(tmp_path / "copy")
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert len(copied) == 3
    assert not any(SECRET in path.read_text() for path in copied)


def test_this_checkout_can_be_uploaded():
    names = {name for name, _ in collect(ROOT).files}
    assert {"constraints.txt", "pipelines/__main__.py", "trainers/report/run.html", "tokenizer/__main__.py"} <= names
    assert not [name for name in names if name.startswith((".", "data/", "build/")) or name.endswith(".pyc")]


def test_links_that_lead_outside_to_directories_excluded_files_or_nowhere_do_not_travel(checkout, tmp_path):
    (tmp_path / "outside.txt").write_text(SECRET)
    (checkout / "link.txt").symlink_to(tmp_path / "outside.txt")
    (checkout / "all").symlink_to("/")
    (checkout / "code").symlink_to(checkout / "pipelines")
    (checkout / "gone.txt").symlink_to(checkout / "nothing.txt")
    (checkout / "loop.txt").symlink_to(checkout / "loop.txt")
    (checkout / "inside.txt").symlink_to(checkout / "web.yaml")
    (checkout / ".env").write_text(SECRET)
    (checkout / "settings.txt").symlink_to(checkout / ".env")
    (checkout / "run.txt").symlink_to(checkout / "runs" / "a" / "resolved.yaml")
    (checkout / "runs" / "a" / "resolved.yaml").write_text("a: 1\n")
    upload = collect(checkout)
    assert upload.left_out == ("all", "code", "gone.txt", "link.txt", "loop.txt", "run.txt", "settings.txt")
    assert "inside.txt" in dict(upload.files)
    assert "inside.txt" not in dict(collect(checkout, ["web.yaml"]).files)


def test_an_upload_that_is_too_big_names_the_largest_files(checkout, monkeypatch):
    monkeypatch.setattr(submission, "UPLOAD_BYTES", 100_000)
    (checkout / "corpus.bin").write_bytes(bytes(90_000))
    (checkout / "docs" / "picture.png").write_bytes(bytes(20_000))
    with pytest.raises(UserError, match=r"corpus.bin \(0.1 MB\), docs/picture.png \(0.0 MB\)") as error:
        collect(checkout)
    assert "--exclude" in str(error.value)
    assert collect(checkout, ["*.bin"]).files


def test_a_name_that_ray_cannot_upload_is_refused(checkout):
    (checkout / "docs" / "a\udcff.txt").touch()
    with pytest.raises(
        UserError, match=r"a\udcff.txt: its name is not UTF-8; rename it, or leave it out with --exclude"
    ):
        collect(checkout)
    assert collect(checkout, ["a?.txt"]).files


def test_a_file_that_the_command_names_must_travel(checkout):
    (checkout / "runs" / "a" / "resolved.yaml").write_text("a: 1\n")
    command = ("python", "-m", "m", "runs/a/resolved.yaml")
    with pytest.raises(ConfigError, match=r"runs/a/resolved.yaml is not uploaded with the job"):
        check_uploaded(command, checkout, collect(checkout))
    with pytest.raises(ConfigError, match=r"web.yaml is not uploaded with the job"):
        check_uploaded(COMMAND, checkout, None)
    check_uploaded(COMMAND, checkout, collect(checkout))
    check_uploaded(("python", "-m", "m", f"{checkout}/runs/a/resolved.yaml"), checkout, None)


def test_variables_travel_by_name_from_a_list_and_never_with_credentials():
    here = {"OMP_NUM_THREADS": "4", "AWS_SECRET_ACCESS_KEY": SECRET, "MLFLOW_TRACKING_URI": f"https://me:{SECRET}@host"}
    assert environment([], here) == {}
    assert environment(["OMP_NUM_THREADS", "WANDB_MODE=offline"], here) == {
        "OMP_NUM_THREADS": "4",
        "WANDB_MODE": "offline",
    }
    for asked in ("AWS_SECRET_ACCESS_KEY", f"MY_TOKEN={SECRET}", "MLFLOW_TRACKING_URI", "AWS_REGION"):
        with pytest.raises(ConfigError) as error:
            environment([asked], here)
        assert SECRET not in str(error.value)


def test_no_name_on_the_list_means_a_secret():
    for name in submission.ENVIRONMENT:
        assert not any(word in name for word in ("SECRET", "PASSWORD", "KEY", "CREDENTIAL", "PASSWD"))
        assert "TOKEN" not in name or name == "TOKENIZERS_PARALLELISM"


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:8265/", "http://localhost:1", "http://[::1]:8265", "https://127.9.9.9"]
)
def test_loopback_needs_no_token(address):
    assert check_address(address, {}) == address.rstrip("/")


@pytest.mark.parametrize(
    "address", ["http://10.0.0.7:8265", "https://ray.example.org", "http://localhost.evil.example:80"]
)
def test_another_machine_needs_a_token(address, tmp_path):
    for here in ({}, {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "t"}):
        with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
            check_address(address, here)
    here = {"RAY_AUTH_MODE": "token", "HOME": str(tmp_path)}
    with pytest.raises(ConfigError, match="there is no token"):
        check_address(address, here)
    assert check_address(address, here | {"RAY_AUTH_TOKEN": "t"}) == address
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("\n")
    with pytest.raises(ConfigError, match="there is no token"):
        check_address(address, here)
    (tmp_path / ".ray" / "auth_token").write_text("t\n")
    assert check_address(address, here) == address


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8265",
        "ray://head:10001",
        "auto",
        "http://",
        "http://me:secret@127.0.0.1:1",
        "http://a/secret",
        "http://a?secret",
        "http://[::1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:secret",
    ],
)
def test_an_address_is_that_of_a_dashboard(address):
    with pytest.raises(ConfigError, match="expected the dashboard") as error:
        check_address(address, {})
    assert "secret" not in str(error.value)


def test_words_behind_two_dashes_are_the_command():
    options = parser().parse_args(["submit", "--follow", "--slot", "s", "--", "python", "-m", "m", "--workers", "2"])
    assert options.words == ["python", "-m", "m", "--workers", "2"]
    assert options.follow
    assert options.slot == "s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--retries", "1", "--", "python", "x.py"], "needs --follow"),
        (["--python", "python", "--", "python", "x.py"], "absolute path"),
        (["--cpus", "-1", "--", "python", "x.py"], "expected 0 or more"),
        (["--gpus", "nan", "--", "python", "x.py"], "expected 0 or more"),
        (["--address", "http://10.1.1.1:8265", "--", "python", "x.py"], "RAY_AUTH_MODE=token"),
    ],
)
def test_wrong_options_are_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_MODE")
    assert main(["submit", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_another_machine_needs_its_interpreter_named(capsys, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    assert main(["submit", "--address", "http://10.1.1.1:8265", "--", "python", "x.py"]) == 2
    assert "--python" in capsys.readouterr().err


@pytest.mark.long
def test_refusing_needs_no_ray():
    code = (
        "import sys; from pipelines.__main__ import main\n"
        "assert main(['submit', '--', 'bash', 'x']) == 2\nassert 'ray' not in sys.modules"
    )
    root = Path(__file__).parents[4]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)
