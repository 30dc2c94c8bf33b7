"""Verdicts, reasons and figures as values, and how people read them: in the terminal, as JSON and as a page.

Nothing here imports torch.
"""
