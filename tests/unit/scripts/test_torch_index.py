"""Where `make venv` takes torch from."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "torch_index.py"
_SPEC = importlib.util.spec_from_file_location("torch_index", SCRIPT)
assert _SPEC is not None and _SPEC.loader is not None
torch_index = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(torch_index)


@pytest.mark.parametrize(
    ("asked", "system", "has_gpu", "answers", "options", "said"),
    [
        ("", "Linux", False, True, f"--extra-index-url {torch_index.INDEX}", "no GPU"),
        ("", "Linux", False, False, "", "may be a build for CUDA"),
        ("", "Linux", True, True, "", "for CUDA: this machine has a GPU"),
        ("", "Darwin", False, False, "", "for the processor alone here"),
        ("https://mine", "Linux", True, False, "--extra-index-url https://mine", "asked for"),
        ("none", "Linux", False, True, "", "asked for"),
    ],
)
def test_a_choice_and_a_sentence(
    asked: str, system: str, has_gpu: bool, answers: bool, options: str, said: str
) -> None:
    found, sentence = torch_index.choose(asked, system, has_gpu, answers)
    assert found == options and said in sentence
