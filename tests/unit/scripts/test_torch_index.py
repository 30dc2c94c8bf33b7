"""Where `make venv` takes torch from."""

from __future__ import annotations

import pytest
from tests.unit.scripts.loading import script

torch_index = script("torch_index")


@pytest.mark.parametrize(
    ("asked", "system", "has_gpu", "answers", "options", "said"),
    [
        ("", "Linux", False, True, f"--extra-index-url {torch_index.INDEX}", "no GPU"),
        ("", "Linux", False, False, "", "may be a build for CUDA"),
        ("", "Linux", True, True, "", "for CUDA: this machine has a GPU"),
        ("", "Darwin", False, False, "", "for the processor alone here"),
        ("https://mine", "Linux", True, False, "--extra-index-url https://mine", "as requested"),
        ("none", "Linux", False, True, "", "as requested"),
    ],
)
def test_a_choice_and_a_sentence(
    asked: str, system: str, has_gpu: bool, answers: bool, options: str, said: str
) -> None:
    found, sentence = torch_index.choose(asked, system, has_gpu, answers)
    assert found == options and said in sentence
