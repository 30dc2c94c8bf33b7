"""Observers: where the range of a tensor comes from; one file each, with the name that users give it.

Whatever stands in this folder is known: there is no list to be kept.
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
    """All observers by their names."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        made: Observer = importlib.import_module(f"{__name__}.{module.name}").OBSERVER
        assert made.name == module.name, f"{made.name} is in the file {module.name}.py"
        found[made.name] = made
    return found


def for_activations() -> tuple[str, ...]:
    """What users may choose for activations."""
    return tuple(o.name for o in observers().values() if o.for_users)


def for_weights() -> tuple[str, ...]:
    """What users may choose for weights."""
    return tuple(o.name for o in observers().values() if o.for_weights is not None)


def observer_for(spec: QuantizationSpec | FixedQParamsQuantizationSpec) -> RangeObserver | FixedObserver:
    """The module that an annotation asks for."""
    grid = (spec.quant_min, spec.quant_max, spec.qscheme)
    if isinstance(spec, FixedQParamsQuantizationSpec):
        return FixedObserver(spec.dtype, spec.scale, spec.zero_point, *grid)
    known = observers()[spec.observer]
    if not spec.of_weights:
        return known.search(spec.dtype, *grid, spec.eps, **dict(spec.options))
    assert known.for_weights is not None
    return WeightObserver(spec.dtype, *grid, spec.eps, search=known.for_weights, ch_axis=spec.ch_axis)


def is_observer(module: nn.Module) -> bool:
    """Whether a module observes values, and changes none: ours or torchao's."""
    return hasattr(module, "calculate_qparams") and not hasattr(module, "fake_quant_enabled")


def is_fixed(observer: nn.Module) -> bool:
    """Whether an observer, ours or torchao's, has a grid that is dictated."""
    return isinstance(observer, FixedObserver) or type(observer).__name__ == "FixedQParamsObserver"


def is_average(observer: nn.Module) -> bool:
    """Whether the range of an observer, ours or torchao's, is an average of extremes."""
    return observer.averages if isinstance(observer, RangeObserver) else "MovingAverage" in type(observer).__name__


def is_of_extremes(observer: nn.Module) -> bool:
    """Whether the range of an observer, ours or torchao's, is that of the extremes it has seen, or of their average."""
    return observer.of_extremes if isinstance(observer, RangeObserver) else "MinMax" in type(observer).__name__
