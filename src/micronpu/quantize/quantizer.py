"""The PT2E quantizer that the quantizers of all targets are."""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node
from typing_extensions import Self

from micronpu.base.arguments import check_type
from micronpu.base.errors import OptionError
from micronpu.frontend.branches import compute_both_branches
from micronpu.frontend.facts import FLOAT_PROGRAM, IN_TRAINING
from micronpu.frontend.loops import write_out_loops
from micronpu.ir.way import Capabilities
from micronpu.quantize.annotate import annotate
from micronpu.quantize.config import (
    Activations,
    Borders,
    QuantizationConfig,
    QuantizationSettings,
    as_finder,
    check_borders,
    operator_key,
    stamp,
    stamped,
    type_key,
)
from micronpu.quantize.corrections import Corrections
from micronpu.quantize.equalize import equalize
from micronpu.quantize.features import leave_in_float
from micronpu.quantize.grids import observe_operands
from micronpu.quantize.hidden import reveal
from micronpu.quantize.magnitudes import project_magnitudes
from micronpu.quantize.masks import observe_what_counts
from micronpu.quantize.norms import widen
from micronpu.quantize.readers import observe_for_readers
from micronpu.quantize.recorder import keep_float_program, record_calls, recorders
from micronpu.quantize.states import check_lifted, join_grids
from micronpu.quantize.switches import check_rewrites
from micronpu.quantize.transforms import prepare_for_annotation
from micronpu.upstream.torchao import accept_as_quantizer

_ASKED = ("transform_for_annotation", "annotate", "validate", "prepare_obs_or_fq_callback", "rewritten", "annotated")


class StaticQuantizer:
    """Static quantization for `prepare_pt2e` or `prepare_qat_pt2e`, and `convert_pt2e`.

    Activations are int8, asymmetric with one scale per tensor, weights symmetric in [-127, 127] with one scale per
    output channel; int16 activations are symmetric.  Operators that only move or select values share the parameters of
    their operand; sigmoid, tanh and softmax have the fixed output parameters that LiteRT demands.  One object may
    quantize any number of models.

    Parts of a model are configured apart; None leaves a part float.  The most specific setting wins: node name, module
    name (the longest that fits), module type (the innermost), operator, global.  Where int8 meets int16, the value is
    quantized a second time.

        quantizer.set_module_name("head", None).set_operator("softmax", None)

    Args:
        capabilities: what the device computes with; it decides what operators become.
        per_channel: one weight scale per output channel (True) or one per tensor (False).
        activations: "int8" or "int16", for all that no setting is for.
        io: "int8", "uint8" or "int16" for a program whose own inputs and outputs are integers, see `set_io`.
        is_qat: for quantization-aware training; with None the first configuration that is set decides.
        disabled_rewrites: names of rewrites of the float program to leave out; `micronpu passes` lists them.

    Raises:
        OptionError: an argument is of another type, or there is no such rewrite.
    """

    wider = "a quantizer of a family with int16 activations"
    """What to take for int16 activations where the device has none."""

    def __init__(
        self,
        capabilities: Capabilities,
        *,
        per_channel: bool = True,
        is_qat: bool | None = False,
        disabled_rewrites: Iterable[str] = (),
        activations: Activations = "int8",
        io: Borders | None = None,
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
            self.set_io(QuantizationConfig.of_borders(check_borders(io), is_qat=self.is_qat))
        self._open = is_qat is None and io is None

    @property
    def global_config(self) -> QuantizationConfig | None:
        """The configuration of what no other setting is for."""
        return self.settings.default

    @global_config.setter
    def global_config(self, config: QuantizationConfig | None) -> None:
        self.set_global(config)

    @property
    def io_config(self) -> QuantizationConfig | None:
        """The configuration of the program's own inputs and outputs, as `set_io` made it."""
        return self.settings.io

    @property
    def module_name_config(self) -> dict[str, QuantizationConfig | None]:
        """Configurations of modules by their path, as `set_module_name` made them; a copy."""
        return dict(self.settings.names)

    @property
    def module_type_config(self) -> dict[str, QuantizationConfig | None]:
        """Configurations of modules by the qualified name of their class, as `set_module_type` made them; a copy."""
        return dict(self.settings.types)

    @property
    def quantizers(self) -> tuple[Any, ...]:
        """The quantizers that are asked before this one, the last that was added last; see `add_quantizer`."""
        return tuple(self._others)

    def set_global(self, config: QuantizationConfig | None) -> Self:
        """Configures what no other setting is for."""
        self.settings.default = self._checked(config)
        return self

    def set_module_name(self, name: str, config: QuantizationConfig | None) -> Self:
        """Configures a module and all within it, by its path in the model, such as "block1.conv"."""
        if not isinstance(name, str) or not name:
            raise OptionError(f"`set_module_name` got {name!r}; it takes the path of a module.", hint='"block1.conv"')
        self.settings.names[name] = self._checked(config)
        return self

    def set_module_type(self, type: type[nn.Module] | str, config: QuantizationConfig | None) -> Self:
        """Configures all modules of a class, given as the class or its qualified name."""
        self.settings.types[type_key(type)] = self._checked(config)
        return self

    def set_operator(self, operator: Any, config: QuantizationConfig | None) -> Self:
        """Configures an ATen operator: an overload, all overloads of a packet, or the name of either.

        Args:
            operator: such as ``torch.ops.aten.add.Tensor``, ``torch.ops.aten.add``, "add.Tensor" or "aten::add".
        """
        self.settings.operators[operator_key(operator)] = self._checked(config)
        return self

    def set_node_target(self, target: Any, config: QuantizationConfig | None) -> Self:
        """Another name of `set_operator`: a node's target is its operator."""
        return self.set_operator(target, config)

    def set_node_name(self, name: str | Sequence[str], config: QuantizationConfig | None) -> Self:
        """Configures operators of the exported program, by the names that their nodes have there, such as "conv2d_1".

        Args:
            name: one, or several.
        """
        several: Sequence[Any] = [name] if isinstance(name, str) or not isinstance(name, Sequence) or not name else name
        checked = self._checked(config)
        for one in several:
            if not isinstance(one, str) or not one:
                raise OptionError(f"`set_node_name` got {one!r}; it takes the name of a node.", hint='"conv2d_1"')
            self.settings.nodes[one] = checked
        return self

    def set_node_finder(self, config: QuantizationConfig | None, node_finder: Any) -> Self:
        """Configures the operators that a finder finds in the exported program; those set by name keep theirs.

        Args:
            node_finder: an object with ``find_nodes(model)``, a function of a node that returns True or False, or names
                or operators as `set_node_name` and `set_operator` take them, one or several.

        Raises:
            OptionError: it is none of these.
        """
        self.settings.finders.append((as_finder(node_finder), self._checked(config)))
        return self

    def set_io(self, config: QuantizationConfig | None) -> Self:
        """Makes the program's own inputs and outputs integers, on grids of this configuration; None undoes it.

        The finished program takes and gives int8, uint8 (with `as_bytes`) or int16 tensors, and no quantize or
        dequantize is left on the host.  `micronpu.compile` does what is needed for that; with torchao alone, call
        `micronpu.frontend.integers.integer_borders` on what `convert_pt2e` returns.
        """
        self.settings.io = self._checked(config, of_borders=True)
        return self

    def add_quantizer(self, quantizer: Any) -> Self:
        """Asks another quantizer first, the one that was added last before all others.

        What it annotates stays as it says; this one annotates the rest.  Where they meet, torchao takes the grid of the
        operator that computes the value.

        Args:
            quantizer: a torchao `Quantizer`; its ``transform_for_annotation``, ``annotate`` and ``validate`` are asked.

        Raises:
            OptionError: it is none.
        """
        if not callable(getattr(quantizer, "annotate", None)) or quantizer is self:
            raise OptionError(
                f"`add_quantizer` got {'itself' if quantizer is self else f'a {type(quantizer).__name__}'}.",
                hint="a torchao Quantizer, an object with a method `annotate(model)`",
            )
        self._others.insert(0, quantizer)
        return self

    def set_corrections(self, corrections: Corrections) -> Self:
        """Sets what is done to weights and biases of the whole model beside rounding them.

        Equalization happens in whatever flow the quantizer is used in; the corrections that need data in
        `micronpu.compile` and `calibrate_and_quantize`, and not between torchao's own functions.
        """
        if not isinstance(corrections, Corrections):
            raise OptionError(
                f"`set_corrections` got a {type(corrections).__name__}.", hint="Corrections(adaptive_rounding=True)"
            )
        self.settings.corrections = corrections
        return self

    def _checked(self, config: QuantizationConfig | None, *, of_borders: bool = False) -> QuantizationConfig | None:
        if config is not None and not isinstance(config, QuantizationConfig):
            kind = type(config)
            place = "" if kind.__module__ == "builtins" else f"{kind.__module__}."  # ExecuTorch's has the same name
            raise OptionError(
                f"A configuration is a {place}{kind.__qualname__}.",
                hint="micronpu's QuantizationConfig, or None to leave it float",
            )
        if config is not None and config.as_bytes and not of_borders:
            raise OptionError(
                "`as_bytes` is about inputs and outputs of the program; an NPU computes with int8.",
                hint="set_io(config), and a configuration without `as_bytes` for operators",
            )
        if config is not None and self._open:
            self.is_qat, self._open = config.is_qat, False
            if self.settings.default is not None:
                self.settings.default = replace(self.settings.default, is_qat=config.is_qat)
        if config is not None and config.is_qat and not self.is_qat:
            # Whether to train is checked when `prepare_qat_pt2e` is called. ExecuTorch's function for weights of four
            # bits says True unless told otherwise, which asks for nothing.
            config = replace(config, is_qat=False, freeze_batch_norm=False)
        if config is not None and config.is_qat != self.is_qat:
            raise OptionError(
                "The configuration has is_qat=False and the quantizer is_qat=True.",
                hint="give both the same; post-training quantization and QAT each need a quantizer",
            )
        able = [dtype.value for dtype in self.capabilities.activations]
        if config is not None and config.activations not in able:
            raise OptionError(
                f"The quantizer quantizes activations to {' or '.join(able)}; the device does "
                f"not compute with {config.activations}.",
                hint=self.wider if config.activations == "int16" else "",
            )
        return config

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Folds batch norms, or prepares their folding in QAT, and makes constants of numbers, in place.

        Raises:
            OptionError: a setting names something that is not in the model.
            ModelError: the model has states, and `prepare_pt2e` was called with it directly.
        """
        from micronpu.quantize import shims

        shims.apply()
        if not self.is_qat and not FLOAT_PROGRAM.is_said(model):  # the first of several quantizers
            keep_float_program(model)
        for other in self._others:
            if callable(transform := getattr(other, "transform_for_annotation", None)):
                model = transform(model)
        return self.rewritten(model)

    def rewritten(self, model: GraphModule) -> GraphModule:
        """As `transform_for_annotation`, without torchao unless it is for training."""
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
            from micronpu.quantize.simulate import simulate_batch_norms

            IN_TRAINING.say(model, True)
            simulate_batch_norms(model, self._config_of)
        return prepare_for_annotation(model, self.disabled_rewrites, self.capabilities)

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotates what micronpu knows and the settings do not leave out; the rest stays float."""
        from micronpu.quantize.calibrate import quantize
        from micronpu.quantize.pt2e import annotated_by_others, hand_over

        is_alone = not annotated_by_others(model)
        for other in self._others:
            other.annotate(model)
        with self._leaving(annotated_by_others(model)):
            hand_over(self.annotated(model))
        if is_alone:
            record_calls(model, functools.partial(quantize, quantizer=self._as_it_is()))
        if self.is_qat:
            from micronpu.quantize.simulate import observe_last_weights

            observe_last_weights(model)
        return model

    def _as_it_is(self) -> Self:
        """A copy for which settings that are made from now on do not hold."""
        made = copy.copy(self)
        made.settings = copy.copy(self.settings)
        for name, value in vars(self.settings).items():
            setattr(made.settings, name, copy.copy(value))
        return made

    @contextmanager
    def _leaving(self, nodes: Collection[Node]) -> Iterator[None]:
        """Meanwhile some nodes are not for this quantizer."""
        self._left = frozenset(nodes)
        try:
            yield
        finally:
            self._left = frozenset()

    def annotated(self, model: GraphModule) -> GraphModule:
        """As `annotate`, in our own terms."""
        annotate(model, self._config_of, capabilities=self.capabilities, io=self.settings.io)
        reveal(model)
        return model

    def is_ours(self) -> bool:
        """Whether the class leaves to this one what torchao asks a quantizer for, and no other quantizer is asked."""
        own = type(self)
        if any(config is not None and config.has_specs for config in self.settings.every):
            return False
        return not self._others and all(getattr(own, name) is getattr(StaticQuantizer, name) for name in _ASKED)

    def validate(self, model: GraphModule) -> None:
        """Has others check theirs; an annotation that the target cannot use shows in the delegation report."""
        for other in self._others:
            if callable(validate := getattr(other, "validate", None)):
                validate(model)

    def prepare_obs_or_fq_callback(self, model: GraphModule, edge_or_node_to_obs_or_fq: dict[Any, Any]) -> None:
        """Scores are observed as far as they count, what is clamped as far as it is let through, averages and clamps
        beside their operands, jumps fall between two steps, and states get one grid.

        QAT: tensors on one grid share its range.
        """
        observe_what_counts(model, edge_or_node_to_obs_or_fq)
        observe_operands(edge_or_node_to_obs_or_fq)
        observe_for_readers(model, edge_or_node_to_obs_or_fq)
        if self.is_qat:
            from micronpu.quantize.qat import share_ranges

            share_ranges(edge_or_node_to_obs_or_fq)
        join_grids(model, edge_or_node_to_obs_or_fq)
        for recorder in recorders(model):
            recorder.watch(edge_or_node_to_obs_or_fq.values())

    def quantize_with_submodules(
        self, model: GraphModule, calibration_samples: Sequence[tuple[Any, ...]], is_qat: bool = False
    ) -> GraphModule:
        """Prepares, calibrates and converts a model with `torch.cond`, whose branches are both computed then.

        Args:
            model: the module of an exported program; used up.
            calibration_samples: inputs, one tuple for each call.
            is_qat: False, as nothing trains here.

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
        """Refuses to prepare for QAT what is for post-training quantization, and the other way round.

        Raises:
            OptionError: the quantizer is for the other one.
        """
        if is_qat == self.is_qat:
            return
        wrong, right = ("prepare_qat_pt2e", "prepare_pt2e")[:: 1 if is_qat else -1]
        kind = type(self).__name__
        raise OptionError(
            f"A {kind}(is_qat={self.is_qat}) cannot be used with `{wrong}`.",
            hint=f"`{right}`, or a {kind}(is_qat={is_qat})",
        )

    def _config_of(self, node: Node) -> QuantizationConfig | None:
        return None if node in self._left else stamped(node, self.settings)
