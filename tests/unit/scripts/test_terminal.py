"""The animated picture of the README: well-formed, and each command's scene in its turn."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from tests.unit.scripts.loading import script

ROOT = Path(__file__).parents[3]
terminal = script("terminal")


def test_scenes_follow_each_other_and_their_text_is_escaped() -> None:
    text = terminal.picture([("micronpu a", ["<b> & c"]), ("micronpu d", ["e"])])
    root = ElementTree.fromstring(text)
    assert "<b> & c" in ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    shown = re.findall(r"([\d.]+)%, ([\d.]+)% \{ visibility: visible; \}", text)
    assert [tuple(map(float, part)) for part in shown] == [(0.0, 49.99), (50.0, 99.99)]
    assert text.count('class="scene last"') == 1


def test_lines_are_cut_with_a_sign() -> None:
    lines = terminal.shown(["x" * 200, *map(str, range(9))], 4)
    assert lines == ["x" * (terminal.COLUMNS - 1) + "…", "0", "1", "… 7 lines more"]


def test_the_picture_shows_the_commands_of_the_script() -> None:
    text = (ROOT / "docs" / "terminal.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(text)
    assert all(command in text for command, _ in terminal.COMMANDS)
