"""torchao's flow: for training, for quantizers of other packages, and for direct calls of `prepare_pt2e`.

Only this module, and modules that import it, import torchao.

Some decisions need the calibration data before the float program is rewritten (norms over rows of unequal size), or
between calibration and conversion (values that feed a concat and other operators); torchao's functions have no place
for them.  `convert_pt2e` therefore quantizes the float program once more, with the inputs that the prepared module was
called with, by the function that `micronpu.compile` uses.

The observers of the prepared module decide alone where those inputs are not all that counts: another quantizer
annotated a part of the program, or observers were changed by hand or loaded from a checkpoint.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.graph import CodeGen

from micronpu.base.callers import warn
from micronpu.frontend.checks import has_modes, set_training
from micronpu.frontend.facts import FLOAT_PROGRAM
from micronpu.frontend.graphs import GraphModule, Node, calls, nodes_where
from micronpu.frontend.program import overload_name
from micronpu.frontend.tensors import attribute, copied, set_attribute, with_own_graph
from micronpu.ir.facts import Form
from micronpu.ops.convolution import CONVOLUTIONS, TRANSPOSED
from micronpu.ops.normalization import BATCH_NORMS
from micronpu.quantize.nodes import form_of
from micronpu.quantize.observers import observer_for
from micronpu.quantize.observing import FixedObserver, RangeObserver
from micronpu.quantize.running import Row
from micronpu.quantize.solver.groups import concat_results
from micronpu.quantize.specs import KEY, FixedQParamsQuantizationSpec, QuantizationSpec, SharedQuantizationSpec, noted
from micronpu.upstream import torchao as upstream
from micronpu.upstream.session import exclusive
from micronpu.upstream.torch import OpOverload, codegen_of, schema_of

upstream.import_torchao()

from torchao.quantization import pt2e  # noqa: E402
from torchao.quantization.pt2e import FakeQuantizeBase, ObserverBase, quantizer  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e  # noqa: E402

__all__ = ["FakeQuantizeBase", "ObserverBase", "convert_pt2e", "prepare_pt2e", "prepare_qat_pt2e"]  # torchao's

upstream.accept_as_observer(RangeObserver)


def fake_quantized(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int) -> torch.Tensor:
    """Return `torch.fake_quantize_per_tensor_affine` and its gradient in a fraction of the time."""
    zero, step = int(zero_point), float(scale)
    y = F.hardtanh(x, (low - zero - 0.5) * step, (high - zero + 0.5) * step)  # its gradient depends on x alone
    rounded = (x.detach() * (1 / scale)).round_().clamp_(low - zero, high - zero).mul_(scale)
    y.detach().copy_(rounded)
    return y


class FakeQuantize(pt2e.FakeQuantize):
    """torchao's fake quantization, faster for activations."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_per_channel or not self.fake_quant_enabled[0]:
            made: torch.Tensor = super().forward(x)
            return made
        self.disable_fake_quant()
        try:
            super().forward(x)  # the observer alone
        finally:
            self.enable_fake_quant()
        return fake_quantized(x, self.scale, self.zero_point, self.quant_min, self.quant_max)


class _Maker:
    """Makes the observer of an annotation, without torchao's additional arguments."""

    def __init__(self, spec: QuantizationSpec) -> None:
        self._spec = spec
        self.__name__ = spec.observer  # torchao looks for "PerChannel" in it, to decide whether to pass the axis

    def with_args(self, **more: object) -> _Maker:
        return self

    def __call__(self, **more: object) -> RangeObserver | FixedObserver:
        return observer_for(self._spec)


def annotated_by_others(model: GraphModule) -> list[Node]:
    """Return nodes that another quantizer has annotated."""
    return nodes_where(model, upstream.is_annotated)


def hand_over(model: GraphModule) -> None:
    """Write the annotations of a model in torchao's form, in place."""
    notes = noted(model.graph.nodes)
    joined = concat_results(notes)
    for node, own in notes.items():
        inputs = {operand: _spec(spec) for operand, spec in own.input_qspec_map.items()}
        output = joined.get(node, own.output_qspec)
        node.meta["quantization_annotation"] = upstream.annotation(inputs, _spec(output))


def _spec(spec: object) -> object:
    if isinstance(spec, SharedQuantizationSpec):
        return quantizer.SharedQuantizationSpec(spec.edge_or_node)
    if not isinstance(spec, FixedQParamsQuantizationSpec | QuantizationSpec):
        return spec
    given = {name: getattr(spec, name) for name in ("dtype", "quant_min", "quant_max", "qscheme")}
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return quantizer.FixedQParamsQuantizationSpec(**given, scale=spec.scale, zero_point=spec.zero_point)
    made = FakeQuantize.with_args(observer=_Maker(spec)) if spec.is_fake else _Maker(spec)
    made = made if spec.maker is None else spec.maker
    return quantizer.QuantizationSpec(
        **given, ch_axis=spec.ch_axis, is_dynamic=spec.is_dynamic, observer_or_fake_quant_ctr=made
    )


# ---------------------------------------------------------------- recorded calls


Quantize = Callable[[GraphModule, list[list[Row]]], GraphModule]


class Recorder(nn.Module):
    """Keeps a copy of the inputs of each finished call of a prepared module.

    x -> ... -> y        x -> ... -> y, recorder(x)

    Args:
        program: the float program before any rewrite; it shares tensors with the prepared module.
        quantize: converts the program, which it consumes, with the recorded calls to the quantized program.
        annotated: names of the nodes of the prepared module that are annotated.
    """

    def __init__(self, program: GraphModule, quantize: Quantize, annotated: Collection[str]) -> None:
        super().__init__()
        self._given: Any = (program, quantize, annotated)  # in a tuple, the program is no submodule
        self._observers: tuple[nn.Module, ...] = ()
        self._observed: list[torch.Tensor] = []
        self.rows: list[Row] = []

    def watch(self, observers: Iterable[nn.Module]) -> None:
        self._observers = tuple(dict.fromkeys(observers))

    def forward(self, *inputs: torch.Tensor) -> None:
        """Record a call, except those of an export, with fake tensors."""
        if self._given and all(type(x) in (torch.Tensor, nn.Parameter) for x in inputs):
            dtypes = [n.meta["val"].dtype for n in _inputs(self._given[0])]
            with torch.inference_mode(False), torch.no_grad():
                self.rows.append(tuple(x.to(d, copy=True) for x, d in zip(inputs, dtypes, strict=True)))
                self._observed = [buffer.clone() for buffer in self._buffers_of_observers()]

    def convert(self, model: GraphModule, node: Node) -> None:
        """Replace a module's graph by the quantized program; torchao calls it last of all observers."""
        model.graph.erase_node(node)
        if not self._decides(model):
            warn(
                "`convert_pt2e` uses the observers alone: the prepared module was not called, another quantizer "
                "annotated a part, or observers were changed or loaded. Norms over rows of unequal size, and values "
                "that feed a concat and another operator, may be less accurate than with `micronpu.compile`."
            )
            return
        program, quantize, _ = self._given
        with exclusive():
            made = quantize(_copied(program), [[row] for row in self.rows])
        made.graph.set_codegen(codegen_of(model.graph))
        for new in made.graph.nodes:
            new.meta.pop(KEY, None)  # later passes of torchao expect its own annotations
            if new.op in ("get_attr", "call_module"):
                _adopt(model, made, new)
        model.graph = made.graph

    def _decides(self, model: GraphModule) -> bool:
        """Return True if the recorded calls determine the result."""
        now = self._buffers_of_observers()
        return (
            bool(self.rows)
            and annotated(model) <= set(self._given[2])
            and len(now) == len(self._observed)
            and all(map(torch.equal, now, self._observed))
        )

    def _buffers_of_observers(self) -> list[torch.Tensor]:
        return [buffer for observer in self._observers for buffer in observer.buffers()]

    def __getstate__(self) -> dict[str, object]:
        return vars(self) | {"_given": (), "rows": []}  # a pickled graph has lost the facts about its nodes

    def __deepcopy__(self, memo: dict[int, Any]) -> Recorder:
        made = Recorder.__new__(Recorder)
        vars(made).update(vars(self))
        made._observers = copy.deepcopy(self._observers, memo)
        made.rows = list(self.rows)
        return made


def _adopt(model: GraphModule, made: GraphModule, node: Node) -> None:
    """Copy the tensor or submodule of another module's node into a module; both have the submodules of one model."""
    path, value = str(node.target), attribute(made, node)
    if "." in path and value is not None:
        if attribute(model, node) is not value:
            set_attribute(model, node, value)
    else:
        if hasattr(model, path):
            delattr(model, path)
        setattr(model, path, getattr(made, path))


def _inputs(model: GraphModule) -> list[Node]:
    return model.graph.find_nodes(op="placeholder")


def annotated(model: GraphModule) -> set[str]:
    return {node.name for node in nodes_where(model, lambda node: KEY in node.meta)}


def _copied(model: GraphModule) -> GraphModule:
    """Return a copy of a float program that shares its tensors."""
    made = with_own_graph(model)
    for name, part in list(made.named_children()):
        if isinstance(part, GraphModule):  # the body of a loop
            made.set_submodule(name, copied(part))
    return made


def keep_float_program(model: GraphModule) -> None:
    """Record the current float program in the meta of an exported float module before it is rewritten."""
    if any(not isinstance(node.meta.get("val"), torch.Tensor) or _is_written(node) for node in _inputs(model)):
        return  # calls with sizes, or with changing inputs, cannot be replayed
    made = _copied(model)
    made.graph.set_codegen(CodeGen())  # its inputs are those of the graph, one by one
    made.recompile()
    FLOAT_PROGRAM.say(model, made)


def _is_written(node: Node) -> bool:
    return any(
        isinstance(user.target, OpOverload) and schema_of(user.target).is_mutable and user.args[:1] == (node,)
        for user in node.users
    )


def record_calls(model: GraphModule, quantize: Quantize) -> None:
    """Add a recorder to an annotated model whose float program was kept, in place."""
    program, inputs = FLOAT_PROGRAM.take(model), _inputs(model)
    if program is not None and inputs:
        model.add_module("calibration_inputs", Recorder(program, quantize, annotated(model)))
        with model.graph.inserting_before(model.graph.output_node()):
            model.graph.call_module("calibration_inputs", tuple(inputs))


upstream.accept_as_observer(Recorder)


# ---------------------------------------------------------------- replacements of torchao's functions

_BETWEEN = (Form.QUOTIENT, Form.SUM)
"""Operators that torchao's own rewrite inserts between a convolution and its batch norm."""


def _own_switch(dropouts: bool) -> Callable[[upstream.Function], upstream.Function]:
    """Change only the flag of dropouts or of batch norms."""

    def switch(m: GraphModule, train_to_eval: bool) -> None:
        set_training(m, not train_to_eval, dropouts=dropouts, batch_norms=not dropouts)

    return lambda original: switch


def can_match(model: GraphModule) -> bool:
    """Return True if a convolution is followed by a batch norm that torchao's patterns match."""
    for node in calls(model, *BATCH_NORMS):
        before = node.args[0]
        for _ in _BETWEEN:
            if isinstance(before, Node) and form_of(before) in _BETWEEN:
                before = before.args[0]
        if isinstance(before, Node) and overload_name(before) in (*CONVOLUTIONS, *TRANSPOSED):
            return True
    return False


def _only_where_it_can_match(original: upstream.Function) -> upstream.Function:
    @functools.wraps(original)
    def guarded(m: GraphModule) -> GraphModule:
        fused: GraphModule = original(m) if can_match(m) else m
        return fused

    return guarded


def _ask_each(original: upstream.Function) -> upstream.Function:
    def prepare_obs_or_fq_callback(self: Any, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        for part in self.quantizers:
            part.prepare_obs_or_fq_callback(model, edge_or_node_to_obs_or_fq)

    return prepare_obs_or_fq_callback


def _tell_the_quantizer(original: upstream.Function) -> upstream.Function:
    @functools.wraps(original)
    def prepare(
        model: GraphModule,
        node_name_to_scope: object,
        is_qat: bool,
        obs_or_fq_callback: upstream.Function | None = None,
    ) -> GraphModule:
        given = getattr(obs_or_fq_callback, "__self__", None)
        # This package's quantizers check their use, and list their parts like torchao's composed one.
        parts: Sequence[object] = [given] if hasattr(given, "check_use") else getattr(given, "quantizers", ())
        for part in parts:
            if hasattr(part, "check_use"):
                part.check_use(is_qat)
        prepared: GraphModule = original(model, node_name_to_scope, is_qat, obs_or_fq_callback)
        if (own := model.meta.pop(_REPAIRS, None)) is not None and any(map(has_modes, prepared.graph.nodes)):
            prepared.meta[_REPAIRS] = own
        return prepared

    return prepare


_REPAIRED: dict[str, Callable[[upstream.Function], upstream.Function]] = {
    "dropout": _own_switch(dropouts=True),
    "batch_norm": _own_switch(dropouts=False),
    "_fuse_conv_bn_qat": _only_where_it_can_match,
    "_fold_conv_bn_qat": _only_where_it_can_match,
    "ask_each": _ask_each,
    "prepare": _tell_the_quantizer,
}


_REPAIRS = "micronpu_repairs"
"""Key of a module's meta: its `Repairs`."""


class Repairs:
    """Replacements of torchao's functions, as long as it or a copy of it lives.

    Their names are those of `micronpu.upstream.torchao.REPAIRS`, which has the reasons.  Another version of torchao is
    not changed, with a warning: it is slower, and must be examined first.

    Attributes:
        are_made: False for another version of torchao.
    """

    def __init__(self) -> None:
        self.are_made = upstream.repair(_REPAIRED)
        if self.are_made:
            weakref.finalize(self, upstream.restore).atexit = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Repairs:
        return Repairs()

    def __reduce__(self) -> tuple[type[Repairs], tuple[()]]:
        return Repairs, ()


def repair_torchao(model: GraphModule) -> None:
    """Replace functions of torchao until the model is prepared.

    If it has dropouts or batch norms then, they stay replaced until no copy of it exists any more (torch caches the
    device of each prepared module, and so keeps it): torchao switches modes by writing its own probability, momentum
    and epsilon into them.
    """
    model.meta.setdefault(_REPAIRS, Repairs())


def forget_repairs(*models: GraphModule) -> None:
    """Put torchao's own functions back, unless other models need the replacements."""
    for model in models:
        model.meta.pop(_REPAIRS, None)
