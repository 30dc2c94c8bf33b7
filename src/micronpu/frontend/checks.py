"""Checks of arguments before anything is computed, hints for unknown operators, and the training mode of models.

Each dropout and each batch norm of an exported module has its own flag.
"""

from __future__ import annotations

import keyword
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

import micronpu.ops  # noqa: F401  (fills the registry)
from micronpu.base.errors import ModelError, OptionError
from micronpu.base.texts import plural
from micronpu.frontend.graphs import GraphModule, Node, called_modules, calls, nodes_where
from micronpu.frontend.program import arguments, overload_name
from micronpu.ir.lowering import LOWERINGS, Decomposition
from micronpu.ops.movement import DROPOUTS
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.upstream.torch import FakeTensor, OperatorBase, codegen_of, is_guard, schema_of


def check_callback(callback: object) -> None:
    """Raise `OptionError` if a progress callback is not callable."""
    if callback is not None and not callable(callback):
        what = f"`callback` is of type {type(callback).__name__}; it is a function of the step's name and its progress."
        raise OptionError(what, hint="callback=print")


def check_tensors(examples: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return example inputs in memory, with strides that show the order of the axes.

    Raises:
        ModelError: a tensor is sparse, complex, or not in the memory of this machine's CPU.
    """
    for position, tensor in enumerate(examples):
        what = ""
        if isinstance(tensor, FakeTensor):
            what, hint = "a FakeTensor, without values", "tensors that are made outside of FakeTensorMode"
        elif tensor.is_nested:
            what, hint = "nested", "torch.nested.to_padded_tensor(tensor, 0.0)"
        elif tensor.layout is not torch.strided:
            what, hint = f"stored as {str(tensor.layout).removeprefix('torch.')}", "tensor.to_dense()"
        elif tensor.is_complex():
            what, hint = "complex", "its real and imaginary part as two inputs"
        elif tensor.device.type != "cpu":
            what, hint = f"on the device {tensor.device}", "model.cpu() and tensor.cpu(), to compile it on the CPU"
        if what:
            raise ModelError(f"Example input {position} is {what}, which no program takes.", hint=hint)
    return tuple(in_order(t.resolve_neg()) for t in examples)


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor with the strides of a contiguous one, if it is contiguous; orders such as channels last stay.

    A tensor of shape [1, 8, 1, 1] has the same bytes in both orders, but ExecuTorch reads the order of the axes from
    the strides, and a delegate on the board refuses any order but the one in its payload.
    """
    if 0 in tensor.stride() and tensor.numel():
        return tensor.contiguous()
    plain = tensor.is_contiguous() and tensor.stride() != torch.empty(tensor.shape, device="meta").stride()
    return tensor.clone(memory_format=torch.contiguous_format) if plain else tensor


def check_results(module: GraphModule) -> None:
    """Raise `ModelError` if a program returns no tensor, or one of torch's own named tuples."""
    output = module.graph.output_node()
    if not any(isinstance(n.meta.get("val"), torch.Tensor) or "val" not in n.meta for n in output.all_input_nodes):
        what = "The model returns no tensor, so that there is nothing to compute."
        raise ModelError(what, hint="return the tensors that matter")
    info = getattr(codegen_of(module.graph), "pytree_info", None)
    kind = _named_tuple(getattr(info, "out_spec", None))
    if kind:
        what = f"The model returns a {kind}, which no program can hold."
        raise ModelError(what, hint="return its parts, as in `values, indices = torch.sort(x)`")


def _named_tuple(spec: object) -> str:
    """Return a name such as ``torch.return_types.sort`` if a specification of results contains such a tuple, or ""."""
    kind = getattr(spec, "type", None)
    if getattr(kind, "__module__", "") == "torch.return_types":
        return f"torch.return_types.{getattr(kind, '__name__', 'tuple')}"
    children = spec.children() if hasattr(spec, "children") else getattr(spec, "children_specs", ())
    return next((found for child in children if (found := _named_tuple(child))), "")


_RUN = ("cond", "map", "map_impl", "scan")
"""Control flow that ExecuTorch can run."""


def check_control_flow(module: GraphModule, inside: str = "") -> None:
    """Raise `ModelError` if a program has control flow that no runtime supports, or nested control flow."""
    for node in calls(module):
        if not isinstance(node.target, OperatorBase) or getattr(node.target, "namespace", "") != "higher_order":
            continue
        name = node.target.name()
        given = [getattr(module, str(x.target), None) for x in node.all_input_nodes if x.op == "get_attr"]
        graphs = [graph for graph in given if isinstance(graph, GraphModule)]
        is_flow = bool(graphs) and not name.startswith("wrap_")
        if is_flow and name not in _RUN:
            raise ModelError(
                f"The model has the control flow `{name}` (`{node.name}`), which the runtime does not have.",
                hint="a bound of at most 64 steps that is known at export (`i < 8`), torch.cond or scan",
            )
        if is_flow and inside:
            what = f"The model has `{name}` inside of `{inside}` (`{node.name}`); control flow has one level."
            raise ModelError(what, hint="one torch.cond after the other, or torch.where, which computes both sides")
        for graph in graphs:
            check_control_flow(graph, name if is_flow else inside)


def check_evaluation_mode(module: nn.Module, name: str = "", model: str = "") -> None:
    """Raise `ModelError` if a model or a part of it is in training mode."""
    # The arguments of dropouts and batch norms in a graph decide, and the modules that it calls. Modules that only hold
    # parameters, as in the result of `ExportedProgram.module`, have a mode that nothing reads.
    model = model or type(module).__name__
    parts: Iterable[tuple[str, nn.Module]] = module.named_children()
    if isinstance(module, GraphModule):
        for working in nodes_where(module, is_in_training):
            raise ModelError(
                f"`{working.name}` of the model {model} is in training mode, in which dropout and batch norm change "
                "results.",
                hint="model.eval() before torch.export.export",
            )
        parts = sorted((str(node.target), part) for node, part in called_modules(module, nn.Module))
    elif module.training:
        what = f"`{name}` ({type(module).__name__}) of the model" if name else "The model"
        raise ModelError(
            f"{what} {model} is in training mode, in which dropout and batch norm change results.",
            hint="model.eval() before compiling",
        )
    for part, inner in parts:
        if not is_guard(inner):
            check_evaluation_mode(inner, f"{name}.{part}" if name else part, model)


def check_is_no_state_dict(model: object) -> None:
    """Raise `ModelError` if a model is a dictionary of weights, as torch.load returns it, or holds one."""
    for value in model.values() if isinstance(model, Mapping) else ():
        inner = list(value.values()) if isinstance(value, Mapping) else [value]
        if inner and all(isinstance(part, torch.Tensor) for part in inner):
            what = "The model is a dictionary of weights (a state_dict or a checkpoint), which has no operators."
            raise ModelError(what, hint="model = Net(); model.load_state_dict(weights); compile(model.eval(), ...)")


def check_module(model: object) -> None:
    """Raise `ModelError` if a model is no module, or one that torch.export does not take or would change."""
    check_is_no_state_dict(model)
    if not isinstance(model, nn.Module):
        path = os.fspath(model) if isinstance(model, (str, os.PathLike)) else ""
        hint = "pass the module itself, compile(Net().eval(), (x,), ...), or the path of a file .tflite or .onnx"
        if path.endswith(".pt2"):
            hint = "torch.export.load(path) if you trust the file; `micronpu compile` does not execute it"
        elif path.endswith((".pt", ".pth", ".ckpt")):
            hint = "model = Net(); model.load_state_dict(torch.load(path)); compile(model.eval(), ...)"
        raise ModelError(
            f"The model is of type {type(model).__name__}, which is neither a torch.nn.Module nor an exported program.",
            hint=hint,
        )
    _check_parts(model)
    check_evaluation_mode(model)
    _check_weights(model)
    check_names(name for name, _ in (*model.named_modules(), *model.named_parameters(), *model.named_buffers()))


_KINDS = (
    (
        ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized"),
        "is quantized in eager mode (torch.ao), which torch.export does not take",
        "the float network with calibration data, or a network that prepare_pt2e and convert_pt2e quantized",
    ),
    (
        ("torch.ao.quantization.observer", "torch.ao.quantization.fake_quantize", "torchao.quantization.pt2e"),
        "is an observer or a fake quantizer that was left in the model",
        "convert_pt2e(module) if prepare_pt2e made it; the float network otherwise, with `train=` for the training",
    ),
)


def _check_parts(model: nn.Module) -> None:
    """Raise `ModelError` if the model, or a part of it, is of a kind that torch.export does not take."""
    for name, part in model.named_modules():
        what = f"`{name}` of the model {type(model).__name__}" if name else "The model"
        if isinstance(part, torch.jit.ScriptModule):
            raise ModelError(
                f"{what} is TorchScript ({type(part).__name__}), which torch.export does not take.",
                hint="the module that it was made of: model = Net(); model.load_state_dict(scripted.state_dict()); "
                "compile(model.eval(), ...)",
            )
        for homes, is_kind, hint in _KINDS:
            if any(f"{type(part).__module__}.".startswith(f"{home}.") for home in homes):
                raise ModelError(f"{what} ({type(part).__name__}) {is_kind}.", hint=hint)


def _check_weights(model: nn.Module) -> None:
    """Raise `ModelError` if a parameter or buffer of the model has no usable values."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        what = ""
        if is_lazy(tensor):
            what, hint = "has no shape yet", "model(*example_inputs) once before compiling"
        elif isinstance(tensor, FakeTensor):
            what, hint = "was made inside of FakeTensorMode and has no values", "the model made outside of it"
        elif tensor.is_inference():
            what, hint = "was made inside of torch.inference_mode, which torch.export refuses", "one made outside of it"
        if what:
            raise ModelError(f"`{name}` of the model {type(model).__name__} {what}.", hint=hint)


_UNWRITABLE = re.compile(r'["\\\x00-\x1f\x7f\ud800-\udfff]')


def check_names(names: Iterable[str]) -> None:
    """Raise `ModelError` if a module, parameter or buffer has a name that would end a string of Python source."""
    # torch.fx writes these names into source code that it runs, in quotation marks or as attributes.
    for name in names:
        if _UNWRITABLE.search(name) or any(keyword.iskeyword(part) for part in name.split(".")):
            raise ModelError(
                f"A module, parameter or buffer of the model is called {name!r}, which torch cannot write as Python.",
                hint="a name of letters, digits and underscores in add_module, ModuleDict or register_buffer",
            )


def all_finite(tensor: torch.Tensor) -> bool:
    """Return True if no element is NaN or infinite."""
    # A NaN or infinity also shows in the sum, which needs no memory; the second check is for sums that overflow.
    values = tensor.detach()
    return math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all())


def check_parameters(module: nn.Module) -> None:
    """Raise `ModelError` if a parameter contains NaN or infinity, or has no values."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            what = f"The parameter `{name}` of the model is on the device meta, where tensors have no values."
            raise ModelError(what, hint="the model with its weights, model.to_empty(device='cpu') and load_state_dict")
        if parameter.is_floating_point() and not all_finite(parameter):
            raise ModelError(
                f"The parameter `{name}` of the model holds NaN or infinity, which int8 cannot express.",
                hint="look for a training that diverged, or for a checkpoint that was loaded in part",
            )


def check_examples(module: GraphModule, examples: Sequence[torch.Tensor]) -> None:
    """Raise `ModelError` if example inputs do not match the inputs of their program."""
    expected = [n.meta.get("val") for n in module.graph.find_nodes(op="placeholder")]
    if len(expected) != len(examples):
        what = f"`example_inputs` holds {plural(len(examples), 'tensor')}, but the program takes {len(expected)}."
        raise ModelError(what, hint="the inputs that the program was exported with")
    for position, (wanted, given) in enumerate(zip(expected, examples, strict=True)):
        if isinstance(wanted, torch.Tensor) and (given.dtype != wanted.dtype or given.shape != wanted.shape):
            what = f"Example input {position} is {_type(given)}, but the program takes {_type(wanted)}."
            raise ModelError(what, hint="the inputs that the program was exported with")


def _type(tensor: torch.Tensor) -> str:
    """``float32[1, 3, 32, 32]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


Train = Callable[[nn.Module], Any]
"""Trains a module in place; `train()` and `eval()` of the module work as usual."""

_DROPOUTS = {overload.split(".")[0] for overload in DROPOUTS}


def is_dropout(node: Node) -> bool:
    return overload_name(node).split(".")[0].rstrip("_") in _DROPOUTS


def _is_batch_norm(node: Node) -> bool:
    return overload_name(node) in BATCH_NORMS and "training" in arguments(node)


def has_modes(node: Node) -> bool:
    """Return True if a node computes another thing in training: a dropout, or a batch norm."""
    return is_dropout(node) or _is_batch_norm(node)


def is_in_training(node: Node) -> bool:
    """Return True if a node is an active dropout or a batch norm that uses the statistics of its batch."""
    mode = "training" if _is_batch_norm(node) else "train" if is_dropout(node) else ""
    return bool(mode and arguments(node).get(mode))


def set_training(model: GraphModule, training: bool, dropouts: bool = True, batch_norms: bool = True) -> None:
    """Switch only the flags of dropouts and batch norms in an exported module."""
    for node in calls(model):
        if dropouts and is_dropout(node):
            _set_argument(node, "train", training)
        elif batch_norms and _is_batch_norm(node) and arguments(node)["running_mean"] is not None:
            _set_argument(node, "training", training)
    if dropouts:
        for module in model.modules():
            if "in_training" in vars(module):
                vars(module)["in_training"] = training
    model.recompile()


def _set_argument(node: Node, name: str, value: bool) -> None:
    schema = schema_of(node.target).arguments
    position = next(i for i, a in enumerate(schema) if a.name == name)
    if len(node.args) > position:
        node.update_arg(position, value)
    else:
        node.update_kwarg(name, value)


_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("argsort", "kthvalue", "median", "mode", "msort", "nonzero", "quantile", "sort", "topk", "unique"),
        "return the scores and choose among them in the application; torch.minimum and torch.maximum sort a few values",
    ),
    (
        ("bucketize", "scatter", "scatter_add", "searchsorted", "take"),
        "look the values up in the application and make them an input; constant indices become slices",
    ),
    (
        ("stft", "istft", "complex", "polar", "view_as_complex", "view_as_real"),
        "micronpu.audio.LogMel for log-mel features; else products with constant matrices of sines and cosines, or the "
        "spectrum computed in the application",
    ),
    (
        ("max_unpool2d", "max_unpool3d"),
        "a transposed convolution or an interpolation, since no target keeps the positions of the maxima",
    ),
    (("logaddexp",), "torch.maximum(x, y) + F.softplus(-(x - y).abs())"),
    (("atan2", "angle"), "return both operands and compute the angle in the application"),
    (
        ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d", "grid_sample"),
        "x.flatten(2) @ matrix if the sampling points are constant, or F.interpolate; otherwise resample in the "
        "application",
    ),
    (
        ("embedding_bag", "_embedding_bag_forward_only"),
        "nn.Embedding, and the sum or mean of each bag, of a size that is known at export",
    ),
    (
        (
            "fake_quantize_per_tensor_affine",
            "_fake_quantize_learnable_per_tensor_affine",
            "fake_quantize_per_channel_affine",
            "_fake_quantize_learnable_per_channel_affine",
        ),
        "the network without it: compilation quantizes by the calibration data, and `train=` trains with that",
    ),
    (("bernoulli", "multinomial", "normal", "rand", "randn", "rand_like", "randn_like"), "make the noise an input"),
)
_GENERAL = "write it with operators of docs/support-table.md, or leave it to the core as it is"


def hint_for(overload: str, general: str = _GENERAL) -> str:
    """Return a hint for an ATen overload that no operator imports: an equivalent replacement, or general advice."""
    packet = overload.split(".")[0].rstrip("_")
    for names, advice in _ADVICE:
        if packet in names or (packet.startswith(("fft", "_fft")) and "stft" in names):
            return advice
    decomposed = next((w for w in LOWERINGS.get(overload, ()) if isinstance(w, Decomposition)), None)
    if decomposed is not None:
        return f"a call of the form that is written as others: {decomposed.sentence.rstrip('.')}"
    same = sorted(name for name in LOWERINGS if name.split(".")[0] == packet)
    if same:
        return f"{', '.join(f'`{name}`' for name in same)}, if the model can be written with it"
    return general
