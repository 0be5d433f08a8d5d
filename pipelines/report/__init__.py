"""The report of a corpus: the page `report.html`, and `report.json` with the same numbers."""
