"""Sentences that users read are the same under ``python -OO``, which leaves docstrings out."""

from __future__ import annotations

import subprocess
import sys

import pytest

SENTENCES = """
import json
from micronpu.quantize.writer import float_rewrites
from micronpu.report.codec import attribute_texts
from micronpu.report.delegation import DelegationReport
from micronpu.targets.neutron.rules import RULES
print(json.dumps([float_rewrites(), attribute_texts(DelegationReport), [rule.sentence for rule in RULES]]))
"""


@pytest.mark.sweep
def test_sentences_need_no_docstrings_at_run_time() -> None:
    plain, stripped = (
        subprocess.run([sys.executable, *option, "-B", "-c", SENTENCES], capture_output=True, text=True, check=False)
        for option in ((), ("-OO",))
    )
    assert (plain.returncode, stripped.returncode) == (0, 0), plain.stderr + stripped.stderr
    assert stripped.stdout == plain.stdout and len(plain.stdout) > 5000
