"""What a published corpus reports about itself: `report.html` and `report.json`, its datasheet, and sweeps of
thresholds.
"""
