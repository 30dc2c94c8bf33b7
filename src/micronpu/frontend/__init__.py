"""Exported programs read as graphs: the only room that looks at FX nodes."""
