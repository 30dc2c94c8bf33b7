"""Arm Ethos-U under the names that ExecuTorch users know."""
