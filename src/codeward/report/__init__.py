"""Tables, figures and the HTML report, from records and vote files only."""

from codeward.report._figures import accuracy_points, plot_accuracy
from codeward.report._html import Report, build_report, count_steps, write_report

__all__ = ["Report", "accuracy_points", "build_report", "count_steps", "plot_accuracy", "write_report"]
