"""What Model Explorer is given: the inside of programs, and values by node; its own package is not needed."""

from __future__ import annotations

import importlib
import json
import sys
import types
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from micronpu.base.errors import FileError
from micronpu.cli import explore
from micronpu.cli.explorer.graph import MODEL, ProgramGraph, node_data, program_graphs, read_blame, report_graph
from micronpu.cli.main import app
from micronpu.container.trace import StreamTrace, TracedOperator
from micronpu.ir.graph import Origin
from micronpu.report.delegation import DelegationReport
from micronpu.report.operations import Cost, Operation
from micronpu.report.verdict import Reason, Verdict

GOLDEN = Path(__file__).parents[2] / "golden"


def graphs(name: str) -> tuple[ProgramGraph, ...]:
    return program_graphs((GOLDEN / f"{name}.pte").read_bytes(), name)


@pytest.mark.parametrize("name", ["combined", "cortexm", "ethosu-litert", "ethosu-tosa", "neutron"])
def test_every_graph_hangs_together(name: str) -> None:
    for graph in graphs(name):
        nodes = {node.id: node for node in graph.nodes}
        assert len(nodes) == len(graph.nodes)
        seen: set[str] = set()
        for node in graph.nodes:
            assert all(source in seen for source, _ in node.reads), f"{node.id} reads what comes later"
            seen.add(node.id)
        # Whatever is there counts for an output, but for transfers of tables that a chain hides.
        needed, waiting = set(), [n.id for n in graph.nodes if n.id.startswith("output")]
        assert waiting
        while waiting:
            node_id = waiting.pop()
            if node_id not in needed:
                needed.add(node_id)
                waiting += [source for source, _ in nodes[node_id].reads]
        assert "input 0" in needed
        assert not {n.id for n in graph.nodes if n.label != "transfer"} - needed


def test_the_inside_of_a_container_and_of_a_stream() -> None:
    (combined,) = graphs("combined")
    inside = [n for n in combined.nodes if n.partition == 0]
    assert [n.label for n in inside][:4] == ["TRANSPOSE", "CONV_2D", "DEPTHWISE_CONV_2D", "ADD"]
    assert {n.namespace for n in inside} == {"partition 0 (NeutronBackend)"}
    add = inside[3]
    assert [source for source, _ in add.reads] == [inside[2].id, inside[1].id]
    assert dict(add.outputs[0])["type"].startswith("int8[1, 6, 5, 8], scale 0.0")
    (atan2,) = (n for n in combined.nodes if n.label == "atan2.out")
    assert atan2.place == "core" and atan2.partition is None
    stream, carried = graphs("ethosu-tosa")
    assert carried.id == "forward, partition 0: integer graph"
    assert {n.subgraph for n in stream.nodes if n.partition == 0} == {carried.id}
    assert "convolution" in {n.label for n in stream.nodes} and "CONV2D" in {n.label for n in carried.nodes}
    assert not any(n.label.startswith("CONST") for n in carried.nodes)


def test_a_payload_that_cannot_be_read_is_one_node_that_says_why() -> None:
    data = bytearray((GOLDEN / "neutron.pte").read_bytes())
    at = data.find(b"TFL3")
    data[at + 100] ^= 0xFF
    (graph,) = program_graphs(bytes(data))
    (node,) = (n for n in graph.nodes if n.partition == 0)
    assert "checksum" in dict(node.attributes)["inside"] or "CRC" in dict(node.attributes)["inside"]
    assert [source for source, _ in node.reads] == ["input 0"]
    assert graph.nodes[-1].reads == ((node.id, 0),)


def operation(name: str, node: str, cycles: int, source: str = "net.py:3") -> Operation:
    cost = Cost(cycles, cycles, {}, 0, 0.5)
    return Operation(0, name, name, (1, 6, 5, 8), 10, Origin((node,), f"/home/me/{source}"), cost, 100, 200, 30)


OPERATIONS = (
    operation("transpose", "conv", 1),
    operation("conv2d + relu", "conv", 50),
    operation("depthwise_conv2d", "conv_1", 40),
)
REPORT = DelegationReport(
    target="imxrt700",
    verdicts=(
        Verdict("conv2d.default", Origin(("conv",), "/home/me/net.py:3", "a.b"), 0, reads=("x",), shape=(1, 8, 6, 5)),
        Verdict("conv2d.default", Origin(("conv_1",)), 0, reads=("conv",)),
        Verdict("atan2.default", Origin(("atan2",)), None, (Reason("rule", "No.", "it", "atan2"),), reads=("conv_1",)),
    ),
    operations=OPERATIONS,
)


def values(sets: dict[str, Any], title: str, graph: str) -> dict[str, Any]:
    return {node: own["value"] for node, own in sets[title][graph]["results"].items()}


def test_values_of_a_report_stand_at_the_nodes() -> None:
    model = report_graph(REPORT)
    assert [(n.id, n.namespace, n.place) for n in model.nodes] == [
        ("x", "", ""),
        ("conv", "a/b", "NPU"),
        ("conv_1", "", "NPU"),
        ("atan2", "", "core, float"),
    ]
    assert "No." in dict(model.nodes[-1].attributes)["why not: rule"]
    sets = node_data((*graphs("combined"), model), REPORT, {"conv": 30.0, "atan2": float("inf")})
    assert values(sets, "cycles", MODEL) == {"conv": 50, "conv_1": 40}
    inside = {"partition 0: 0": 1, "partition 0: 1": 50, "partition 0: 2": 40}
    assert values(sets, "cycles", "forward") == inside, "by the names of results"
    assert set(values(sets, "bytes", "forward").values()) == {330}
    assert values(sets, "SQNR, dB", MODEL) == {"conv": 30.0, "atan2": 200.0}
    assert values(sets, "where it runs", "forward")["call 3"] == "core"
    assert json.loads(json.dumps(sets)) == sets


def test_values_of_a_stream_stand_at_the_last_operation_of_each_operator() -> None:
    (graph,) = (g for g in graphs("ethosu-litert") if g.id == "forward")
    inside = [n for n in graph.nodes if n.partition == 0]
    numbers = dict(zip([n.id for n in inside], [0, 1, -1, 2, 3], strict=False))
    nodes = tuple(replace(n, operator=numbers.get(n.id, -1)) for n in graph.nodes)

    def cycles(*kinds: tuple[str, str]) -> dict[str, int]:
        trace = StreamTrace(tuple(TracedOperator(*kind) for kind in kinds), ())
        return values(node_data([ProgramGraph("forward", nodes, {0: trace})], REPORT), "cycles", "forward")

    first, second, third, fourth = (inside[i].id for i in (0, 1, 3, 4))
    moved, dense, deep = (("Transpose", "net.py:3"), ("Conv2d", "net.py:3"), ("DepthwiseConv2d", "net.py:3"))
    # The first convolution became two operators: the second of them has the figures of both.
    assert cycles(moved, dense, dense, deep) == {first: 1, third: 50, fourth: 40}
    # Here they cannot be told apart, so that the figures of that kind are left out.
    assert cycles(moved, ("Conv2d", "other.py:9"), dense, deep) == {first: 1}
    assert second not in cycles(moved, dense, dense, deep)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, Any] = {"models": [], "data": []}

    class Config:
        def add_model_from_path(self, path: str, adapterId: str) -> Config:
            shown["models"].append((path, adapterId))
            return self

        def add_node_data(self, name: str, node_data: str, model_name: str) -> None:
            shown["data"].append((name, model_name, sorted(json.loads(node_data))))

    def visualize_from_config(config: Config, **options: Any) -> None:
        shown["options"] = options

    stand_in = types.SimpleNamespace(config=Config, visualize_from_config=visualize_from_config)
    monkeypatch.setattr(explore, "load_explorer", lambda: stand_in)

    def no_browser(*_: Any) -> Any:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", no_browser)
    program, report = GOLDEN / "combined.pte", tmp_path / "report.json"
    done = CliRunner().invoke(app, ["explore", str(program)])
    assert done.exit_code == 0, done.output
    assert "No browser was found here" in done.output
    assert shown["models"] == [(str(program), "micronpu")]
    assert shown["data"] == [("where it runs", "combined.pte", ["forward"])]
    assert shown["options"]["extensions"] == ["micronpu.cli.explorer"]
    assert shown["options"]["no_open_in_browser"] is True

    report.write_text(REPORT.to_json())
    other = CliRunner().invoke(app, ["explore", str(program), "--report", str(report)])
    assert other.exit_code == 1 and "not compiled" in other.output
    report.write_text(replace(REPORT, hashes={"program": "0" * 64}).to_json())
    other = CliRunner().invoke(app, ["explore", str(program), "--report", str(report)])
    assert other.exit_code == 1 and "the report of another program" in other.output
    damaged = tmp_path / "damaged.pte"
    damaged.write_bytes(program.read_bytes()[:500])
    refused = CliRunner().invoke(app, ["explore", str(damaged)])
    assert refused.exit_code == 1 and "is truncated" in refused.output and "Traceback" not in refused.output
    alone = CliRunner().invoke(app, ["explore", str(program), "--blame", "blame.json"])
    assert alone.exit_code == 1 and "without --report" in alone.output


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_explorer", None)
    done = CliRunner().invoke(app, ["explore", str(GOLDEN / "neutron.pte")])
    assert done.exit_code == 1 and 'Try: pip install "micronpu[explore]".' in done.output


def test_what_blame_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "blame.json"
    path.write_text('{"format": "micronpu blame", "version": 1, "layers": [{"node": "conv", "sqnr": "inf"}]}')
    assert read_blame(str(path)) == {"conv": float("inf")}
    for text in ("{", "[]", '{"format": "micronpu report"}', '{"format": "micronpu blame"}'):
        path.write_text(text)
        with pytest.raises(FileError, match="is not what `micronpu blame` writes"):
            read_blame(str(path))


def test_the_adapter_hands_the_graphs_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def record(**fields: Any) -> types.SimpleNamespace:
        return types.SimpleNamespace(**fields)

    names = ("Graph", "GraphNode", "IncomingEdge", "KeyValue", "MetadataItem")
    builder = types.SimpleNamespace(**dict.fromkeys(names, record))
    module = types.SimpleNamespace(Adapter=object, AdapterMetadata=record, graph_builder=builder)
    monkeypatch.setitem(sys.modules, "model_explorer", module)
    monkeypatch.delitem(sys.modules, "micronpu.cli.explorer.main", raising=False)
    adapter = importlib.import_module("micronpu.cli.explorer.main").ProgramAdapter()
    monkeypatch.delitem(sys.modules, "micronpu.cli.explorer.main")
    (graph,) = adapter.convert(str(GOLDEN / "combined.pte"), {})["graphs"]
    (wanted,) = graphs("combined")
    assert [n.id for n in graph.nodes] == [n.id for n in wanted.nodes]
    edges = [(e.sourceNodeId, e.targetNodeInputId) for e in graph.nodes[5].incomingEdges]
    assert edges == [("partition 0: 2", "0"), ("partition 0: 1", "1")]
    path = tmp_path / "report.json"
    path.write_text(REPORT.to_json())
    (model,) = adapter.convert(str(path), {})["graphs"]
    assert model.id == MODEL and len(model.nodes) == 4


def test_what_is_not_installed_is_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before a program is taken apart, or even read."""
    monkeypatch.setitem(sys.modules, "model_explorer", None)
    done = CliRunner().invoke(app, ["explore", str(tmp_path / "none.pte")])
    assert done.exit_code == 1 and 'Try: pip install "micronpu[explore]"' in done.output
