"""Specs of qparams, derived from the rules of the operators' definitions in `micronpu.ops`.

A result gets its own qparams, those of its operand, or fixed ones.  An operand is read with the qparams that its own
operator prescribes, or else with learnt ones.  A value that is only read with zero point 0 gets it at its origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from micronpu.ir.facts import Form
from micronpu.ir.lowering import Capabilities
from micronpu.ir.op import NewValues, OutputQuantization, QuantizationRule
from micronpu.ops.softmax import HIDDEN, MASKED
from micronpu.quantize.config import FINER, SHARES, QuantizationConfig
from micronpu.quantize.solver.values import Value, Values
from micronpu.quantize.specs import QuantizationAnnotation, QuantizationSpec, SharedQuantizationSpec, Spec
from micronpu.quantize.thresholds import AVERAGE_MARGIN, SMALL_OPERAND

Notes: TypeAlias = dict[Value, Any]
ConfigOf: TypeAlias = Callable[[Value], QuantizationConfig | None]
Rules: TypeAlias = Mapping[Value, QuantizationRule | None]
"""The rule with the qparams of each value that has some before calibration; see `known_rules`."""


def requirements(
    values: Values,
    config_of: ConfigOf,
    able: Capabilities,
    io: QuantizationConfig | None = None,
    known: Mapping[Value, object] | None = None,
) -> Notes:
    """Return the annotations of all values whose operators micronpu knows.

    Args:
        config_of: returns the configuration of an operator; None leaves it float.
        able: capabilities of the device.
        io: configuration of the program's inputs and outputs; None leaves them to their readers and producers.
        known: annotations of other quantizers, which stay.
    """
    return _Requirements(values, config_of, able, io, dict(known or {})).found()


@dataclass
class _Requirements:
    """Arguments of `requirements`, and what is found so far, each once per value in the order of the program.

    A model may have thousands of successive operators, and values that are read several times: nothing here is
    recursive, and nothing looks further than at the operands or readers of a value.

    Attributes:
        rules: see `known_rules`.
        prescribers: the value whose operator prescribes the qparams of a value, possibly moved or selected, or None.
        want_zero: values that only operators whose operands need zero point 0 read, possibly moved.
        are_returned: values that the program returns, possibly moved.
    """

    values: Values
    config_of: ConfigOf
    able: Capabilities
    io: QuantizationConfig | None
    notes: Notes
    rules: Rules = field(init=False)
    prescribers: dict[Value, Value | None] = field(default_factory=dict)
    want_zero: set[Value] = field(default_factory=set)
    are_returned: set[Value] = field(default_factory=set)
    _made_symmetric: set[tuple[Value, torch.dtype]] = field(default_factory=set)
    _dtypes: dict[Value, torch.dtype | None] = field(default_factory=dict)

    def found(self) -> Notes:
        self.rules = known_rules(self.values.all)
        self._read_backwards()
        for state in self.values.states:  # not clipped in calibration, as an error would persist from call to call
            config = self.config_of(state.new)
            if config is not None and state.is_float:
                self.notes[state.old] = QuantizationAnnotation(output_qspec=config.io_activation)
        if self.io is not None:
            self._annotate_io(self.io)
        for value in self.values.all:
            # Constant expressions are quantized as a whole where they are read.
            if value not in self.notes and not value.is_constant and value.is_supported:
                config = self.config_of(value)
                if config is not None:
                    self._annotate(value, config)
            self.prescribers[value] = self._prescriber(value)  # again: the annotation of the value counts
        self._annotate_new_states()
        return self.notes

    def _read_backwards(self) -> None:
        """Find the values that depend on what is behind them."""
        for value in reversed(self.values.all):
            if any(reader.is_output or (reader.moves and reader in self.are_returned) for reader in value.readers):
                self.are_returned.add(value)
            if all(
                reader.rule is not None and (reader.rule.symmetric or (reader.moves and reader in self.want_zero))
                for reader in value.readers
            ):
                self.want_zero.add(value)

    def _annotate_io(self, io: QuantizationConfig) -> None:
        """Quantize every float input and output of the program, independently of its readers and producers."""
        # Outputs of an operator with fixed qparams keep these: the values of a softmax in calibration do not determine
        # later ones.
        states = {state.old for state in self.values.states}
        for value in self.values.all:
            if value.is_input and value.is_float and value not in self.notes and value not in states:
                self.notes[value] = QuantizationAnnotation(output_qspec=io.input_activation)
        for value in self.values.all:
            self.prescribers[value] = self._prescriber(value)
        results: dict[Value, Spec] = {}
        for value in self.values.returned:
            if value.is_float:
                source = self.prescribers[value]
                results[value] = io.io_activation if source is None else self._prescribed(source, io)
        self.notes[self.values.output] = QuantizationAnnotation(input_qspec_map=results)

    def _annotate_new_states(self) -> None:
        """Quantize the new value of each state if the operator that computes it does not."""
        for state in self.values.states:
            known, config = self.notes.get(state.new), self.config_of(state.new)
            is_quantized = known is not None and known.output_qspec is not None
            if state.old not in self.notes or config is None or is_quantized:
                continue
            if state.new.is_input:
                self.notes[state.new] = QuantizationAnnotation(output_qspec=config.io_activation)
            else:
                edges = self.notes.setdefault(self.values.output, QuantizationAnnotation())
                edges.input_qspec_map.setdefault(state.new, config.io_activation)

    # ---------------------------------------------------------------- one operator

    def _annotate(self, value: Value, config: QuantizationConfig) -> None:
        rule, operands = value.rule, value.quantized
        if rule is None or operands is None or value.result is None:
            return
        if operands and all(operand.is_constant for operand in operands):
            return  # such as the transpose of a weight, which is computed at compile time
        inputs: dict[Value, Spec] = {}
        if rule.weight:
            if value.weights is None or not value.weights.is_constant:
                return
            inputs[value.weights] = config.weight(rule.weight_axis)
        for operand in operands:
            if operand.is_input and operand not in self.notes:  # once, for all its readers
                self.notes[operand] = QuantizationAnnotation(output_qspec=config.input_activation)
        if rule.symmetric and not self.able.zero_points:
            for operand in operands:
                self._make_symmetric(operand, config)
                inputs[operand] = self._kept(operand, config.symmetric_activation, config)
        output = self._of_result(value, list(operands), rule, config, inputs)
        if rule.output is not OutputQuantization.SHARED:
            own = {operand: self.rules[operand] for operand in operands}
            inputs |= {operand: config.fixed_activation(of) for operand, of in own.items() if of is not None}
        if (own_rule := own_rule_of(value, self.rules)) is not None:
            output = config.fixed_activation(own_rule)
        last = self._last(value, value.result)
        if output == config.activation and last in self.are_returned:
            output = config.io_activation
        self.notes[value] = note = QuantizationAnnotation(input_qspec_map=inputs)
        if last is value:
            note.output_qspec = output
        else:
            self.notes[last] = QuantizationAnnotation(output_qspec=output)

    def _last(self, value: Value, result: Value) -> Value:
        """Return the value with the result of an operator and of the clamp fused into it."""
        if not value.fuses or len(result.readers) != 1:
            return result
        (reader,) = result.readers
        return reader if reader.is_fusible and self.config_of(reader) is not None else result

    def _of_result(
        self,
        value: Value,
        operands: list[Value],
        rule: QuantizationRule,
        config: QuantizationConfig,
        inputs: dict[Value, Spec],
    ) -> Spec:
        """Add the specs of the operands; return that of the result, by default the configured one."""
        if value.is_kept_or_zero and not operands[-1].is_constant:
            output = self._same(operands[-1], value, config.activation, inputs)
            inputs.setdefault(operands[0], config.activation)
            return output
        if rule.output is OutputQuantization.SHARED:
            if len(operands) == 1:
                return self._shared(operands[0], value, rule, config, inputs)
            if (common := _common(operands, self.rules)) is not None:
                inputs.update(dict.fromkeys(operands, config.fixed_activation(common)))
                return config.fixed_activation(common)
            # Operands of a concatenation share qparams that cover all of them, so fixed ones cannot be used. They
            # refer to the operand that is computed first: torchao follows such references, and two concatenations of
            # the same values in different orders must not form a cycle.
            first = min(operands, key=lambda operand: operand.index)
            inputs[first] = config.activation
            shared = SharedQuantizationSpec((first, value))
            inputs.update({operand: shared for operand in operands if operand is not first})
            return shared
        for operand in operands:
            spec = config.constant if operand.is_constant else self._kept(operand, config.activation, config)
            inputs.setdefault(operand, spec)
        return self._prescribed(value, config) if rule.output is OutputQuantization.FIXED else config.activation

    def _shared(
        self,
        operand: Value,
        value: Value,
        rule: QuantizationRule,
        config: QuantizationConfig,
        inputs: dict[Value, Spec],
    ) -> Spec:
        """Return the spec of a result that shares its operand's qparams unless they are too coarse; add that of the
        operand."""
        whole_numbers, may_be_finer = self._whole_numbers(operand), rule.finer is not None and not config.is_qat
        if whole_numbers is None or rule.new_values is NewValues.NONE:
            output = self._same(operand, value, config.activation, inputs)
            if (own := self.rules[operand]) is not None:
                inputs[operand] = config.fixed_activation(own)
            return _finer(operand, rule, config) if may_be_finer and config.activations == "int8" else output
        finer = config.between(whole_numbers) if rule.new_values is not NewValues.ANY else None
        if may_be_finer and rule.new_values is NewValues.BETWEEN:
            inputs[operand] = config.fixed_activation(whole_numbers)
            qparams = None if finer is None else (finer.scale, finer.zero_point)
            spec = _finer(operand, rule, config)
            return replace(spec, options=(*spec.options, ("operand_qparams", qparams)))
        inputs[operand] = config.activation if finer is None else finer
        return SharedQuantizationSpec((operand, value))

    def _same(self, operand: Value, value: Value, activation: QuantizationSpec, inputs: dict[Value, Spec]) -> Spec:
        """Return the spec of a result that shares its operand's qparams, fixed or not; add that of the operand."""
        before = self._dtype(operand)
        if before is not None and (before is activation.dtype or (value.rule is not None and value.rule.selects)):
            inputs[operand] = SharedQuantizationSpec(operand)
            return SharedQuantizationSpec(operand)
        inputs[operand] = activation
        return SharedQuantizationSpec((operand, value))

    def _dtype(self, value: Value) -> torch.dtype | None:
        """Return the dtype in which a value is computed; None if it is not quantized where it is computed."""
        sharing: list[Value] = []
        spec: Spec | None = SharedQuantizationSpec(value)
        while isinstance(spec, SharedQuantizationSpec):
            operand, reader = place if isinstance(place := spec.edge_or_node, tuple) else (place, None)
            if reader is None and operand in self._dtypes:
                found = self._dtypes[operand]
                break
            note = self.notes.get(reader or operand)
            spec = None if note is None else note.input_qspec_map.get(operand) if reader else note.output_qspec
            sharing += [] if reader else [operand]
        else:
            found = None if spec is None else spec.dtype
        self._dtypes.update(dict.fromkeys(sharing, found))
        return found

    # ---------------------------------------------------------------- qparams that are known before calibration

    def _prescriber(self, value: Value) -> Value | None:
        """Return the prescriber of a value, given those of its operands."""
        if not value.is_supported or value.rule is None:
            return None
        if value.rule.output is OutputQuantization.FIXED:
            return value
        operands = value.float_operands
        if value.rule.output is not OutputQuantization.SHARED or len(operands) != 1:
            return None
        if value.rule.new_values is not NewValues.NONE and self._whole_numbers(operands[0]) is not None:
            return None  # it has different ones
        if getattr(getattr(self.notes.get(value), "output_qspec", None), "observer", "") == FINER:
            return None  # it may have different ones
        return self.prescribers[operands[0]]

    def _prescribed(self, value: Value, config: QuantizationConfig) -> Spec:
        """Return fixed qparams; for an int8 softmax over long rows a smaller scale, if int16 is available."""
        assert value.rule is not None
        is_shared = value.has_long_rows and self.able.has_int16 and config.may_share
        return config.shares if is_shared else config.fixed_activation(value.rule)

    def _kept(self, operand: Value, wanted: QuantizationSpec, config: QuantizationConfig) -> Spec:
        """Return the spec with which an operator reads a value: the prescribed one, or else ``wanted``."""
        # Other qparams would only add a rounding, and two operands that are compared would have different ones.
        source = self.prescribers[operand]
        if source is None:
            return wanted
        qparams, note = self._prescribed(source, config), self.notes.get(source)
        if note is None or note.output_qspec != qparams:  # in float, or another quantizer's
            return wanted
        moved = wanted.qscheme == torch.per_tensor_symmetric and getattr(qparams, "zero_point", 1) != 0
        return wanted if moved else qparams

    def _whole_numbers(self, operand: Value) -> QuantizationRule | None:
        """Return the rule of a value whose qparams represent only whole numbers, such as booleans; None for others."""
        rule: QuantizationRule | None = self.rules[operand] or getattr(self.prescribers[operand], "rule", None)
        return rule if rule is not None and rule.is_whole else None

    # ---------------------------------------------------------------- zero point 0

    def _make_symmetric(self, value: Value, config: QuantizationConfig) -> None:
        """Use zero point 0 for a value if all its readers need that, such as queries, keys and values."""
        # Otherwise each of them would requantize it, which costs an operator and a rounding.
        while value in self.want_zero and (note := self.notes.get(value)) is not None:
            if (value, config.dtype) in self._made_symmetric:
                return
            self._made_symmetric.add((value, config.dtype))
            spec = note.output_qspec
            if not (isinstance(spec, SharedQuantizationSpec) and isinstance(spec.edge_or_node, Value)):
                affine = isinstance(spec, QuantizationSpec) and spec.qscheme == torch.per_tensor_affine
                if affine and spec.dtype is config.dtype and spec.observer not in (SHARES, FINER):
                    note.output_qspec = config.symmetric_activation
                return
            value = spec.edge_or_node


def _finer(operand: Value, rule: QuantizationRule, config: QuantizationConfig) -> QuantizationSpec:
    """Return the spec of a result that has its own qparams if their scale is much smaller."""
    assert rule.finer is not None and operand.shape is not None
    times = rule.finer[math.prod(n for n in operand.shape if isinstance(n, int)) > SMALL_OPERAND]
    return config.finer(times, AVERAGE_MARGIN if rule.new_values is NewValues.BETWEEN else 1.0)


# ---------------------------------------------------------------- facts about values


def known_rules(values: Iterable[Value]) -> Rules:
    """Return the rule with the qparams that a rewrite gave to each value, or that sums of masks have; None without.

    Args:
        values: in the order of the program. Moved values have the rule of what is moved.
    """
    rules: dict[Value, QuantizationRule | None] = {}
    for value in values:
        rule = own_rule_of(value, rules)
        # An operator that makes other values than its operands has its own qparams.
        if rule is None and value.moves and value.rule is not None and value.rule.new_values is NewValues.NONE:
            rule = _common(value.operands, rules)
        rules[value] = rule
    return rules


def own_rule_of(value: Value, rules: Rules) -> QuantizationRule | None:
    """Return the rule of a value that is not that of a moved operand, given the rules of its operands."""
    if value.rewrite_rule is not None:
        return value.rewrite_rule
    if value.form is Form.SUM and len(value.operands) == 2:
        others = [operand for operand in value.operands if rules[operand] != HIDDEN]
        stored = [operand.numbers() for operand in others]  # a mask has zeros, and numbers that mean minus infinity
        if len(others) < 2 and all(n is not None and bool(((n == 0) | (n <= MASKED)).all()) for n in stored):
            return HIDDEN
    return None


def _common(values: Sequence[Value], rules: Rules) -> QuantizationRule | None:
    """Return the rule of qparams that were given to all values; None if there are none, or several."""
    found = [rules[value] for value in values]
    return found[0] if found and all(rule == found[0] for rule in found) else None
