"""ATen operators that are named outside of `ops/`, where all that is known about operators belongs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch
from tests.layers import SOURCE, nodes

PACKETS = {
    "ir/names.py": "spellings of users, and what ExecuTorch's decompositions call operators",
    "frontend/checks.py": "advice on operators that none of ours imports",
    "frontend/model_files/onnx_movement.py": "modes of ONNX's GridSample",
    "frontend/model_files/onnx_recurrent.py": "activations of ONNX's recurrent layers",
    "frontend/model_files/onnx_resize.py": "modes of ONNX's Resize and Upsample",
    "quantize/norms.py": "an argument of that name",
    "targets/neutron/target_spec.py": "a class of ExecuTorch, for scripts that use it",
    "transforms/streaming.py": "arguments of that name",
}
"""Files that name operators without their overload, or words that are such names, with the reason."""


def is_packet(text: object) -> bool:
    """Whether a text is an operator without its overload, as ``add``, or the beginning of one, as ``add.``."""
    name = text.removesuffix(".") if isinstance(text, str) else ""
    return name.isidentifier() and hasattr(torch.ops.aten, name)


def packets(tree: list[ast.AST]) -> Iterator[str]:
    """The packets that a file compares with overloads, and those of tables with nothing else."""
    named = {
        target.id
        for node in tree
        if isinstance(node, ast.Assign) and "overload" in ast.unparse(node.value)
        for target in ast.walk(node.targets[0])
        if isinstance(target, ast.Name)
    }
    for node in tree:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "with" in node.func.attr:
            sides = [node.func.value, *node.args]  # startswith, endswith
        elif isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            keys = node.keys if isinstance(node, ast.Dict) else node.elts
            texts = [key.value for key in keys if isinstance(key, ast.Constant)]
            yield from texts if len(texts) > 1 and all(map(is_packet, texts)) else ()
            continue
        else:
            continue
        words = {n.id for side in sides for n in ast.walk(side) if isinstance(n, ast.Name)}
        if words & (named | {"overload", "overload_name"}):
            constants = (n.value for side in sides for n in ast.walk(side) if isinstance(n, ast.Constant))
            yield from filter(is_packet, constants)


def names(tree: list[ast.AST]) -> Iterator[str]:
    """The overloads that a file reads; those that it writes into a program, as in ``write("add.Tensor", x, y)``, are
    left out."""
    written = {
        argument
        for node in tree
        if isinstance(node, ast.Call) and "write" in ast.unparse(node.func)
        for argument in node.args
    }
    for node in tree:
        text = node.value if isinstance(node, ast.Constant) and node not in written else ""
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node).removeprefix("torch.ops.").partition("aten.")[2]
        packet, _, overload = text.partition(".") if isinstance(text, str) else ("", "", "")
        if packet.isidentifier() and overload.isidentifier():
            found = getattr(torch.ops.aten, packet, None)
            if found is not None and overload in found.overloads():
                yield text


def test_overloads_are_named_in_ops_alone() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "ops"]
    found = {str(path.relative_to(SOURCE)): named for path in files if (named := [*names(list(nodes(path)))])}
    assert not found, found


def test_operators_without_overload_are_named_in_ops_alone() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "ops"]
    found = {str(path.relative_to(SOURCE)): named for path in files if (named := {*packets(list(nodes(path)))})}
    assert found.keys() == PACKETS.keys(), {name: found[name] for name in found.keys() - PACKETS.keys()}


def test_what_is_found_without_overload() -> None:
    for text in (
        'name = overload_name(node)\nname.startswith(("var.", "other"))',
        'overload.split(".")[0] == "linear"',
        '"dropout" in overload_name(node)',
        '_VIEWS = ("view", "reshape")',
        '_PRODUCTS = {"mm": 0, "addmm": 1}',
    ):
        assert [*packets([*ast.walk(ast.parse(text))])], text
    for text in ('name = file.name\nname == "linear"', 'KINDS = ("sum", "of all")', "overload_name(node) in LINEAR"):
        assert not [*packets([*ast.walk(ast.parse(text))])], text


def test_what_is_found() -> None:
    source = 'f("mul.Tensor"); torch.ops.aten.t.default; "no.overload"; write("add.Tensor", x)'
    assert sorted(names(list(ast.walk(ast.parse(source))))) == ["mul.Tensor", "t.default"]
