"""Arrow loads pandas in a task only if the task uses pandas."""

import subprocess
import sys

import pytest

pytest.importorskip("pandas")

CODE = """
import sys
from pipelines.cluster.memory import measured
import pyarrow as pa

def task(item):
    return pa.array(["a", "b"]), pa.array((1, None))

result, *_ = measured(task, 0)
assert result[0].to_pylist() == ["a", "b"], result
assert "pandas" not in sys.modules
assert pa.table({"a": [1]}).to_pandas()["a"][0] == 1
assert "pandas" in sys.modules
import pandas
assert measured(lambda _: pa.Table.from_pandas(pandas.DataFrame({"a": [1]})).to_pylist(), 0)[0] == [{"a": 1}]
"""

OWN_STAGE = """
import importlib.util
from pipelines.cluster.memory import measured
import pyarrow as pa

def task(item):
    assert importlib.util.find_spec("pandas") is not None  # as code that asks whether it is installed
    import pandas
    return pa.array(pandas.Series([1.0, None])).to_pylist()

assert measured(task, 0)[0] == [1.0, None]
"""


@pytest.mark.long
def test_a_task_loads_no_pandas_and_pandas_still_works():
    subprocess.run([sys.executable, "-c", CODE], check=True)


@pytest.mark.long
def test_missing_values_of_a_series_are_null_in_a_task():
    subprocess.run([sys.executable, "-c", OWN_STAGE], check=True)
