"""Split large operators by channels, so that the weights of each part fit into free memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from micronpu.ir.graph import Graph, Node
from micronpu.passes.rewrite import Rewrite
from micronpu.targets.ethosu.options import EthosUOptions
from micronpu.targets.ethosu.rewrites import PARTS, TO_COME_EARLIER, SplitChannels


def in_parts(graph: Graph, spec: EthosUOptions, most: int = PARTS) -> dict[str, int]:
    """Split every operator that is large enough, in place; return the number of operators by rewrite.

    Args:
        most: maximum bytes of weights of a part.
    """
    offered: Sequence[Rewrite] = TO_COME_EARLIER if most == PARTS else (SplitChannels(most),)
    rewrites = [rewrite for rewrite in offered if rewrite.name not in spec.disabled_passes]
    used: Counter[str] = Counter()
    nodes: list[Node] = []
    for node in graph.nodes:
        name, made = next(((r.name, new) for r in rewrites if (new := r.apply(node))), ("", [node]))
        used.update([name] if name else [])
        nodes += made
    if used:
        graph.nodes = nodes
        graph.rename()
    return dict(used)
