"""The report of a corpus: `report.html` for people, `report.json` with the same numbers."""

from pipelines.report.write import write_report

__all__ = ["write_report"]
