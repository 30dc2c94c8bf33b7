"""Which nodes of a program run where, and why."""

from micronpu.partition.report import DelegationReport
from micronpu.partition.verdict import Finding, Reason, Rule, Verdict, found, try_

__all__ = ["DelegationReport", "Finding", "Reason", "Rule", "Verdict", "found", "try_"]
