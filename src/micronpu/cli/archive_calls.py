"""Operators that a saved program may call, and checks of their operands.

torch executes a saved program in this process: it folds constants, and calibration runs the program.  ATen checks
little: some kernels read and write at any index, others rely on sizes that only a shape function checks.  So operators
are admitted by name, and before anything is computed the whole program runs on tensors without data, starting with the
shapes of the tensors that the file holds.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from micronpu.base.errors import ErrorsAs, reason
from micronpu.base.quiet import quiet
from micronpu.ir.lowering import LOWERINGS
from micronpu.program.operators import listed_kernels

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

MOST_ELEMENTS = 1 << 27
"""Maximum number of elements of one value."""
MOST_TOGETHER = 1 << 31
"""Maximum number of elements of all values: if all are constants, all are in memory at once."""

# Packets that torch writes as operators and that are admitted themselves; in-place forms follow from the others.
_WRITTEN = frozenset(
    re.findall(
        r"\w+",
        """
    absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh clip divide fix greater greater_equal less less_equal
    multiply negative not_equal subtract __iand__ __ior__ __ixor__
    addr affine_grid_generator aminmax atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors cartesian_prod
    chain_matmul clamp_max clamp_min column_stack count_nonzero deg2rad diag diag_embed diagflat dsplit empty_like eye
    fft_fft fft_fft2 fft_fftn fft_fftshift fft_ifft fft_ifft2 fft_ifftn fft_ifftshift fft_irfft fft_irfft2 fft_irfftn
    fft_rfft fft_rfft2 fft_rfftn fliplr flipud float_power frobenius_norm grid_sampler hann_window heaviside hsplit
    index_add index_fill isclose isfinite isin isneginf isposinf isreal kron linalg_diagonal linalg_matmul
    linalg_matrix_norm linalg_matrix_power linalg_multi_dot linalg_norm linalg_vecdot linspace log_sigmoid_forward
    logaddexp logaddexp2 logspace matrix_power meshgrid nanmean nansum new_empty norm pad_sequence pdist rad2deg
    randperm row_stack special_entr special_erf special_erfc special_exp2 special_expit special_expm1 special_log1p
    special_log_ndtr special_log_softmax special_logit special_logsumexp special_ndtr special_round special_sinc
    special_softmax special_xlog1py special_xlogy stft sort argsort msort sum_to_size take trace trapezoid trapz vander
    vdot vsplit xlogy zero fake_quantize_per_channel_affine fake_quantize_per_tensor_affine scatter_reduce
    _safe_softmax _scaled_dot_product_flash_attention_for_cpu _reshape_alias _weight_norm _weight_norm_interface
    """,
    )
)
_GRADIENT = re.compile(r"backward")  # a backward kernel trusts that its operands come from the forward
_FLOW = frozenset(("cond", "while_loop", "scan", "map_impl", "wrap_with_set_grad_enabled", "wrap_with_autocast"))
_TARGET = re.compile(r"torch\.ops\.(\w+)\.(\w+?)(?:\.(\w+))?", re.ASCII)


class RefusedContentError(Exception):
    """Content of the archive that is refused, as the end of a sentence."""


def shown(text: str) -> str:
    """Return the text in quotation marks, cut after 80 characters."""
    return repr(text if len(text) <= 80 else text[:80] + "...")


def check_operator(text: str) -> None:
    """Refuse an operator by its name as torch writes it: ``torch.ops.aten.relu.default``."""
    found = _TARGET.fullmatch(text)
    if text != "_operator.getitem" and (found is None or not _is_admitted(found[1], found[2], found[3] or "default")):
        raise RefusedContentError(
            f"a call of {shown(text)}, which is none of the operators that a saved program may call"
        )


def _is_admitted(space: str, packet: str, overload: str) -> bool:
    if space == "higher_order":
        return packet in _FLOW
    if space == "torchao":  # written in Python, with operators that check their operands
        return packet in ("choose_qparams_affine", "dequantize_affine", "quantize_affine")
    return space in ("aten", "quantized_decomposed") and f"{packet}.{overload}" in admitted(space)


_QUANTIZATION = ("quantize_", "dequantize_", "choose_qparams")


@functools.cache
def admitted(space: str = "aten") -> frozenset[str]:
    """Return the overloads of a namespace that a saved program may call, such as ``add.Tensor``.

    These are the operators of the importers, those with a kernel in ExecuTorch, those of `_WRITTEN`, and the in-place
    form of each. Excluded are overloads that write into an operand other than the first, compute a gradient, or return
    anything but tensors.
    """
    import torch

    import micronpu.ops  # noqa: F401  (its modules fill LOWERINGS)
    from micronpu.upstream.torch import register_quantized_operators

    register_quantized_operators()
    packets = {_plain(name.partition("::")[2].partition(".")[0]) for name in listed_kernels(space)}
    if space == "aten":
        packets |= _WRITTEN
    else:  # operators that exist only once a library of ExecuTorch's kernels is loaded
        packets = {packet for packet in packets if packet.startswith(_QUANTIZATION)}
    found = set(LOWERINGS) if space == "aten" else set()
    for packet in sorted(packets):
        for name in (packet, f"{packet}_copy", f"{packet}_"):
            operator = getattr(getattr(torch.ops, space), name, None)
            overloads = operator.overloads() if operator is not None and not _GRADIENT.search(name) else ()
            found |= {f"{name}.{o}" for o in overloads if _is_plain(getattr(operator, o))}
    return frozenset(found)


def _plain(packet: str) -> str:
    """Return the packet without the suffixes "_" and "_copy"."""
    return packet if packet.startswith("__") else packet.rstrip("_").removesuffix("_copy")


def _is_plain(overload: object) -> bool:
    from micronpu.upstream.torch import schema_of

    schema = schema_of(overload)
    written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    kinds = {str(result.type) for result in schema.returns}
    return not any(written[1:]) and bool(kinds) and kinds <= {"Tensor", "List[Tensor]"}


# ---------------------------------------------------------------- operands


def check_calls(program: ExportedProgram) -> None:
    """Compute a program on tensors without data."""
    import torch

    from micronpu.upstream.torch import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with quiet(logging.ERROR), torch.no_grad(), mode:
        _Sizes().results(program.graph_module, list(_inputs(program)))


def _inputs(program: ExportedProgram) -> Iterator[object]:
    """Yield the program's inputs without data: the tensors that the file holds, and its example inputs."""
    import torch
    from torch.export.graph_signature import InputKind

    held = {**program.state_dict, **program.constants}
    given = (program.example_inputs or ((),))[0]
    examples = iter(given if all(isinstance(value, torch.Tensor) for value in given) else ())
    claims = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    for spec, claim in zip(program.graph_signature.input_specs, claims, strict=True):
        value = next(examples, claim) if spec.kind is InputKind.USER_INPUT else held.get(spec.target or "", claim)
        yield without_data(value)


def without_data(value: object) -> object:
    """Return a new tensor with the same shape, strides and dtype; any other value unchanged."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


class _Sizes:
    """Computes graphs on tensors without data, and compares each value with the shape and type that the file states."""

    def __init__(self) -> None:
        self._elements = 0

    def results(self, module: GraphModule, inputs: list[Any]) -> Any:
        from torch.fx.node import map_arg

        values: dict[Node, Any] = {}
        waiting = iter(inputs)
        for node in module.graph.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            if node.op == "output":
                return args[0]
            if node.op == "placeholder":
                value = next(waiting, None)
            elif node.op == "get_attr":
                value = without_data(getattr(module, str(node.target)))
            else:
                value = self._called(node, args, kwargs)
            self._compare(node, value)
            values[node] = value
        return ()

    def _called(self, node: Node, args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        target: Any = node.target
        what = f"the call `{node.name}` of {target}, which does not take its operands"
        with ErrorsAs(lambda error: RefusedContentError(f"{what}: {reason(error)}"), RefusedContentError):
            if getattr(target, "namespace", "") == "higher_order":
                return self._flow(target.name(), list(args), kwargs)
            return call(target, args, kwargs)

    def _flow(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Return the result of a control flow operator; each of its graphs is checked once."""
        import torch

        if kwargs:
            raise RefusedContentError(f"the control flow `{name}` with named operands")
        if name.startswith("wrap_"):
            graph = next(i for i, value in enumerate(args) if isinstance(value, torch.nn.Module))
            return self.results(args[graph], args[graph + 1 :])
        if name == "cond":
            given = list(args[3])
            first, second = (self.results(args[i], given) for i in (1, 2))
            _same(first, second, "the branches of `cond` give")
            return first
        if name == "while_loop":
            carried, given = list(args[2]), [*args[2], *args[3]]
            self.results(args[0], given)
            _same(self.results(args[1], given), carried, "the step of a `while_loop` gives")
            return carried
        states, rows, others = ([], args[1], args[2]) if name == "map_impl" else (args[1], args[2], args[3])
        steps = {row.shape[0] for row in rows}
        if len(steps) != 1:
            raise RefusedContentError(f"the control flow `{name}` over sequences of different lengths")
        found = list(self.results(args[0], [*states, *(row.select(0, 0) for row in rows), *others]))
        _same(found[: len(states)], list(states), f"the step of a `{name}` gives")
        (count,) = steps
        return [*states, *(y.new_empty((count, *y.shape)) for y in found[len(states) :])]

    def _compare(self, node: Node, value: object) -> None:
        tensors = list(_tensors(value))
        for tensor in tensors:
            self._elements += tensor.numel()
            if tensor.numel() > MOST_ELEMENTS or self._elements > MOST_TOGETHER:
                raise RefusedContentError(
                    f"the value `{node.name}` of the shape {list(tensor.shape)}; one value may have "
                    f"{MOST_ELEMENTS:,} elements, and all together {MOST_TOGETHER:,}"
                )
        claims = list(_tensors(node.meta.get("val")))
        if claims:
            _same(value, claims, f"the value `{node.name}` is")


def _same(found: object, claimed: object, what: str) -> None:
    pairs = [[(tuple(t.shape), t.dtype) for t in _tensors(value)] for value in (found, claimed)]
    if pairs[0] != pairs[1]:
        said, other = (", ".join(f"{str(d).removeprefix('torch.')}{list(s)}" for s, d in pair) for pair in pairs)
        raise RefusedContentError(f"{what} {said or 'no tensor'}, and {other or 'none'} by what the file says of it")


def _tensors(value: object) -> Iterator[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def call(target: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of an operator on tensors without data."""
    from micronpu.frontend.export import by_shape
    from micronpu.upstream.torch import OpOverload, schema_of

    if isinstance(target, OpOverload):
        arguments = schema_of(target).arguments
        given = {a.name: value for a, value in zip(arguments, args, strict=False)} | kwargs
        _check_kinds(str(target), ((str(a.real_type), given.get(a.name)) for a in arguments))
        if target.namespace == "aten" and schema_of(target).name not in ("aten::cat", "aten::concat"):
            for tensor in _tensors(list(given.values())):
                if not tensor.numel():  # some kernels divide by a size
                    raise RefusedContentError(f"a call of {target} with a tensor that has no elements")
    return by_shape(target)(*args, **kwargs)


def _check_kinds(target: str, operands: Iterable[tuple[str, object]]) -> None:
    """Check enumerations: kernels do not validate their numbers, and a layout decides which kernels run."""
    import torch

    kinds = {"ScalarType": torch.dtype, "Layout": torch.layout, "MemoryFormat": torch.memory_format}
    for kind, value in operands:
        name = kind.removeprefix("Optional[").removesuffix("]")
        if value is None or name not in (*kinds, "Device"):
            continue
        wrong = not isinstance(value, kinds[name]) if name in kinds else str(value) != "cpu"
        if wrong or (name == "Layout" and value is not torch.strided):
            raise RefusedContentError(f"a call of {target} with {shown(str(value))} as its {name}")
