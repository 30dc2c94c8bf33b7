"""The `.pte` as data: read, planned, checked, stripped; its borders, states and digest.  Nothing runs here."""
