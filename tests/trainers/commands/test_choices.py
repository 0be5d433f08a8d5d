"""The lists of recipes and objectives for `pretrain` contain every name with its meaning."""

import pytest

from trainers.__main__ import main
from trainers.objectives import OBJECTIVES
from trainers.recipes import RECIPES


@pytest.mark.parametrize(("command", "names"), [("recipes", RECIPES), ("objectives", OBJECTIVES)])
def test_every_name_is_listed(capsys, command, names):
    assert main([command]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(shown) == set(names)
    assert not [name for name, meaning in shown.items() if meaning.endswith("et al")]
