"""The report of a corpus: `report.html` for people, `report.json` with the same numbers."""
