"""How people read reports: in the terminal, as a page, in a notebook."""

from micronpu.report.views import advice, html, sparsity_plot, tables, terminal

__all__ = ["advice", "html", "sparsity_plot", "tables", "terminal"]
