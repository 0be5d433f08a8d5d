"""Reports on a published corpus: `report.html` and `report.json`, a datasheet, and sweeps of thresholds."""
