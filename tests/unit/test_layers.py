"""Imports go down only, and never in a circle: the order of the packages of `src/micronpu`, stated once."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.layers import LAYERS, PAGE, SOURCE, nodes, page_with_table, tree

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""Upward imports that stay, (module, module) with the reason; at most three."""

GRAPHS = {
    "frontend": "the exported program",
    "quantize": "rewrites, observers, and the quantized program",
    "partition": "the core's part of a program",
    "transforms": "models before they are compiled",
    "targets/cortexm/emit.py": "the kernels of a core as calls of operators, for `partition`",
    "verify/static_checks.py": "one operator as a program, to learn which kernels it needs",
    "upstream/torch.py": "probes",
}
"""Packages and modules that make graphs of torch (docs/adr/0024), with what is in them."""

WITH_TORCH_FX = 17
"""Files that import torch.fx; others have its types, and nodes by what they do, from `micronpu.frontend.graphs`."""

QUESTIONS = 15
"""Calls that ask whether a node is a quantize or a dequantize node; it only ever becomes smaller."""

ON_CALL = {"compiler.program": ("board", "deploy")}
"""Packages whose functions are methods of a program, and are imported when one is called."""


def imports(path: Path) -> list[tuple[str, int]]:
    """The modules of the package that a file imports anywhere, lazily or for types, with the line."""
    found = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "micronpu":
            found += [
                (f"micronpu.{alias.name}" if is_package(alias.name) else "micronpu", node.lineno)
                for alias in node.names
            ]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, node.lineno))
    ours = [("micronpu.__init__" if name == "micronpu" else name, line) for name, line in found]
    return [(name.removeprefix("micronpu."), line) for name, line in ours if name.startswith("micronpu.")]


def is_package(name: str) -> bool:
    return any(name in packages for packages in LAYERS)


def layer_of(module: str) -> int:
    package = module.split(".")[0]
    return next((i for i, packages in enumerate(LAYERS) if package in packages), -1)


def upward() -> list[str]:
    wrong = []
    for path in sorted(p for p in SOURCE.rglob("*.py*") if p.suffix in (".py", ".pyi")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for name, line in imports(path):
            here, there = layer_of(module), layer_of(name)
            same_package = module.split(".")[0] == name.split(".")[0]
            is_known = (module, name) in EXCEPTIONS or name.split(".")[0] in ON_CALL.get(module, ())
            if (there > here or (there == here and not same_package)) and not is_known:
                wrong.append(f"{module}:{line} imports {name}")
    return wrong


def names_of_torch_fx(path: Path, *others: str) -> dict[str, str]:
    """What a file imports from torch.fx, and from other modules: its name there by the name here."""
    found = {}
    for node in nodes(path):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if module.startswith("torch.fx") or module in others:
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif module == "torch":
            found |= {alias.asname or alias.name: "fx" for alias in node.names if alias.name == "fx"}
    return found


def made_graphs(path: Path) -> set[str]:
    """The calls in a file that make a graph of torch, or a module for one."""
    known = names_of_torch_fx(path, "micronpu.frontend.graphs")
    calls = [n.func for n in nodes(path) if isinstance(n, ast.Call)]
    names = {ast.unparse(f) for f in calls if isinstance(f, ast.Name) and known.get(f.id) in ("Graph", "GraphModule")}
    through = [f for f in calls if isinstance(f, ast.Attribute) and isinstance(f.value, ast.Name)]
    return names | {
        ast.unparse(f) for f in through if known.get(f.value.id) == "fx" and f.attr in ("Graph", "GraphModule")
    }


def test_graphs_of_torch_are_made_in_few_places() -> None:
    makers = {str(p.relative_to(SOURCE)) for p in SOURCE.rglob("*.py") if made_graphs(p)}
    found = {next((g for g in GRAPHS if maker == g or maker.startswith(f"{g}/")), maker) for maker in makers}
    assert found == GRAPHS.keys()


def test_few_files_import_torch_fx() -> None:
    assert sum(bool(names_of_torch_fx(path)) for path in SOURCE.rglob("*.py")) <= WITH_TORCH_FX


def test_few_calls_ask_for_quantize_nodes() -> None:
    names = [ast.unparse(n.func) for path in SOURCE.rglob("*.py") for n in nodes(path) if isinstance(n, ast.Call)]
    assert sum(name.rpartition(".")[2] in ("is_quantize", "is_dequantize") for name in names) <= QUESTIONS


def test_every_module_is_in_a_package() -> None:
    packages = {p.stem if p.is_file() else p.name for p in SOURCE.iterdir() if not p.name.startswith("__py")}
    assert packages - {"py"} == {package for packages in LAYERS for package in packages}


def test_imports_go_down_only() -> None:
    assert not upward(), upward()
    assert len(EXCEPTIONS) <= 3


def test_compiling_imports_no_product() -> None:
    """In a fresh interpreter, since other tests import everything."""
    code = "import sys, micronpu; micronpu.compile, micronpu.check; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    packages = {name.split(".")[1] for name in ran.stdout.split() if name.startswith("micronpu.")}
    assert "compiler" in packages
    assert not packages & {"board", "deploy", "accuracy", "advice", "recipes", "cli"}


def test_no_exception_is_left_over() -> None:
    modules = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}
    for (module, name), reason in EXCEPTIONS.items():
        assert reason and name in {found for found, _ in imports(modules[module])}


def test_the_page_names_every_package_in_order() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert page_with_table(text) == text, "python -m tests.layers"


FACES = {"__init__", "neutron", "ethosu", "cortexm", "compat", "recipes.__init__", "recipes.core_passes"}
"""What users import a backend by."""

KNOW_BACKENDS = {
    "targets": "each family's own folder",
    "chips": "what there is, as data",
    "upstream": "what others call theirs",
    "board": "docs/adr/0022: the parts of one vendor's boards",
}
"""Packages that may name a backend, with the reason."""

BACKEND_WORDS = re.compile(r"ethos|neutron|cortex", re.IGNORECASE)


def words_of(module: Sequence[ast.AST]) -> list[tuple[int, str]]:
    """What the nodes of a file say in code: names, imports, strings and the parts of f-strings, with the line.

    Doc-strings and the strings behind attributes are for readers, and may give examples.
    """
    reported = {id(node.value) for node in module if isinstance(node, ast.Expr)}
    found: list[tuple[int, str]] = []
    for node in module:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in reported:
            found.append((line, node.value))
        elif isinstance(node, ast.Name):
            found.append((line, node.id))
        elif isinstance(node, ast.Attribute):
            found.append((line, node.attr))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.append((line, node.name))
        elif isinstance(node, (ast.arg, ast.keyword)):
            found.append((line, node.arg or ""))
        elif isinstance(node, ast.alias):
            found.append((line, node.name))
        elif isinstance(node, ast.ImportFrom):
            found.append((line, node.module or ""))
    return found


def backends_named(module: Sequence[ast.AST]) -> list[tuple[int, str]]:
    return [(line, word) for line, word in words_of(module) if BACKEND_WORDS.search(word)]


def test_no_module_outside_knows_a_backend() -> None:
    names = {path.parent.name for path in (SOURCE / "targets").glob("*/backend.py")}
    assert len(names) >= 3 and all(BACKEND_WORDS.search(name) for name in names)
    found = []
    for path in (*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyi")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        if module.split(".")[0] not in KNOW_BACKENDS and module not in FACES:
            found += [f"{module}:{line}: {word}" for line, word in backends_named(nodes(path))]
    assert not found, "ask the registry, or the family by its contract"


def test_no_template_outside_knows_a_backend() -> None:
    templates = [path for path in SOURCE.rglob("*.in") if path.relative_to(SOURCE).parts[0] not in KNOW_BACKENDS]
    assert len(templates) > 20
    named = [path.name for path in templates if re.search("ethos|neutron", path.read_text(encoding="utf-8"), re.I)]
    assert not named


def test_what_the_walk_would_find_of_backends() -> None:
    for text in (
        "from micronpu.targets.ethosu.backend import EthosU",
        "from micronpu.targets import neutron",
        "import micronpu.targets.neutron",
        "hint = 'such as imxrt700-neutron'",
        "hint = f'{name} of Ethos-{number}'",
        "def of_the_cortex_m(): ...",
        "make(is_ethosu=True)",
        "payload.neutron",
    ):
        assert backends_named([*ast.walk(ast.parse(text))]), text
    for text in ('"""For an Ethos-U."""', 'A = 1\n"""Of Neutron."""', "# an Ethos-U", "hint = 'the NPU'"):
        assert not backends_named([*ast.walk(ast.parse(text))]), text


def needs() -> dict[str, set[str]]:
    """For every module those that it imports, be it lazily or for types."""
    modules = {".".join(p.relative_to(SOURCE).with_suffix("").parts): p for p in SOURCE.rglob("*.py")}
    found: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("micronpu"):
                home = node.module.removeprefix("micronpu").removeprefix(".")
                for alias in node.names:
                    inner = f"{home}.{alias.name}".removeprefix(".")
                    tried = (inner, f"{inner}.__init__", home, f"{home}.__init__")
                    found[module] |= set(next(([name] for name in tried if name in modules), []))
    return {module: names - {module} for module, names in found.items()}


def test_no_module_needs_one_that_needs_it() -> None:
    graphlib.TopologicalSorter(needs()).prepare()  # a CycleError shows the circle
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter(needs() | {"base.errors": {"compiler.compile"}}).prepare()


BY_OTHERS = {
    "__dir__": "called by `dir(micronpu)`",
}
"""Functions and classes that nothing in the package uses, with the reason why they are there."""


NOT_IMPORTED = {
    "__main__": "the command",
    "cli.compare_worker": "a process of its own",
    "frontend.model_files.runtime_worker": "the same",
    "runtime.isolated_worker": "the same",
    "runtime.register": "imported by users for its effect",
    "targets.ethosu.vela.worker": "the same",
    "targets.neutron.sdk_worker": "the same",
    "ethosu": "for users",
    "neutron": "the same",
    "cortexm": "the same",
    "audio": "the same",
    "deploy.functions": "the same: definitions of the C functions of a firmware",
    "compat": "the same",
    "testing": "for tests of users",
}
"""Modules that no other one imports, with the reason why they are there."""


def test_no_module_is_there_for_tests_alone() -> None:
    modules = {".".join(p.relative_to(SOURCE).with_suffix("").parts) for p in SOURCE.rglob("*.py")}
    used: set[str] = set()
    for path in (*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyi")):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                used |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    left = {m for m in modules if not m.endswith("__init__") and f"micronpu.{m}" not in used}
    assert left == set(NOT_IMPORTED)


def test_nothing_is_there_for_tests_alone() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py*") if path.suffix in (".py", ".pyi")}
    words = Counter(word for text in texts.values() for word in re.findall(r"\w+", text))
    for path in texts:
        for node in tree(path).body:
            # What is decorated is registered somewhere.
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.decorator_list:
                used = words[node.name] > 1 or node.name in BY_OTHERS
                assert used, f"{path}:{node.lineno}: `{node.name}` is used nowhere in the package"


ROOT = SOURCE.parents[1]
# The changelog tells of what was.
PAGES = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
TEXTS = [*SOURCE.rglob("*.py"), *PAGES, *(ROOT / "docs").rglob("*.md"), *(ROOT / "native").rglob("*.[ch]*")]


def is_there(dotted: str) -> bool:
    """Whether there is a module or package of that name, or one that has the rest of it."""
    place = SOURCE
    for part in dotted.split(".")[1:]:
        if (place / part).is_dir():
            place /= part
        elif place.is_dir() and (place / f"{part}.py").exists():
            place /= f"{part}.py"
        else:
            homes = (
                [place / "__init__.py", place / "__init__.pyi"]
                if place.is_dir()
                else [place, place.with_suffix(".pyi")]
            )
            text = "".join(home.read_text(encoding="utf-8") for home in homes if home.exists())
            return re.search(rf"\b{part}\b", text) is not None
    return True


_FILES = (".toml", "_", ".h", ".c", ".yml")
"""Ends of what looks like a module's name and is a file, or a part of one."""


def test_what_texts_refer_to_is_there() -> None:
    """Names such as `micronpu.ir.op.Op`, and paths, in doc-strings, comments and pages."""
    assert is_there("micronpu.ir.op.Op") and not is_there("micronpu.quantize.to_integer_io")
    wrong = []
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        dotted = re.findall(r"`(micronpu(?:\.[A-Za-z]\w*)+)", text)
        paths = re.findall(r"\bsrc/micronpu/[\w/]+\.\w+", text)
        wrong += [f"{path}: {name}" for name in dotted if not name.endswith(_FILES) and not is_there(name)]
        wrong += [f"{path}: {name}" for name in paths if not (ROOT / name).exists()]
    assert not wrong, wrong


def test_places_of_changes_exist() -> None:
    """Each path of the table "Where to add something" is a file or folder of the package or of the repository."""
    table = PAGE.read_text("utf-8").split("## Where to add something")[1]
    places = [p for p in re.findall(r"`([\w./-]+)`", table) if "/" in p or p.endswith((".md", ".py"))]
    assert len(places) > 40
    assert not [p for p in places if not (SOURCE / p).exists() and not (PAGE.parent.parent / p).exists()]
