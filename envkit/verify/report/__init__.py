"""The one object that people and machines see after a verification, and its forms."""

from envkit.verify.report.model import Report, Started, make_report, to_json
from envkit.verify.report.terminal import render, show

__all__ = ["Report", "Started", "make_report", "render", "show", "to_json"]
