import re

import pyarrow as pa
import pytest
import xxhash

from pipelines.stages.decide.rules import RULE_SETS
from pipelines.stages.measure.peer_signals import PeerSignals
from pipelines.stages.measure.signal_columns import PEER_SIGNALS, SIGNALS
from tests.pipelines.kernels import reference_signals as reference
from tests.pipelines.stages.measure.test_quality_signals import GOLDEN_TEXT


def measure(*texts):
    return PeerSignals().annotate(pa.table({"text": pa.array(texts, pa.large_string())}))


def test_columns_are_those_declared_and_described():
    assert measure("a", "").schema == PeerSignals().writes() == PEER_SIGNALS
    for name in PEER_SIGNALS.names:
        family = re.sub("_(tfds|datatrove)$", "_V", name) if name.startswith("c4_") else name
        assert f"| {re.sub('[0-9]+gram', 'Ngram', family)} |" in PeerSignals.__doc__


def test_its_columns_are_those_that_only_sets_of_peers_test():
    tested = {
        suffix: {rule.signal for name, rules in RULE_SETS.items() if name.endswith(suffix) for rule in rules}
        for suffix in ("@datatrove", "@tfds", "@massivetext", "@paper")
    }
    assert tested["@datatrove"] | tested["@tfds"] == {*PEER_SIGNALS.names, "n_chars", "n_lines"}
    assert not {*PEER_SIGNALS.names} & ({*SIGNALS.names} | tested["@massivetext"] | tested["@paper"])


@pytest.mark.long
@pytest.mark.parametrize("text", ["", " \n\t\u3000 ", "\n" * 1000])
def test_where_there_is_nothing_to_divide_by_a_ratio_is_null(text):
    (found,) = measure(text).to_pylist()
    assert found == {name: reference.signals(text)[name] for name in found}
    assert {name for name, value in found.items() if value is not None} >= {*PeerSignals().never_null()}


def test_neighbours_and_order_change_nothing():
    documents = [f"{'word ' * k}\n• {'...' * (k % 3)}\n\nThe end. {chr(0x4E00 + k)}" for k in range(50)]
    whole = measure(*documents).to_pylist()
    assert whole == [measure(text).to_pylist()[0] for text in documents]
    assert measure(*documents[::-1]).to_pylist() == whole[::-1]


def test_no_documents():
    assert (measure().num_rows, measure().schema) == (0, PEER_SIGNALS)


# version -> checksum of the output below; a change of output needs a new version of the stage
GOLDEN = {1: "b15290fa5c0a1660"}


def test_golden_output():
    digest = xxhash.xxh3_64_hexdigest(repr(measure(GOLDEN_TEXT).to_pylist()[0]).encode())
    assert GOLDEN.get(PeerSignals.version) == digest, "the output changed: raise PeerSignals.version"
