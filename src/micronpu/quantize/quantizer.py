"""The PT2E quantizer, base class of all targets' quantizers."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn
from typing_extensions import Self

from micronpu.base.arguments import check_type
from micronpu.base.errors import OptionError
from micronpu.frontend.control_flow import compute_both_branches, write_out_loops
from micronpu.frontend.facts import FLOAT_PROGRAM, IN_TRAINING
from micronpu.frontend.graphs import GraphModule, Node
from micronpu.ir.lowering import Capabilities
from micronpu.quantize.config import (
    Activations,
    Corrections,
    IOType,
    QuantizationConfig,
    QuantizationSettings,
    as_finder,
    check_io,
    operator_key,
    stamp,
    stamped,
    type_key,
)
from micronpu.quantize.data import check_lifted
from micronpu.quantize.decompose import prepare_for_annotation
from micronpu.quantize.identities import project_magnitudes
from micronpu.quantize.nodes import NodeValues, annotate, reveal
from micronpu.quantize.norms import leave_in_float, widen
from micronpu.quantize.solver.groups import leave_selected
from micronpu.quantize.solver.neighbours import observe_for_neighbours, share_states
from micronpu.quantize.weights import equalize
from micronpu.quantize.writer import check_rewrites
from micronpu.upstream.torchao import accept_as_quantizer

_ASKED = ("transform_for_annotation", "annotate", "validate", "prepare_obs_or_fq_callback", "rewritten", "annotated")


class StaticQuantizer:
    """Static quantization for `prepare_pt2e` or `prepare_qat_pt2e`, and `convert_pt2e`.

    Activations are int8, asymmetric with one scale per tensor, weights symmetric in [-127, 127] with one scale per
    output channel; int16 activations are symmetric.  Operators that only move or select values share the parameters of
    their operand; sigmoid, tanh and softmax have the fixed output parameters that LiteRT demands.  One object may
    quantize any number of models.

    Parts of a model are configured separately; None leaves a part float.  The most specific setting wins: node name,
    module name (the longest that fits), module type (the innermost), operator, global.  A value between int8 and int16
    is requantized.

        quantizer.set_module_name("head", None).set_operator("softmax", None)

    Args:
        capabilities: capabilities of the device, which determine the lowerings of operators.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        activations: "int8" or "int16", for parts without a setting.
        io: "int8", "uint8" or "int16" for integer inputs and outputs, see `set_io`.
        is_qat: for quantization-aware training; with None the first configuration that is set decides.
        disabled_rewrites: names of rewrites of the float program to leave out; `micronpu passes` lists them.

    Raises:
        OptionError: an argument is of another type, or there is no such rewrite.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        *,
        per_channel: bool = True,
        is_qat: bool | None = False,
        disabled_rewrites: Iterable[str] = (),
        activations: Activations = "int8",
        io: IOType | None = None,
    ) -> None:
        check_type("is_qat", is_qat, bool, type(None))
        accept_as_quantizer(StaticQuantizer)
        self.capabilities = capabilities
        self.is_qat = bool(is_qat)
        self._open = False
        self._others: list[Any] = []
        self._left: frozenset[Node] = frozenset()
        self.disabled_rewrites = check_rewrites(disabled_rewrites)
        self.settings = QuantizationSettings()
        self.set_global(QuantizationConfig(per_channel=per_channel, is_qat=self.is_qat, activations=activations))
        if io is not None:
            self.set_io(QuantizationConfig.of_io(check_io(io), is_qat=self.is_qat))
        self._open = is_qat is None and io is None

    @property
    def global_config(self) -> QuantizationConfig | None:
        """The configuration of parts without another setting."""
        return self.settings.default

    @global_config.setter
    def global_config(self, config: QuantizationConfig | None) -> None:
        self.set_global(config)

    @property
    def io_config(self) -> QuantizationConfig | None:
        """The configuration of the program's inputs and outputs from `set_io`."""
        return self.settings.io

    @property
    def module_name_config(self) -> dict[str, QuantizationConfig | None]:
        """Configurations of modules by their path from `set_module_name`; a copy."""
        return dict(self.settings.names)

    @property
    def module_type_config(self) -> dict[str, QuantizationConfig | None]:
        """Configurations of modules by the qualified name of their class from `set_module_type`; a copy."""
        return dict(self.settings.types)

    @property
    def quantizers(self) -> tuple[object, ...]:
        """The quantizers that annotate before this one, the last added first; see `add_quantizer`."""
        return tuple(self._others)

    def set_global(self, config: QuantizationConfig | None) -> Self:
        """Configure parts without another setting."""
        self.settings.default = self._checked(config)
        return self

    def set_module_name(self, name: str, config: QuantizationConfig | None) -> Self:
        """Configure a module and all within it, by its path in the model, such as "block1.conv"."""
        if not isinstance(name, str) or not name:
            raise OptionError(f"`set_module_name` got {name!r}; it takes the path of a module.", hint='"block1.conv"')
        self.settings.names[name] = self._checked(config)
        return self

    def set_module_type(self, type: type[nn.Module] | str, config: QuantizationConfig | None) -> Self:
        """Configure all modules of a class, given as the class or its qualified name."""
        self.settings.types[type_key(type)] = self._checked(config)
        return self

    def set_operator(self, operator: object, config: QuantizationConfig | None) -> Self:
        """Configure an ATen operator: an overload, all overloads of a packet, or the name of either.

        Args:
            operator: such as ``torch.ops.aten.add.Tensor``, ``torch.ops.aten.add``, "add.Tensor" or "aten::add".
        """
        self.settings.operators[operator_key(operator)] = self._checked(config)
        return self

    def set_node_target(self, target: object, config: QuantizationConfig | None) -> Self:
        """Another name of `set_operator`: a node's target is its operator."""
        return self.set_operator(target, config)

    def set_node_name(self, name: str | Sequence[str], config: QuantizationConfig | None) -> Self:
        """Configure operators of the exported program by the names of their nodes, such as "conv2d_1".

        Args:
            name: one, or several.
        """
        several: Sequence[object] = (
            [name] if isinstance(name, str) or not isinstance(name, Sequence) or not name else name
        )
        checked = self._checked(config)
        for one in several:
            if not isinstance(one, str) or not one:
                raise OptionError(f"`set_node_name` got {one!r}; it takes the name of a node.", hint='"conv2d_1"')
            self.settings.nodes[one] = checked
        return self

    def set_node_finder(self, config: QuantizationConfig | None, node_finder: object) -> Self:
        """Configure the operators that a finder finds in the exported program; settings by name have precedence.

        Args:
            node_finder: an object with ``find_nodes(model)``, a function of a node that returns True or False, or names
                or operators as `set_node_name` and `set_operator` take them, one or several.

        Raises:
            OptionError: it is none of these.
        """
        self.settings.finders.append((as_finder(node_finder), self._checked(config)))
        return self

    def set_io(self, config: QuantizationConfig | None) -> Self:
        """Make the program's inputs and outputs integers, with this configuration; None undoes it.

        The finished program has int8, uint8 (with `as_bytes`) or int16 inputs and outputs, and no quantize or
        dequantize on the core.  `micronpu.compile` does this automatically; with torchao alone, call
        `micronpu.frontend.integers.to_integer_io` on what `convert_pt2e` returns.
        """
        self.settings.io = self._checked(config, of_io=True)
        return self

    def add_quantizer(self, quantizer: object) -> Self:
        """Add a quantizer that annotates before this one; the last added comes first.

        Its annotations are kept; this one annotates the rest.  Between both, torchao uses the qparams of the operator
        that computes the value.

        Args:
            quantizer: a torchao `Quantizer`; its ``transform_for_annotation``, ``annotate`` and ``validate`` are
                called.

        Raises:
            OptionError: it is none.
        """
        if not callable(getattr(quantizer, "annotate", None)) or quantizer is self:
            what = f"`add_quantizer` got {'itself' if quantizer is self else f'a {type(quantizer).__name__}'}."
            raise OptionError(what, hint="a torchao Quantizer, an object with a method `annotate(model)`")
        self._others.insert(0, quantizer)
        return self

    def set_corrections(self, corrections: Corrections) -> Self:
        """Set corrections of weights and biases for the whole model.

        Equalization works in every flow; corrections that need data work in `micronpu.compile` and
        `calibrate_and_quantize`, and not between torchao's own functions.
        """
        if not isinstance(corrections, Corrections):
            what = f"`set_corrections` got a {type(corrections).__name__}."
            raise OptionError(what, hint="Corrections(adaptive_rounding=True)")
        self.settings.corrections = corrections
        return self

    def _checked(self, config: QuantizationConfig | None, *, of_io: bool = False) -> QuantizationConfig | None:
        if config is not None and not isinstance(config, QuantizationConfig):
            kind = type(config)
            place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."  # ExecuTorch's has the same name
            what = f"A configuration is a {place}{kind.__qualname__}."
            raise OptionError(what, hint="micronpu's QuantizationConfig, or None to leave it float")
        if config is not None and config.as_bytes and not of_io:
            what = "`as_bytes` is about inputs and outputs of the program; an NPU computes with int8."
            raise OptionError(what, hint="set_io(config), and a configuration without `as_bytes` for operators")
        if config is not None and self._open:
            self.is_qat, self._open = config.is_qat, False
            if self.settings.default is not None:
                self.settings.default = replace(self.settings.default, is_qat=config.is_qat)
        if config is not None and config.is_qat and not self.is_qat:
            # `prepare_qat_pt2e` checks whether to train. ExecuTorch's function for 4-bit weights has is_qat=True by
            # default.
            config = replace(config, is_qat=False, freeze_batch_norm=False)
        if config is not None and config.is_qat != self.is_qat:
            what = "The configuration has is_qat=False and the quantizer is_qat=True."
            raise OptionError(what, hint="give both the same; post-training quantization and QAT each need a quantizer")
        able = [dtype.value for dtype in self.capabilities.activations]
        if config is not None and config.activations not in able:
            raise OptionError(
                f"The quantizer quantizes activations to {' or '.join(able)}; the device does "
                f"not compute with {config.activations}.",
                hint=f'"{able[0]}" (`--quantization {able[0]}`), or a target with int16 (docs/quantization.md)',
            )
        return config

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Fold batch norms, or prepare their folding in QAT, and make constants of numbers, in place.

        Raises:
            OptionError: a setting names something that is not in the model.
            ModelError: the model has states, and `prepare_pt2e` was called with it directly.
        """
        from micronpu.quantize.pt2e import keep_float_program, repair_torchao

        if not self.is_qat and not FLOAT_PROGRAM.is_said(model):  # the first of several quantizers
            keep_float_program(model)
        repair_torchao(model)
        for other in self._others:
            if callable(transform := getattr(other, "transform_for_annotation", None)):
                model = transform(model)
        return self.rewritten(model)

    def rewritten(self, model: GraphModule) -> GraphModule:
        """Apply `transform_for_annotation`, without torchao unless it is for training."""
        check_lifted(model)
        self.settings.find(model)
        self.settings.check(model)
        stamp(model, self.settings)
        widen(model, self.settings.default, self.capabilities)
        leave_in_float(model, self.settings.default)
        if self.settings.corrections.equalize:
            equalize(model)
        if self.settings.corrections.projections:
            project_magnitudes(model, self.capabilities)
        if self.is_qat:
            from micronpu.quantize.qat import fold_trained_batch_norms

            IN_TRAINING.say(model, True)
            fold_trained_batch_norms(model, self._config_of)
        return prepare_for_annotation(model, self.disabled_rewrites, self.capabilities)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate known operators unless the settings exclude them; the rest stays float."""
        from micronpu.quantize.calibrate import quantize
        from micronpu.quantize.pt2e import annotated_by_others, hand_over, record_calls

        is_alone = not annotated_by_others(model)
        for other in self._others:
            other.annotate(model)
        self._left = frozenset(annotated_by_others(model))
        try:
            hand_over(self.annotated(model).model)
        finally:
            self._left = frozenset()
        if is_alone:
            record_calls(model, functools.partial(quantize, quantizer=self._as_it_is()))
        if self.is_qat:
            from micronpu.quantize.qat import observe_last_weights

            observe_last_weights(model)
        return model

    def _as_it_is(self) -> Self:
        """Return a copy that later settings do not affect."""
        made = copy.copy(self)
        made.settings = replace(self.settings, **{name: copy.copy(own) for name, own in vars(self.settings).items()})
        return made

    def annotated(self, model: GraphModule) -> NodeValues:
        """Apply `annotate`, with this package's annotations; return the values of the model."""
        values = annotate(model, self._config_of, capabilities=self.capabilities, io=self.settings.io)
        reveal(model)
        return values

    def is_ours(self) -> bool:
        """True if no subclass overrides methods that torchao calls, and no other quantizer is added."""
        own = type(self)
        if any(config is not None and config.has_specs for config in self.settings.every):
            return False
        return not self._others and all(getattr(own, name) is getattr(StaticQuantizer, name) for name in _ASKED)

    def validate(self, model: GraphModule) -> None:
        """Let other quantizers validate; an unsupported annotation shows in the delegation report."""
        for other in self._others:
            if callable(validate := getattr(other, "validate", None)):
                validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Pass requirements of operators to observers: masked scores, clamps, averages, thresholds, and shared states.

        QAT: tensors that share qparams also share their range.
        """
        from micronpu.quantize.pt2e import Recorder

        values, observers = NodeValues(model), edge_or_node_to_obs_or_fq
        observe_for_neighbours(values, values.places(observers))
        if self.is_qat:
            from micronpu.quantize.qat import share_ranges

            share_ranges(observers)
        places = values.places(observers)
        share_states(values, places)
        if not self.is_qat:
            leave_selected(places)
        observers.update(values.nodes(places))
        for module in model.modules():
            if isinstance(module, Recorder):
                module.watch(observers.values())

    def quantize_with_submodules(
        self, model: GraphModule, calibration_samples: Sequence[tuple[Any, ...]], is_qat: bool = False
    ) -> GraphModule:
        """Prepare, calibrate and convert a model with `torch.cond`, both of whose branches are then computed.

        Args:
            model: the module of an exported program; it is consumed.
            calibration_samples: inputs, one tuple for each call.
            is_qat: must be False.

        Raises:
            OptionError: an argument is of another type, or for training.
        """
        from micronpu.quantize.calibrate import calibrate_and_quantize

        check_type("model", model, GraphModule, hint="torch.export.export(model, inputs).module()")
        if is_qat is not False:
            raise OptionError("`is_qat` is about training, and calibration is none.", hint="prepare_qat_pt2e")
        samples = list(calibration_samples)
        if not samples or not all(isinstance(sample, tuple) for sample in samples):
            raise OptionError("`calibration_samples` is no list of tuples of tensors.", hint="[(x,), ...]")
        write_out_loops(model)
        compute_both_branches(model)
        return calibrate_and_quantize(model, samples, self)

    def check_use(self, is_qat: bool) -> None:
        """Refuse the wrong one of `prepare_qat_pt2e` and `prepare_pt2e`.

        Raises:
            OptionError: the quantizer is for the other one.
        """
        if is_qat == self.is_qat:
            return
        wrong, right = ("prepare_qat_pt2e", "prepare_pt2e")[:: 1 if is_qat else -1]
        kind = type(self).__name__
        what = f"A {kind}(is_qat={self.is_qat}) cannot be used with `{wrong}`."
        raise OptionError(what, hint=f"`{right}`, or a {kind}(is_qat={is_qat})")

    def _config_of(self, node: Node) -> QuantizationConfig | None:
        return None if node in self._left else stamped(node, self.settings)
