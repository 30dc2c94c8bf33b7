"""Graphs written in standard formats, so that other people's tools can read and judge them."""
