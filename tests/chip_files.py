"""Parts of chip files that several tests write."""

from __future__ import annotations

SMALL_NEUTRON = """\
[npu]
family = "neutron"
variant = "N3-64"
class = "C"
pipelines = 8
macs = 8
"""
"""All that a Neutron needs but its clock."""
