"""The `.pte` as data: read, planned, checked, stripped; its I/O, states and digest. No program runs here."""
