"""Limits of a Neutron: one function per limit, whose docstring is shown to users.

Source: the published support table of the eIQ Neutron converter and the documented limits of its newer versions; see
`docs/`. The flavor "latest" is the rule set of SDK 3.1.2 and newer.
"""

from micronpu.targets.neutron.rules import common, elementwise, published, spatial
from micronpu.targets.neutron.rules.registry import RULES, check_node, published_rules

__all__ = ["RULES", "check_node", "common", "elementwise", "published", "published_rules", "spatial"]
