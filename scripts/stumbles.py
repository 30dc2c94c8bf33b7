"""Find sentences in docstrings, comments and messages that a native engineer has to read twice.

python scripts/stumbles.py                  # the folders in `CLEAN`; `make lint` runs this
python scripts/stumbles.py src/micronpu     # any folders or files

It finds constructions, not all bad English: add a rule when a reader stumbles. Code in backquotes and the names of
arguments and attributes are ignored. The style and the vocabulary are described in CONTRIBUTING.md. Exit code 1 if
there are findings.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLEAN = ("native", "scripts", "src/micronpu")
RULES = {
    r"^(?:What|Whether|Where|Those|So many|Of|With|By) (?!to\b)": "a noun or a verb: 'Return the ...', 'True if ...'",
    r"\bgrids?\b": "qparams, scale",
    r"\b(?:finer|coarser) steps?\b|\bhalf a step\b": "smaller scale, larger scale, LSB",
    r"\b(?:is|are|was|were) (?:said|told|asked|heard)\b|\bsays? so\b|\btells? of\b|\bheed": "report, return, query",
    r"\b(?:nobody|somebody|whoever|whatever)\b": "the subject, or 'any'",
    r"\banew\b": "again",
    r"\bin (?:the place|front) of\b": "instead of, before",
    r"\b(?:by|of) itself\b|\bof (?:its|their|one's|the user's) own\b": "alone, automatically, separate, its own X",
    r"\b(?:had|has) better\b|\bshall\b": "must, should",
    r"\bleft ?overs?\b|\bleft over\b": "non-delegated, remaining",
    r"\b(?:kept|held) back\b": "held-out",
    r"\b(?:put|puts) together\b|\b(?:take|takes|taken) (?:apart|away)\b": "combine, split, remove",
    r"\bbrings? along\b|\bbrought along\b|\bhand(?:s|ed)? on\b": "include, pass",
    r"\bhas a word for\b|\bhave words for\b": "can express",
    r"\b(?:doors?|the rooms?|poles?)\b": "the term in the vocabulary",
}
"""Regular expressions, and what to write instead. The case matters only at the start of a text."""
Text = tuple[int, str]
"""Line number and content, in one line."""


def python_texts(source: str) -> Iterator[Text]:
    """Strings of more than three words, with `x` for each value in an f-string, and blocks of comments."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        words = ""
        if isinstance(node, ast.JoinedStr):
            words = "".join(part.value if isinstance(part, ast.Constant) else "`x`" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            words = node.value
        if words.count(" ") >= 3:
            yield node.lineno, words
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != block[-1][0] + 1:
                yield block[0][0], "\n".join(text for _, text in block)
                block = []
            block.append((token.start[0], token.string.lstrip("# ")))
    if block:
        yield block[0][0], "\n".join(text for _, text in block)


def native_texts(source: str) -> Iterator[Text]:
    """Comments of C++."""
    for match in re.finditer(r"/\*.*?\*/|(?:^[ \t]*//[^\n]*\n)+|//[^\n]*", source, re.DOTALL | re.MULTILINE):
        text = re.sub(r"^[ \t]*(?:/\*+|\*|//+)|\*/", "", match.group(), flags=re.MULTILINE)
        yield source.count("\n", 0, match.start()) + 1, text.strip()


def findings(path: Path) -> Iterator[str]:
    """Return a line for each finding in a file."""
    read = python_texts if path.suffix == ".py" else native_texts
    for line, text in read(path.read_text(encoding="utf-8")):
        text = re.sub(r"^ +[\w*, ]+: ", " ", text, flags=re.MULTILINE)
        text = re.sub(r"\s+", " ", re.sub(r"(`+)[^`]*\1", "`x`", text)).strip()
        for rule, better in RULES.items():
            if match := re.search(rule, text, 0 if rule.startswith("^") else re.IGNORECASE):
                yield f"{path}:{line}: {match.group().strip()!r}. Write: {better}"


def files(paths: list[Path]) -> Iterator[Path]:
    """Python and C++ files below folders, sorted."""
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (p for p in inside if p.suffix in (".py", ".cpp", ".h"))


def main(arguments: list[str]) -> int:
    paths = [Path(given) for given in arguments] or [ROOT / name for name in CLEAN]
    if missing := [str(path) for path in paths if not path.exists()]:
        print(f"no such file or folder: {', '.join(missing)}", file=sys.stderr)
        return 2
    found = [line for path in files(paths) for line in findings(path)]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
