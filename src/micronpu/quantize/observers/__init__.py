"""Observers of tensor ranges; one file each, with the name in the options.

All modules of this folder are observers: there is no other list.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from torch import nn

from micronpu.quantize.observing import FixedObserver, Observer, RangeObserver, WeightObserver
from micronpu.quantize.specs import FixedQParamsQuantizationSpec, QuantizationSpec


@functools.cache
def observers() -> Mapping[str, Observer]:
    """Return all observers by their names."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        made: Observer = importlib.import_module(f"{__name__}.{module.name}").OBSERVER
        assert made.name == module.name, f"{made.name} is in the file {module.name}.py"
        found[made.name] = made
    return found


def for_activations() -> tuple[str, ...]:
    """Return the names of observers for activations."""
    return tuple(o.name for o in observers().values() if o.for_users)


def for_weights() -> tuple[str, ...]:
    """Return the names of observers for weights."""
    return tuple(o.name for o in observers().values() if o.for_weights is not None)


def observer_for(spec: QuantizationSpec | FixedQParamsQuantizationSpec) -> RangeObserver | FixedObserver:
    """Return the observer for an annotation."""
    limits = (spec.quant_min, spec.quant_max, spec.qscheme)
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return FixedObserver(spec.dtype, spec.scale, spec.zero_point, *limits)
    known = observers()[spec.observer]
    if not spec.of_weights:
        return known.search(spec.dtype, *limits, spec.eps, **dict(spec.options))
    assert known.for_weights is not None
    return WeightObserver(spec.dtype, *limits, spec.eps, search=known.for_weights, ch_axis=spec.ch_axis)


def is_observer(module: nn.Module) -> bool:
    """Return True if a module observes values without changing them: this package's or torchao's."""
    return hasattr(module, "calculate_qparams") and not hasattr(module, "fake_quant_enabled")


def is_fixed(observer: nn.Module) -> bool:
    """Return True if an observer, this package's or torchao's, has fixed qparams."""
    return isinstance(observer, FixedObserver) or type(observer).__name__ == "FixedQParamsObserver"


def is_average(observer: nn.Module) -> bool:
    """Return True if the range of an observer, this package's or torchao's, is an average of extremes."""
    return observer.averages if isinstance(observer, RangeObserver) else "MovingAverage" in type(observer).__name__


def is_of_extremes(observer: nn.Module) -> bool:
    """Return True if the range of an observer, this package's or torchao's, consists of (averaged) extremes."""
    return observer.of_extremes if isinstance(observer, RangeObserver) else "MinMax" in type(observer).__name__
