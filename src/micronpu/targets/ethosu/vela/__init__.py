"""Vela, the compiler of Ethos-U, in a separate process."""
