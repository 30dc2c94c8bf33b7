"""Quantization settings of tensors, and of parts of a model."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import nn

from micronpu.base.arguments import check_switch, check_text, check_type, described, is_class
from micronpu.base.errors import OptionError
from micronpu.frontend.facts import IS_STEP, SETTING
from micronpu.frontend.graphs import GraphModule, Node, nodes_where
from micronpu.frontend.program import aten_overload, is_compute, overload_name, short_name
from micronpu.ir.op import QuantizationRule
from micronpu.ir.types import DType
from micronpu.quantize.observers import OBSERVERS, for_activations, for_weights
from micronpu.quantize.specs import FixedQParamsQuantizationSpec, QuantizationSpec, check_specs, with_spec
from micronpu.quantize.thresholds import ACTIVATION_EPS, CONSTANT_EPS, PERCENTILE, WEIGHT_BITS
from micronpu.upstream.torch import OpOverload, OpOverloadPacket

SHARES = "shares"
"""Name of the observer of weights of a softmax over long rows."""
FINER = "finer"
"""Name of the observer of results that share their operand's qparams unless their own scale is much smaller."""
OF_RESULTS = (SHARES, FINER)
"""Observers for known kinds of values, whose qparams no other value uses."""

Activations = Literal["int8", "int16"]
IOType = Literal["int8", "uint8", "int16"]
"""Integer types of a program's inputs and outputs."""


class QuantizerChoices(TypedDict, total=False):
    """Options of all quantizers; `StaticQuantizer` describes them and their defaults."""

    per_channel: bool
    is_qat: bool
    activations: Activations
    io: IOType | None


_TORCH_TYPES = {"int8": torch.int8, "int16": torch.int16}


def check_activations(value: object, name: str = "activations") -> Activations:
    """Return a dtype of activations; raise `OptionError` if it is invalid."""
    known: tuple[Activations, ...] = get_args(Activations)
    if isinstance(value, str) and value in known:
        return known[known.index(value)]
    hint = f"one of {', '.join(known)}"
    if str(value).removeprefix("torch.") == "uint8":
        hint += '; a program that takes the bytes of an image has `io="uint8"`'
    shown = described(value) if not isinstance(value, torch.dtype) else str(value)
    raise OptionError(f"`{name}` is {shown}; activations are int8 or int16.", hint=hint)


def check_io(value: object, name: str = "io") -> IOType:
    """Return a dtype of a program's inputs and outputs; raise `OptionError` if it is invalid."""
    known: tuple[IOType, ...] = get_args(IOType)
    if isinstance(value, str) and value in known:
        return known[known.index(value)]
    what = f"`{name}` is {described(value)}; inputs and outputs are {', '.join(known)}, or floats."
    raise OptionError(what, hint=f'{name}="int8", or "uint8" for the bytes of a camera')


@dataclass(frozen=True)
class QuantizationConfig:
    """Quantization of an operator's tensors.

    Weights are int8, symmetric in [-127, 127], or in [-7, 7] for four bits.

    Attributes:
        per_channel: one weight scale per output channel rather than one per tensor.
        activations: "int8", asymmetric, or "int16", symmetric (16x8), for NPUs that have it.
        is_qat: fake quantization that lets gradients pass, for `prepare_qat_pt2e`, rather than observers.
        activation_observer: where the range of an activation comes from in post-training quantization: "histogram" (the
            range with the least squared error, assuming values spread evenly within an LSB), "mse" (the same with the
            actual rounding error of each value), "percentile" (all but a small share at either end), "minmax" (every
            value seen) or "moving_average" (of the extremes per batch).  QAT always takes the moving average, and int16
            twice the range of all values seen: it needs no more steps, and values of other data may be larger.
        percentile: for "percentile", of the values that are inside at either end, above 50 and up to 100.
        input_observer: the same for the inputs of the program, which are not clipped by default.
        weight_observer: where the range of weights comes from: "minmax" (the largest weight) or "mse" (the range with
            the least squared error).
        as_bytes: for `set_io` only: integer inputs and outputs are uint8, 128 more than in int8.
        input_spec, output_spec, weight_spec: torchao's `QuantizationSpec` of values that come into the program, of all
            other activations and of weights, with a custom observer; None to use the other fields.
        freeze_batch_norm: QAT only: batch norms use and keep the model's statistics, for training with small batches.
            Their weight and bias are trained.

        weight_bits: 8, or fewer down to 4 (15 values), which Vela stores in fewer bytes; they are computed as int8.

    Raises:
        OptionError: a value is of another type, or "freeze_batch_norm" is set without ``is_qat``.
    """

    per_channel: bool = True
    is_qat: bool = False
    activation_observer: str = "histogram"
    freeze_batch_norm: bool = False
    activations: Activations = "int8"
    weight_bits: int = 8
    percentile: float = PERCENTILE
    input_observer: str = "minmax"
    weight_observer: str = "minmax"
    as_bytes: bool = False
    input_spec: Any = None
    output_spec: Any = None
    weight_spec: Any = None

    def __post_init__(self) -> None:
        check_type("weight_bits", self.weight_bits, int)
        if self.weight_bits not in WEIGHT_BITS:
            what = f"`weight_bits` is {self.weight_bits!r}; it is one of {list(WEIGHT_BITS)}."
            raise OptionError(what, hint="weight_bits=8")
        check_activations(self.activations)
        for name in ("per_channel", "is_qat", "freeze_batch_norm", "as_bytes"):
            check_switch(name, getattr(self, name))
        for name, known in (
            ("activation_observer", for_activations()),
            ("input_observer", for_activations()),
            ("weight_observer", for_weights()),
        ):
            check_text(name, getattr(self, name))
            if getattr(self, name) not in known:
                what = f"`{name}` is {getattr(self, name)!r}; it is one of {list(known)}."
                raise OptionError(what, hint=f"{name}={next(iter(known))!r}")
        share = self.percentile
        if isinstance(share, bool) or not isinstance(share, int | float) or not 50 < share <= 100:
            what = f"`percentile` is {described(share)}; it is above 50 and up to 100."
            raise OptionError(what, hint="99.9 or 99.99")
        specs = {name: getattr(self, name) for name in ("input_spec", "output_spec", "weight_spec")}
        check_specs(specs, self.activations, self.per_channel, self.weight_bits)
        if self.as_bytes and self.activations != "int8":
            what = f"`as_bytes` is about 8 bits, and `activations` is {self.activations}, numbers of both signs."
            raise OptionError(what, hint='activations="int8", or without `as_bytes`')
        if self.freeze_batch_norm and not self.is_qat:
            what = "`freeze_batch_norm` is about training, and `is_qat` is False."
            raise OptionError(what, hint="is_qat=True, or leave it out")

    def widened(self) -> QuantizationConfig:
        """Return the configuration with int16 activations, without custom specs, which are for int8."""
        return replace(self, activations="int16", input_spec=None, output_spec=None)

    @classmethod
    def of_io(cls, io: IOType, *, is_qat: bool = False) -> QuantizationConfig:
        """Return the configuration of the program's inputs and outputs, for `StaticQuantizer.set_io`."""
        activations: Activations = "int16" if io == "int16" else "int8"
        return cls(is_qat=is_qat, activations=activations, as_bytes=io == "uint8")

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of activations."""
        return _TORCH_TYPES[self.activations]

    @property
    def has_specs(self) -> bool:
        """True if it has a custom observer, which torchao calls."""
        return not (self.input_spec is self.output_spec is self.weight_spec is None)

    @property
    def activation(self) -> QuantizationSpec:
        """Spec of activations: one scale per tensor; int8 asymmetric, int16 symmetric, or a custom spec."""
        return with_spec(self._activation, self.output_spec)

    @property
    def _activation(self) -> QuantizationSpec:
        limits, observer = torch.iinfo(self.dtype), OBSERVERS[self.activation_observer]
        if self.is_qat:
            observer = OBSERVERS["moving_average"]
        elif self.activations != "int8":  # more values than rounding needs, so that other data may be larger
            observer = OBSERVERS["beyond"]
        return QuantizationSpec(
            dtype=self.dtype,
            quant_min=limits.min,
            quant_max=limits.max,
            qscheme=torch.per_tensor_affine if self.activations == "int8" else torch.per_tensor_symmetric,
            observer=observer.name,
            eps=ACTIVATION_EPS[self.activations],
            is_fake=self.is_qat,
            options=tuple((name, getattr(self, name)) for name in observer.options),
        )

    @property
    def constant(self) -> QuantizationSpec:
        """`activation` for a known number of any size: 1/N of a mean must be representable."""
        return replace(self.activation, eps=CONSTANT_EPS)

    @property
    def shares(self) -> QuantizationSpec:
        """Spec of the int8 result of a softmax over long rows, if it may have a smaller scale than 1/256."""
        return replace(self._activation, observer=SHARES, eps=CONSTANT_EPS, options=())

    @property
    def may_share(self) -> bool:
        """True if it is int8 and not for training, in which qparams must be known from the beginning."""
        return self.activations == "int8" and not self.is_qat and self.output_spec is None

    def finer(self, times: float, room: float) -> QuantizationSpec:
        """Return the spec of an average or a clamp, with its own qparams if their scale is smaller by this factor."""
        return replace(self._activation, observer=FINER, options=(("times", times), ("room", room)))

    def between(self, rule: QuantizationRule) -> FixedQParamsQuantizationSpec | None:
        """Return the spec of values between those of fixed whole-number qparams; None if their limits are unknown."""
        if rule.limits is None:
            return None
        low, high = rule.limits
        wide = self.activations != "int8"
        scale = max(-low, high) / torch.iinfo(self.dtype).max if wide or low < 0 else (high - low) / 255
        zero_point = 0 if wide or low < 0 else -128
        return replace(self.fixed_activation(rule), scale=scale, zero_point=zero_point)

    def fixed_activation(self, rule: QuantizationRule) -> FixedQParamsQuantizationSpec:
        """Return the fixed qparams that an operator prescribes for its result."""
        limits = torch.iinfo(self.dtype)
        qparams = rule.fixed_for(DType(self.activations))
        assert qparams is not None
        return FixedQParamsQuantizationSpec(
            dtype=self.dtype,
            scale=qparams.scale[0],
            zero_point=qparams.zero_point[0],
            quant_min=limits.min,
            quant_max=limits.max,
            qscheme=torch.per_tensor_affine,
        )

    @property
    def io_activation(self) -> QuantizationSpec:
        """`activation` for outputs of the program, without clipping of values seen in calibration."""
        # If two class scores were clipped, they would be equal, and the largest undecided.
        if self.is_qat or not self._clips:
            return self.activation
        return replace(self, activation_observer="minmax").activation

    @property
    def _clips(self) -> bool:
        return OBSERVERS[self.activation_observer].clips

    @property
    def input_activation(self) -> QuantizationSpec:
        """`activation` for inputs of the program."""
        if self.input_spec is not None:
            return with_spec(self._activation, self.input_spec)
        if self.is_qat or (not self._clips and self.input_observer == "minmax"):
            return self.activation
        return replace(self, activation_observer=self.input_observer).activation

    @property
    def symmetric_activation(self) -> QuantizationSpec:
        """Spec of values with the zero point 0."""
        return replace(self.activation, qscheme=torch.per_tensor_symmetric)

    def weight(self, axis: int) -> QuantizationSpec:
        """Return the spec of weights: int8, symmetric in [-127, 127], or [-7, 7]; ``axis`` has the output channels."""
        limit = 2 ** (self.weight_bits - 1) - 1
        made = QuantizationSpec(
            dtype=torch.int8,
            quant_min=-limit,
            quant_max=limit,
            qscheme=torch.per_channel_symmetric if self.per_channel else torch.per_tensor_symmetric,
            observer=self.weight_observer,
            eps=ACTIVATION_EPS["int8"],
            ch_axis=axis if self.per_channel else None,
            of_weights=True,
            is_fake=self.is_qat,
        )
        return made if self.weight_spec is None else replace(made, maker=self.weight_spec.observer_or_fake_quant_ctr)


# ---------------------------------------------------------------- which part of a model


def module_stack(node: Node) -> list[tuple[str, str]]:
    """Return (path, class name) of the modules that a node was traced in, outermost first; [] if not recorded."""
    stack = node.meta.get("nn_module_stack") or {}
    return [
        (re.sub(r"@\d+$", "", str(path)).removeprefix("L['self']").lstrip("."), _class_name(kind))
        for path, kind in stack.values()
    ]


def _class_name(kind: object) -> str:
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else str(kind)


Setting = QuantizationConfig | None
Finder = Callable[[GraphModule], Iterable[Node]]


def as_finder(given: object) -> Finder:
    """Return a function that finds the nodes that a user selects.

    Args:
        given: an object with ``find_nodes(model)``, a function of a node, or names or operators, one or several.
    """
    if hasattr(given, "find_nodes"):
        return given.find_nodes  # type: ignore[no-any-return]
    several = given if isinstance(given, (list, tuple, set, frozenset)) else [given]
    if several and all(isinstance(g, (str, OpOverload, OpOverloadPacket)) for g in several):
        plain = {g for g in several if isinstance(g, str)}
        operators = {operator_key(g) for g in several if not isinstance(g, str)}
        return lambda model: nodes_where(
            model, lambda n: n.name in plain or (operators | plain).intersection(operator_names(n))
        )
    if callable(given):
        return lambda model: nodes_where(model, given)
    raise OptionError(
        f"`set_node_finder` got {given!r}, which finds no nodes.",
        hint="an object with find_nodes(model), a function of a node, or names of nodes or operators",
    )


def get_symmetric_quantization_config(
    is_per_channel: bool = True,
    is_qat: bool = False,
    is_dynamic: bool = False,
    act_qmin: int = -128,
    act_qmax: int = 127,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
    eps: float | None = None,
) -> QuantizationConfig:
    """Return int8 activations and weights, under ExecuTorch's name.

    Args:
        is_per_channel: one weight scale per output channel rather than one per tensor.
        is_qat: for quantization-aware training.
        is_dynamic: False, as ranges of an NPU are fixed.
        act_qmin, act_qmax: -128 and 127.
        weight_qmin, weight_qmax: -127 and 127, or -7 and 7 for weights of four bits.
        eps: ignored; the smallest scale is 2^-24.

    Raises:
        OptionError: no NPU supports the range or kind of quantization.
    """
    check_switch("is_dynamic", is_dynamic)
    check_type("eps", eps, float, int, type(None))
    ranges = {"act_qmin": act_qmin, "act_qmax": act_qmax, "weight_qmin": weight_qmin, "weight_qmax": weight_qmax}
    for name, given in ranges.items():
        check_type(name, given, int)
    if is_dynamic:
        raise OptionError("`is_dynamic` is True; an NPU needs qparams that are known beforehand.", hint="False")
    bits = {(-127, 127): 8, (-7, 7): 4}.get((weight_qmin, weight_qmax))
    if bits is None or (act_qmin, act_qmax) != (-128, 127):
        raise OptionError(
            f"Activations in [{act_qmin}, {act_qmax}] and weights in [{weight_qmin}, {weight_qmax}] are not supported.",
            hint="activations in [-128, 127], weights in [-127, 127] or [-7, 7]",
        )
    return QuantizationConfig(per_channel=is_per_channel, is_qat=is_qat, weight_bits=bits)


def get_symmetric_a8w4_quantization_config(
    is_per_channel: bool = True, is_qat: bool = True, is_dynamic: bool = False
) -> QuantizationConfig:
    """Return int8 activations and 4-bit weights; see `get_symmetric_quantization_config`."""
    return get_symmetric_quantization_config(is_per_channel, is_qat, is_dynamic, weight_qmin=-7, weight_qmax=7)


def get_symmetric_a16w8_quantization_config(
    is_per_channel: bool = True,
    is_qat: bool = False,
    is_dynamic: bool = False,
    weight_qmin: int = -127,
    weight_qmax: int = 127,
    epsilon: float | None = None,
) -> QuantizationConfig:
    """Return int16 activations and int8 weights; see `get_symmetric_quantization_config`."""
    config = get_symmetric_quantization_config(
        is_per_channel, is_qat, is_dynamic, -128, 127, weight_qmin, weight_qmax, epsilon
    )
    return config.widened()


def get_uint8_io_quantization_config(is_qat: bool = False, is_dynamic: bool = False) -> QuantizationConfig:
    """Return uint8 for `set_io`, int8 qparams shifted by 128, under ExecuTorch's name.

    Raises:
        OptionError: `is_dynamic` is True.
    """
    return replace(get_symmetric_quantization_config(is_qat=is_qat, is_dynamic=is_dynamic), as_bytes=True)


@dataclass(frozen=True)
class Corrections:
    """Corrections of weights, biases and ranges.

    Attributes:
        equalize: cross-layer equalization: successive layers with a ReLU between them equalize their ranges, channel by
            channel.
        bias_correction: subtract the mean error of each channel by rounded weights from the bias.
        adaptive_rounding: weights are rounded up or down so that the error of the layer's result is small (AdaRound's
            aim), instead of to the nearest value.
        fit_ranges: ranges of int8 activations, inputs among them, minimize the error of the results instead of that of
            each tensor; they replace the observers' ranges.
        projections: sqrt(a^2 + b^2) is computed as the largest of four projections of (a, b), with an error of at most
            4 %, since int8 cannot represent the range of squares.

    Raises:
        OptionError: a value is of another type.
    """

    equalize: bool = False
    bias_correction: bool = False
    adaptive_rounding: bool = False
    fit_ranges: bool = False
    projections: bool = False

    @property
    def need_data(self) -> bool:
        return self.bias_correction or self.adaptive_rounding or self.fit_ranges

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_switch(name, value)


@dataclass
class QuantizationSettings:
    """Configurations of operators; None leaves an operator float.

    The most specific setting wins: by node name, by a finder, by module name (the longest that fits), then by module
    type (the innermost), then by operator, then the global one.  ``io`` is for the inputs and outputs of the program,
    which are then integers.  ``corrections`` are for the whole model.
    """

    default: Setting = field(default_factory=QuantizationConfig)
    operators: dict[str, Setting] = field(default_factory=dict)
    types: dict[str, Setting] = field(default_factory=dict)
    names: dict[str, Setting] = field(default_factory=dict)
    nodes: dict[str, Setting] = field(default_factory=dict)
    finders: list[tuple[Finder, Setting]] = field(default_factory=list)
    found: dict[str, Setting] = field(default_factory=dict)
    io: Setting = None
    corrections: Corrections = field(default_factory=Corrections)

    @property
    def every(self) -> tuple[Setting, ...]:
        by_name = (self.operators, self.types, self.names, self.nodes, self.found)
        of_finders = [setting for _, setting in self.finders]
        return (self.default, self.io, *of_finders, *(c for settings in by_name for c in settings.values()))

    def find(self, model: GraphModule) -> None:
        """Apply the finders to a model; the last one that finds a node decides."""
        finders = [] if IS_STEP.of(model) else self.finders
        self.found = {node.name: setting for finder, setting in finders for node in finder(model)}

    def of(self, node: Node) -> Setting:
        if node.name in self.nodes:
            return self.nodes[node.name]
        if node.name in self.found:
            return self.found[node.name]
        stack = module_stack(node)
        path = stack[-1][0] if stack else ""
        fitting = [name for name in self.names if path == name or path.startswith(f"{name}.")]
        if fitting:
            return self.names[max(fitting, key=len)]
        for _, kind in reversed(stack):
            if kind in self.types:
                return self.types[kind]
        for name in operator_names(node):
            if name in self.operators:
                return self.operators[name]
        return self.default

    def check(self, model: GraphModule) -> None:
        """Raise `OptionError` with the closest names for one that matches nothing in the model."""
        if not (self.nodes or self.names or self.types or self.operators) or IS_STEP.of(model):
            return
        nodes = nodes_where(model, is_compute)
        stacks = [module_stack(n) for n in nodes]
        paths = {path for stack in stacks for path, _ in stack if path}
        paths |= {".".join(path.split(".")[:i]) for path in paths for i in range(1, path.count(".") + 1)}
        _refuse(self.nodes, {n.name for n in nodes}, "set_node_name", "node")
        _refuse(self.names, paths, "set_module_name", "module")
        _refuse(self.types, {kind for stack in stacks for _, kind in stack}, "set_module_type", "module of type")
        _refuse(
            self.operators,
            {name for n in nodes for name in operator_names(n)},
            "set_operator",
            "operator",
            shown={overload_name(n) for n in nodes if overload_name(n)},
        )


def operator_names(node: Node) -> tuple[str, ...]:
    """Return the names of an operator, with its overload and without."""
    name = overload_name(node)
    return (name, name.split(".")[0]) if name and aten_overload(node) is not None else ()


def operator_key(operator: object) -> str:
    """Return ``conv2d.default`` or ``conv2d``, from an overload, a packet or a name such as ``aten::conv2d``."""
    if isinstance(operator, OpOverload):
        return short_name(operator)
    if isinstance(operator, OpOverloadPacket):
        return str(operator).partition(".")[2]
    if not isinstance(operator, str):
        what = f"`set_operator` got {operator!r}; it takes an ATen operator."
        raise OptionError(what, hint='torch.ops.aten.conv2d or "conv2d"')
    name = operator.replace("::", ".").removeprefix("torch.ops.").removeprefix("aten.")
    packet, _, overload = name.partition(".")
    found = getattr(torch.ops.aten, packet, None) if packet.isidentifier() else None
    if found is None or (overload and overload not in found.overloads()):
        from micronpu.ops import ATEN_IMPORTS

        known = set(ATEN_IMPORTS) | {n.split(".")[0] for n in ATEN_IMPORTS}
        raise OptionError(f"ATen has no operator `{operator}`.", hint=_close(name, known) or 'a name such as "conv2d"')
    return name


def type_key(kind: object) -> str:
    """Return the qualified name of a module class, from the class or its name; else raise `OptionError`."""
    if isinstance(kind, str) and kind:
        return kind
    if is_class(kind, nn.Module):
        return _class_name(kind)
    raise OptionError(f"`set_module_type` got {kind!r}; it takes a class of modules.", hint="torch.nn.Conv2d")


def _refuse(names: Iterable[str], present: set[str], where: str, what: str, shown: set[str] | None = None) -> None:
    for name in names:
        if name not in present:
            raise OptionError(
                f'{where}("{name}", ...) fits nothing: the program has no {what} `{name}`.',
                hint=_close(name, shown or present) or "export the module itself, so that the program knows its paths",
            )


def _close(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, sorted(known), 3, 0.5)
    by_end = [k for k in sorted(known) if k.rpartition(".")[2] == name.rpartition(".")[2]]
    found = list(dict.fromkeys(close + by_end)) or sorted(known)
    return ", ".join(f"`{k}`" for k in found[:6])


# ---------------------------------------------------------------- stamps


def stamp(model: GraphModule, settings: QuantizationSettings) -> None:
    """Record the configuration of every node in it, before rewrites replace operators and names."""
    for node in nodes_where(model, is_compute):
        SETTING.say(node, (settings.of(node),))


def stamped(node: Node, settings: QuantizationSettings) -> Setting:
    """Return the recorded configuration of a node; a node made by a rewrite has that of its module."""
    setting: Setting
    (setting,) = SETTING.of(node) or (settings.of(node),)
    return setting
