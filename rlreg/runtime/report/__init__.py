"""Reports: what runs gave, as one HTML page that holds everything it shows."""

from rlreg.runtime.report.page import write_report

__all__ = ["write_report"]
