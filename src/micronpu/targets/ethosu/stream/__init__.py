"""Command streams of Ethos-U as data."""
