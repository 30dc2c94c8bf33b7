"""Views of reports: in the terminal, as a page, in a notebook."""

from micronpu.report.views import advice, candidate_plot, html, sparsity_plot, tables, terminal

__all__ = ["advice", "candidate_plot", "html", "sparsity_plot", "tables", "terminal"]
