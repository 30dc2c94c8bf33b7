"""Partitioning: which nodes of a program run on which processor, and why."""

from micronpu.report.delegation import DelegationReport
from micronpu.report.verdict import Finding, Reason, Rule, Verdict, found, try_

__all__ = ["DelegationReport", "Finding", "Reason", "Rule", "Verdict", "found", "try_"]
