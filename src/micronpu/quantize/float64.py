"""The float network in float64, so that calibration gives the same result on every machine.

Torch's kernels add in an order that suits the processor, so the last bits of a float32 sum vary between machines. They
vary in float64 as well, but far below the precision of float32; an observer rounds values to float32, and sees the same
values everywhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from micronpu.base.errors import attempted
from micronpu.frontend.graphs import Graph, GraphModule, Node, calls
from micronpu.frontend.importer import known_import
from micronpu.frontend.program import is_random, overload_name
from micronpu.frontend.run import elementwise
from micronpu.frontend.tensors import copied, put, read
from micronpu.ops import ATEN_IMPORTS
from micronpu.ops.convolution import CONVOLUTIONS_2D, TRANSPOSED
from micronpu.quantize.loops import Loop, unobserved
from micronpu.quantize.nodes import observer_of
from micronpu.quantize.running import Row, float_run, float_values
from micronpu.quantize.thresholds import COLUMN_BYTES, SMALL_IMAGE
from micronpu.upstream.torch import OperatorBase, OpOverload, codegen_of, schema_of, tree_map


def in_float64(module: GraphModule, *, observes: bool = True) -> GraphModule:
    """Return a module that computes the same in float64, with the same node names and observers.

    It also accepts float32, and does not change the module or its tensors. Calls that are no ATen operators, such as
    control flow and quantize, compute in float32.
    """
    root, graph = nn.Module(), Graph()
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        if not observes and observer_of(module, node) is not None:
            copies[node] = copies[node.args[0]]
            continue
        made = graph.node_copy(node, lambda n: copies[n])
        if node.op == "placeholder":
            made = graph.call_function(_widened, (made,))
        elif node.op == "get_attr":
            value = read(module, node)
            put(root, str(node.target), _widened(value.detach() if isinstance(value, torch.Tensor) else value))
        elif node.op == "call_module":
            found = module.get_submodule(str(node.target))
            put(root, str(node.target), _loop_in_float64(found) if isinstance(found, Loop) else found)
        elif node.op == "call_function":
            _widen_call(node, made)
        copies[node] = made
    graph.set_codegen(codegen_of(module.graph))
    result = GraphModule(root, graph)
    result.meta.update(module.meta)
    result.training = module.training
    return result


def learner(module: GraphModule, rows: Sequence[Row]) -> GraphModule:
    """Return a copy of a module for training in float64, or in float32 if an operator has no kernel for that.

    Its nodes, operators and tensors have the module's names. `as_learner` converts its inputs.
    """
    same = copied(module)
    higher = [n for n in calls(module) if isinstance(n.target, OperatorBase) and not isinstance(n.target, OpOverload)]
    if has_float64(module) or higher or not rows:
        return same
    wide = copied(module).double()
    for node in calls(wide):
        if isinstance(node.target, OpOverload):
            node.args, node.kwargs = tree_map(_wide_type, node.args), tree_map(_wide_type, node.kwargs)
            _widen_factory(node, node, node.target)
    wide.recompile()
    return wide if is_plain(module) or _runs(lambda: wide(*as_learner(wide, rows[0]))) else same


def as_learner(made: GraphModule, row: Row) -> Row:
    """Return inputs in the dtypes of a module from `learner`."""
    return tuple(map(_widened, row)) if has_float64(made) else row


def runnable(module: GraphModule, rows: Sequence[Row], *, observes: bool = True) -> GraphModule:
    """Return `in_float64`, or the module itself if an operator has no float64 kernel, or the first row fails."""
    if has_float64(module):
        return module  # float64 would hide dtype mismatches of a model that does not run
    wide = in_float64(module, observes=observes)
    if is_plain(module) or not rows:
        return wide
    with unobserved(wide):
        return wide if _runs(lambda: float_values(float_run(wide), rows[0])) else module


@torch.no_grad()
def _runs(step: Callable[[], object]) -> bool:
    return attempted(lambda: (step(),)) is not None  # errors of the model itself are reported where it is run


def has_float64(module: GraphModule) -> bool:
    """Return True if weights or buffers are float64 already."""
    values = (read(module, node) for node in module.graph.find_nodes(op="get_attr"))
    return any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in values)


def is_plain(module: GraphModule) -> bool:
    """Return True if all calls of a module have known float64 kernels, and it creates no tensors of a fixed dtype."""
    return all(_is_plain(node) for node in module.graph.nodes)


def _is_plain(node: Node) -> bool:
    if node.op != "call_function" or getattr(node.target, "__module__", "") in ("_operator", "math"):
        return True
    steps: Any = node.args[1] if node.target is elementwise else ()
    return all(name in ATEN_IMPORTS for name, _, _ in steps) if steps else known_import(node) is not None


def _loop_in_float64(loop: Loop) -> Loop:
    made = Loop(in_float64(loop.body))
    made.prepared = in_float64(loop.prepared) if loop.prepared is not None else None
    return made


def _widen_call(node: Node, made: Node) -> None:
    target = node.target
    if isinstance(target, OpOverload) and target.namespace == "aten":
        made.args, made.kwargs = tuple(map(_wide_type, made.args)), {k: _wide_type(v) for k, v in made.kwargs.items()}
        if overload_name(node) in CONVOLUTIONS_2D:
            made.target = _conv2d
        elif overload_name(node) in TRANSPOSED:
            made.target = _transposed(target)
        _widen_factory(node, made, target)
    elif isinstance(target, OperatorBase):
        made.target = _single(target)


def _widen_factory(node: Node, made: Node, target: OpOverload) -> None:
    """Set the dtype float64 for an operator that makes a float32 tensor from numbers only, and draws none."""
    value, given = node.meta.get("val"), schema_of(target).arguments
    is_single = isinstance(value, torch.Tensor) and value.dtype == torch.float32 and not is_random(node)
    makes = any(a.name == "dtype" for a in given) and not any(isinstance(a.type, torch.TensorType) for a in given)
    if is_single and makes and made.kwargs.get("dtype") is None:
        made.kwargs = {**made.kwargs, "dtype": torch.float64}


def _wide_type(argument: object) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def _widened(value: object) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def _narrowed(value: object) -> object:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value


def _conv2d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> torch.Tensor:
    """Replace torch's convolution for depthwise over small images, for which its float64 kernel is five times slower.

    Rows of the padded image are concatenated: each tap multiplies one run of numbers, and the results between rows are
    dropped.
    """
    if x.dim() != 4 or isinstance(padding, str):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    (n, c, h, w), (kh, kw) = x.shape, weight.shape[2:]
    (ph, pw), (dh, dw) = (tuple(v) * 2 if len(v) == 1 else v for v in (padding, dilation))
    is_small = (h + 2 * ph) * (w + 2 * pw) <= SMALL_IMAGE
    if groups != c or weight.shape[0] != c or any(s != 1 for s in stride) or not is_small or x.requires_grad:
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    padded = torch.nn.functional.pad(x, (pw, pw, ph, ph))
    rows, pitch = padded.shape[2] - dh * (kh - 1), padded.shape[3]
    columns = pitch - dw * (kw - 1)
    flat, length = padded.reshape(n, c, -1), (rows - 1) * pitch + columns
    result = torch.zeros(n, c, rows * pitch, dtype=x.dtype)
    run = result[:, :, :length]
    for i in range(kh):
        for j in range(kw):
            first = i * dh * pitch + j * dw
            run.addcmul_(flat[:, :, first : first + length], weight[:, 0, i, j].reshape(1, -1, 1))
    if bias is not None:
        run += bias.reshape(1, -1, 1)
    return result.reshape(n, c, rows, pitch)[..., :columns].contiguous()


@functools.cache
def _transposed(target: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a transposed convolution whose float64 kernel holds a column for each output of each tap of each sample.

    Large ones are computed for one sample and one output channel at a time.
    """

    def transposed(x: torch.Tensor, weight: torch.Tensor, bias: Any = None, *rest: Any, **more: Any) -> torch.Tensor:
        groups = rest[3] if len(rest) > 3 else more.get("groups", 1)
        size = 8 * x.shape[0] * math.prod(x.shape[2:]) * math.prod(weight.shape[1:])
        if size <= COLUMN_BYTES or groups != 1 or x.dim() != weight.dim() or x.requires_grad:
            return target(x, weight, bias, *rest, **more)
        made = [
            torch.cat([target(one, own, None, *rest, **more) for own in weight.split(1, 1)], 1) for one in x.split(1)
        ]
        result = torch.cat(made)
        return result if bias is None else result.add_(bias.reshape(-1, *[1] * (x.dim() - 2)))

    return transposed


@functools.cache
def _single(target: Any) -> Callable[..., object]:
    def single(*args: object, **kwargs: object) -> Any:
        return tree_map(_widened, target(*tree_map(_narrowed, args), **tree_map(_narrowed, kwargs)))

    return single
