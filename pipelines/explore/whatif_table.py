"""Print the output of `whatif`."""

from collections.abc import Mapping

from rich.table import Table

from gristmill.config import dump_yaml, plain
from gristmill.console import Page, wide_console
from gristmill.terminal import human_bytes
from pipelines.contracts.columns import DROP
from pipelines.contracts.lineage import select_rows
from pipelines.explore.whatif import Impact, WhatIf
from pipelines.stages.pii.display_redaction import redact_row, without_personal_data

_EXCERPT = (400, 6)  # characters and lines of a sample


def show_answer(question: WhatIf, impacts: Mapping[str, Impact], samples: int) -> None:
    """Print the impacts, sample documents, and the new rules of the changed filters as YAML. For each source,
    up to `samples` newly dropped and up to `samples` newly kept documents are shown.
    """
    console = wide_console()
    console.print(_sources(impacts))
    if any(not impact.exact for impact in impacts.values()):
        seen = ", ".join(
            f"{impact.seen:,} of {impact.documents:,} ({name})" for name, impact in impacts.items() if not impact.exact
        )
        console.print(
            f"±: 95 % confidence interval, estimated from {seen} documents; --full counts all of them", markup=False
        )
    console.print("Documents that filters let through, before deduplication; bytes of the stored text.\n", markup=False)
    console.print(_rules(impacts))
    for source, impact in impacts.items():
        _show_samples(question, source, impact, samples)
    console.print("\nTo build this, write into the corpus file:", markup=False)
    for name in question.changed:
        changed = [plain(rule) for rule in question.then[name].rules]
        rules = [{k: v for k, v in rule.items() if v not in (None, [], {}, "")} for rule in changed]
        text = dump_yaml([{"filter": rules}], width=1000, flow=None)
        console.print(text, markup=False, end="", soft_wrap=True)


def _sources(impacts: Mapping[str, Impact]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("source", no_wrap=True)
    for heading in ("kept now", "kept then", "newly dropped", "newly kept", "text"):
        table.add_column(heading, justify="right", no_wrap=True)
    for source, impact in impacts.items():
        gained, around = impact.change()
        size, size_around = impact.bytes_change()
        sign = "+" if size > 0 else "-" if size < 0 else ""
        table.add_row(
            source,
            f"{impact.kept:,}",
            f"{impact.kept + gained:,.0f}" + (f" ± {around:,.0f}" if around else ""),
            f"{impact.scaled(impact.newly_dropped):,.0f}",
            f"{impact.scaled(impact.newly_kept):,.0f}",
            f"{sign}{human_bytes(abs(size))}" + (f" ± {human_bytes(size_around)}" if size_around else ""),
        )
    return table


def _rules(impacts: Mapping[str, Impact]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("first rule that drops", no_wrap=True)
    for source in impacts:
        table.add_column(source, justify="right", no_wrap=True)
    for rule in dict.fromkeys(rule for impact in impacts.values() for rule in (*impact.rules_now, *impact.rules_then)):
        cells = []
        for impact in impacts.values():
            now, then = (impact.scaled(counts.get(rule, 0)) for counts in (impact.rules_now, impact.rules_then))
            cells.append(f"{now:,.0f}" if now == then else f"{now:,.0f} → {then:,.0f}")
        table.add_row(rule, *cells)
    return table


def _show_samples(question: WhatIf, source: str, impact: Impact, samples: int) -> None:
    page = Page()
    for kept, heading in ((False, "newly dropped"), (True, "newly kept")):
        chosen = [(part, row) for _, to_kept, part, row in impact.moved if to_kept is kept][:samples]
        for index, row in chosen:
            whole = next(part for part in question.corpus.parts(source) if part.index == index)
            part = without_personal_data(question.corpus, select_rows(whole, [row]))
            page.heading(f"{heading}: {question.corpus.printed_id(part.table(('id',))['id'][0].as_py())}")
            signals = [name for name in _signals(question) if part.has(name)]
            values = {name: part.table((name,))[name][0].as_py() for name in signals}
            for name, value in redact_row(question.corpus, part, values).items():
                page.field(name, f"{value:.4g}" if isinstance(value, float) else str(value))
            page.field("dropped now by", part.table((DROP,))[DROP][0].as_py() or "no rule")
            page.text(part.table(("edited_text",))["edited_text"][0].as_py(), _EXCERPT)


def _signals(question: WhatIf) -> list[str]:
    changed = []
    for name in question.changed:
        now, then = question.now[name].tests(), question.then[name].tests()
        changed += [rule.signal for rule in [*then, *now] if (rule in then) != (rule in now)]
    return list(dict.fromkeys(signal for signal in changed if signal is not None))
