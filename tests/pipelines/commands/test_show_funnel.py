"""The funnel that a build prints can be searched: names of rules are never truncated."""

import re

from pipelines.commands.show_funnel import show_funnel
from pipelines.contracts.manifest import CorpusManifest

RULES = {f"gopher-repetition.dup_{number}gram_char_ratio_data-trove": 1000 + number for number in range(40)}
RULES["x" * 150] = 3


def test_every_rule_stands_in_one_line_with_its_count(capsys):
    row = {"documents_in": 9000, "documents_out": 0, "bytes_in": 9, "bytes_out": 0}
    facts = {"in": 9000, "kept": 9000, "decoded_bytes": 9, "quarantined": {}}
    funnel = ({"source": "web", "step": "filter", "dropped": RULES, **row},)
    show_funnel(CorpusManifest("c", "f", {}, {"web": facts}, {}, (), funnel, {}))
    lines = capsys.readouterr().out.splitlines()
    for rule, count in RULES.items():
        name = rule.rpartition(".")[2]
        assert sum(bool(re.search(rf"\b{name} {count:,}(\D|$)", line)) for line in lines) == 1
