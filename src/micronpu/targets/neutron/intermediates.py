"""Report on a converted partition for the intermediates folder."""

from __future__ import annotations

import json

from micronpu.container.payload import Artifacts
from micronpu.targets.neutron.options import NeutronOptions


def describe(converter: str, artifacts: Artifacts, options: NeutronOptions, payload_bytes: int) -> str:
    """Describe a converted partition as JSON."""
    report = {
        "converter": converter,
        "kind": artifacts.kind,
        "versions": dict(artifacts.versions),
        "excluded_graph_passes": list(options.excluded_graph_passes) if artifacts.kind == "silicon" else [],
        "target": options.target_spec.chip.name,
        "assumed": list(options.target_spec.npu.assumed),
        "cycles_estimated_by_converter": artifacts.cycles,
        "warnings": list(artifacts.warnings),
        "bytes": {
            "microcode": len(artifacts.microcode),
            "weights": len(artifacts.weights),
            "kernels": len(artifacts.kernels),
            "payload": payload_bytes,
        },
        "payload_version": artifacts.payload_version,
    }
    return json.dumps(report, indent=2) + "\n"
