"""Delegation reports for people: in the terminal and as a page.  Nothing here imports torch."""
