"""Settings that need a compiler: a missing package is named, and what cannot be combined is refused."""

from dataclasses import replace

import pytest

from gristmill.errors import ConfigError
from trainers.config.job import Execution, Optimizer
from trainers.engine.hardware.compiler import check_compiler
from trainers.recipes import llama_tiny

COMPILED = replace(llama_tiny(), execution=Execution(zero_stage=1, compile=True))
MUON = replace(llama_tiny(), optimizer=Optimizer(kind="muon", gradient_clipping=0.0))


@pytest.mark.parametrize(("config", "field"), [(COMPILED, "execution.compile: true"), (MUON, "optimizer.kind: muon")])
def test_without_a_compiler_the_package_is_named(monkeypatch, tmp_path, config, field):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match=rf"{field}: needs a C\+\+ compiler, but g\+\+ is not there; .*package g\+\+ "
    ):
        check_compiler(config)
    check_compiler(llama_tiny())


def test_the_compiler_that_cxx_names_is_looked_for_and_then_the_headers(monkeypatch, tmp_path):
    (tmp_path / "mine").touch()
    (tmp_path / "mine").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "mine")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    with pytest.raises(
        ConfigError, match=r"headers of Python, .*Python\.h is not there; install the package python3-dev"
    ):
        check_compiler(COMPILED)
    (tmp_path / "Python.h").touch()
    check_compiler(COMPILED)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match=r"gradient_clipping: got 1\.0, allowed 0 with kind muon"):
        Optimizer(kind="muon").check()
    with pytest.raises(ValueError, match=r"offload_optimizer: got true, .*set zero_stage to 1 or more"):
        Execution(zero_stage=0, offload_optimizer=True).check()
    with pytest.raises(ValueError, match=r"compile: got true, but ZeRO 3 .*set zero_stage to 2 or less"):
        Execution(zero_stage=3, compile=True).check()
