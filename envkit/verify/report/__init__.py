"""The one object that people and machines see after a verification, and its forms."""

from envkit.verify.report.model import Report, StartedBy, make_report, to_json
from envkit.verify.report.terminal import render, to_text

__all__ = ["Report", "StartedBy", "make_report", "render", "to_json", "to_text"]
