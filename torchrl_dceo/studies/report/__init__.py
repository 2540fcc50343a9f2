"""A study as one page: ``python -m torchrl_dceo.studies.report <results folder>``."""

from torchrl_dceo.studies.report.page import PAGE, make_report

__all__ = ["PAGE", "make_report"]
