"""ExecuTorch's flow for a Cortex-M core alone, under the names that its users know."""

from __future__ import annotations

from typing import Any

from executorch.exir import EdgeCompileConfig, to_edge
from torch.export import ExportedProgram

from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.frontend.exported import graph_module
from micronpu.frontend.states import lift
from micronpu.ops import ATEN_IMPORTS
from micronpu.recipes.lowering import OutliningPartitioner, examples_of, plan_scratch
from micronpu.report.delegation import DelegationReport
from micronpu.targets.cortexm.compat import CortexMTargetConfig
from micronpu.targets.cortexm.device import CortexMDevice
from micronpu.upstream.executorch import decompositions, edge_config, operator_behind
from micronpu.upstream.torch import OpOverload, overload_part, packet_name


def cortex_m_edge_compile_config() -> EdgeCompileConfig:
    """How `to_edge` lowers a program for `CortexMPassManager`: what the core may compute whole stays whole."""
    config: EdgeCompileConfig = edge_config()
    whole = [o for o in decompositions() if isinstance(o, OpOverload) and _name(o) in ATEN_IMPORTS]
    config.preserve_ops = sorted(whole, key=str)
    return config


def _name(overload: Any) -> str:
    return f"{packet_name(overload.overloadpacket).split('::')[1]}.{overload_part(overload)}"


class CortexMPassManager:
    """Puts calls of CMSIS-NN's kernels into an edge program of a quantized model.

        edge = to_edge(quantized, compile_config=cortex_m_edge_compile_config())
        passes = CortexMPassManager(edge.exported_program())
        edge._edge_programs["forward"] = passes.transform()

    The operators come decomposed here: `micronpu.compile` and the recipes see them whole.

    Args:
        exported_program: of the edge dialect.
        passes: None; the kernels are chosen by `micronpu passes`, which `CortexMOptions.disabled_passes` switches.
        target_config: the core; a Cortex-M55 unless given.
        use_explicit_layout: taken and not looked at: every layout is taken.

    Attributes:
        report: what runs where and why, once `transform` was called.

    Raises:
        OptionError: an argument is of another type.
    """

    def __init__(
        self,
        exported_program: ExportedProgram,
        passes: None = None,
        target_config: CortexMTargetConfig | None = None,
        use_explicit_layout: bool = False,
    ) -> None:
        if not isinstance(exported_program, ExportedProgram):
            raise OptionError(
                f"`exported_program` is {described(exported_program)}.", hint="to_edge(...).exported_program()"
            )
        if passes is not None:
            raise OptionError(
                "`passes` are ExecuTorch's own, which write another program than the core's rules here describe.",
                hint="leave it out; CortexMOptions(disabled_passes=...) switches ours in micronpu.compile",
            )
        check_switch("use_explicit_layout", use_explicit_layout)
        self.exported_program = exported_program
        self.target_config = target_config if target_config is not None else CortexMTargetConfig("cortex-m55")
        if not isinstance(self.target_config, CortexMTargetConfig):
            raise OptionError(
                f"`target_config` is {described(target_config)}.",
                hint="micronpu.cortexm.CortexMTargetConfig(CortexM.M55)",
            )
        self.report: DelegationReport | None = None

    def transform(self) -> ExportedProgram:
        """The edge program with the kernels' calls; the one that was given stays as it is.

        Raises:
            ModelError: it holds calls of a delegate, which belong in front of the core's part.
        """
        with quiet():
            module = graph_module(self.exported_program)
            if any(n.op == "get_attr" and "lowered_module" in str(n.target) for n in module.graph.nodes):
                raise ModelError(
                    "The edge program calls a delegate already.",
                    hint="micronpu.compile for the chip, or a recipe, which divide a program between NPU and core",
                )
            for node in module.graph.nodes:
                node.target = operator_behind(node.target)
            module.recompile()
            partitioner = OutliningPartitioner(CortexMDevice(self.target_config.options))
            outlined = partitioner.outlined(lift(module), examples_of(self.exported_program))
            self.report = partitioner.report
            edge = to_edge(outlined, compile_config=edge_config())
            plan_scratch(edge)
        made: ExportedProgram = edge.exported_program()
        return made
