"""Tools around training: gradient_check."""

from onemodel.training.gradient_check import GradientCheckError, GradientError, GradientReport, gradient_check

__all__ = ["GradientCheckError", "GradientError", "GradientReport", "gradient_check"]
