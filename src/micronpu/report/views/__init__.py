"""Views of reports: in the terminal, as a page, in a notebook."""

from micronpu.report.views import html, plots, tables, terminal

__all__ = ["html", "plots", "tables", "terminal"]
