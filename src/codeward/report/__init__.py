"""Tables and figures, from records only."""

from codeward.report._figures import accuracy_points, plot_accuracy

__all__ = ["accuracy_points", "plot_accuracy"]
