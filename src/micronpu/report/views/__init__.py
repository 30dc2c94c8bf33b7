"""How people read reports: in the terminal, as a page, in a notebook."""

from micronpu.report.views import html, sparsity_plot, tables, terminal

__all__ = ["html", "sparsity_plot", "tables", "terminal"]
