"""Vela, the compiler of Ethos-U, in a process of its own."""
