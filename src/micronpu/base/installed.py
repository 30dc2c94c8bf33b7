"""What is installed, and how to get the rest."""

from __future__ import annotations

VERSION = "0.1.0"
HOST_TOOLS = 'pip install "micronpu[host]"'
"""Gets what programs are written with for Vela, and run with on this machine."""
