"""The report of training runs: one HTML file that loads nothing."""

from trainers.report.run_page import write_report

__all__ = ["write_report"]
