"""ExecuTorch's flow for a Cortex-M core alone, under ExecuTorch's names."""

from __future__ import annotations

from executorch.exir import EdgeCompileConfig, to_edge
from torch.export import ExportedProgram

from micronpu.base.arguments import check_switch, described
from micronpu.base.errors import ModelError, OptionError
from micronpu.base.quiet import quiet
from micronpu.frontend.exported import graph_module
from micronpu.frontend.program import short_name
from micronpu.frontend.tensors import lift
from micronpu.ops import ATEN_IMPORTS
from micronpu.recipes.lowering import OutliningPartitioner, examples_of, plan_scratch
from micronpu.report.delegation import DelegationReport
from micronpu.targets.cortexm.compat import CortexMTargetConfig
from micronpu.targets.cortexm.device import CortexMDevice
from micronpu.upstream.executorch import decompositions, edge_config, operator_behind
from micronpu.upstream.torch import OpOverload


def cortex_m_edge_compile_config() -> EdgeCompileConfig:
    """Return the configuration of `to_edge` for `CortexMPassManager`: operators of the core are not decomposed."""
    config: EdgeCompileConfig = edge_config()
    whole = [o for o in decompositions() if isinstance(o, OpOverload) and short_name(o) in ATEN_IMPORTS]
    config.preserve_ops = sorted(whole, key=str)
    return config


class CortexMPassManager:
    """Replaces operators of a quantized edge program by calls of CMSIS-NN's kernels.

        edge = to_edge(quantized, compile_config=cortex_m_edge_compile_config())
        passes = CortexMPassManager(edge.exported_program())
        edge._edge_programs["forward"] = passes.transform()

    The operators are decomposed here, in contrast to `micronpu.compile` and the recipes.

    Args:
        exported_program: of the edge dialect.
        passes: must be None; `CortexMOptions.disabled_passes` switches the passes that choose the kernels.
        target_config: the core; default: Cortex-M55.
        use_explicit_layout: ignored: every layout is accepted.

    Attributes:
        report: delegation report, after `transform` was called.

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
        """Return the edge program with calls of the kernels; the original is not changed.

        Raises:
            ModelError: it contains delegate calls, which must be made before the core's part.
        """
        with quiet():
            module = graph_module(self.exported_program)
            if any("lowered_module" in str(n.target) for n in module.graph.find_nodes(op="get_attr")):
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
