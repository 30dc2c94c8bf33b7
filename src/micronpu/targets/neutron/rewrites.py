"""The rewrites of one operator for a Neutron whose rules refuse it, in no order: the cheapest that serve are taken.

A pass improves every graph; a rewrite costs something, and is applied only where a rule fails without it.
"""

from __future__ import annotations

from micronpu.passes.rewrite import Rewrite
from micronpu.passes.rewrites import ReflectBySlices
from micronpu.targets.neutron.rewrites_arithmetic import (
    AddNegative,
    ExpandByProduct,
    ExpandOperand,
    FillMatrices,
    ShiftAndBack,
)
from micronpu.targets.neutron.rewrites_channels import (
    FillProduct,
    PadChannels,
)
from micronpu.targets.neutron.rewrites_views import (
    MOST_PARTS,
    AddParts,
    AddRow,
    FlattenRows,
    HalveRows,
    JoinRows,
    MaximumOfWindows,
    MeanOfRows,
    PadAsPicture,
    PreluAsPicture,
)
from micronpu.targets.neutron.rewrites_windows import (
    DenseDepthwise,
    DenseKernel,
    PadBeforePool,
    PickRows,
    PoolOneByOne,
    RepeatElements,
    SplitMultiplier,
)

REWRITES: tuple[Rewrite, ...] = (
    PadChannels(),
    FillProduct(),
    ExpandOperand(),
    ExpandByProduct(),
    AddNegative(),
    ShiftAndBack(),
    FillMatrices(),
    FlattenRows(),
    PadAsPicture(),
    ReflectBySlices(MOST_PARTS),
    JoinRows(),
    AddParts(),
    MeanOfRows(),
    MaximumOfWindows(),
    AddRow(),
    HalveRows(),
    PreluAsPicture(),
    DenseKernel(),
    SplitMultiplier(),
    DenseDepthwise(),
    PadBeforePool(),
    PoolOneByOne(),
    PickRows(),
    RepeatElements(),
)
