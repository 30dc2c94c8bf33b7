"""The pipeline as a value, and passes of a user's own in it."""

from __future__ import annotations

import dataclasses

import pytest
from tests.unit.passes.pass_graphs import MergeEqualOperands, Net, picture

from micronpu.base.errors import InternalError, OptionError, PassError
from micronpu.ir.graph import Graph, Node
from micronpu.ir.types import QParams
from micronpu.ops.clamps import Relu
from micronpu.ops.elementwise import Add, Maximum
from micronpu.partition.device import Intermediates
from micronpu.passes import LITERT_PASSES, Pass, Pipeline, run_passes
from micronpu.passes.pipeline import FINISH, LEGALIZE, SETTLE, SIMPLIFY


def graph() -> Graph:
    net = Net()
    x = net.relu(net.conv(net.input(1, 4, 6, 6), 4, 3))
    larger = net.builder.emit(Maximum(), x, x)
    return net.finish(net.softmax(net.reshape(larger, 1, 4 * x.shape[2] * x.shape[3])))


def test_the_default_is_every_pass_in_order_and_prints() -> None:
    pipeline = Pipeline()
    assert list(pipeline) == list(LITERT_PASSES)
    assert pipeline.names == tuple(p.name for p in (*SIMPLIFY, *SETTLE, *FINISH, *LEGALIZE))
    text = str(pipeline)
    assert text.startswith("simplify, until nothing changes:\n  remove_no_ops\n")
    assert [text.index(f"{phase.name}") for phase in pipeline.phases] == sorted(
        text.index(f"{phase.name}") for phase in pipeline.phases
    )
    assert picture(pipeline.run(graph())) == picture(run_passes(graph()))


def test_a_pass_of_ones_own_runs_where_it_was_put() -> None:
    pipeline = Pipeline().before("merge_reshapes", MergeEqualOperands())
    assert Pipeline().names == tuple(p.name for p in LITERT_PASSES), "a value does not change"
    assert "  merge_equal_operands  (your own)\n  merge_reshapes\n" in str(pipeline)
    assert "maximum" in picture(Pipeline().run(graph())) and "maximum" not in picture(pipeline.run(graph()))
    behind = Pipeline().after("merge_reshapes", MergeEqualOperands())
    names = behind.names
    assert names.index("merge_equal_operands") == names.index("merge_reshapes") + 1
    for phase in behind.phases:  # wherever the other one runs
        there = [step.name for step in phase.passes]
        assert ("merge_reshapes" in there) == ("merge_equal_operands" in there)
    assert picture(behind.without("merge_equal_operands").run(graph())) == picture(Pipeline().run(graph()))


def test_without_leaves_passes_out() -> None:
    seen: list[str] = []
    Pipeline().run(graph(), lambda step, _: seen.append(step.name))
    assert "fuse_activations" in seen
    less = Pipeline().without("fuse_activations", "remove_no_ops")
    assert set(Pipeline().names) - set(less.names) == {"fuse_activations", "remove_no_ops"}
    assert picture(less.run(graph())) == picture(run_passes(graph(), disabled=["fuse_activations", "remove_no_ops"]))
    assert picture(run_passes(graph(), disabled=["fuse_activations"], pipeline=less)) == picture(less.run(graph()))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p.without("no_such"), "There is no pass 'no_such' to leave out."),
        (lambda p: p.without("split_pads"), "'split_pads' cannot be left out, because LiteRT has no words"),
        (lambda p: p.without("fold_pads").without("fold_pads"), "The pipeline has no pass 'fold_pads'"),
        (lambda p: p.before("no_such", MergeEqualOperands()), "The pipeline has no pass 'no_such'. Try: one of "),
        (lambda p: p.before(3, MergeEqualOperands()), "The pipeline has no pass 3"),
        (lambda p: p.before("fold_pads", MergeEqualOperands), "A pass is of type ABCMeta. Try: MyPass()"),
        (lambda p: p.after("fold_pads", SIMPLIFY[0]), "is called 'remove_no_ops', which another pass has"),
        (lambda p: p.after("fold_pads", MergeEqualOperands(), MergeEqualOperands()), "which another pass has"),
        (lambda p: Pipeline(verify_each=1), "`verify_each` is 1"),
    ],
)
def test_wrong_pipelines_are_one_sentence(change, says) -> None:
    with pytest.raises(OptionError) as caught:
        change(Pipeline())
    assert says in str(caught.value)


class Own(Pass):
    """What a test makes of it."""

    name = "own"

    def __init__(self, change) -> None:
        self.change = change

    def run(self, graph: Graph) -> bool:
        return self.change(graph)


def _reads_too_early(graph: Graph) -> bool:
    if isinstance(graph.nodes[0].op, Relu):
        return False
    graph.nodes.reverse()
    return True


def _wrong_type(graph: Graph) -> bool:
    node = graph.nodes[-1]
    node.output.type = node.output.type.with_qparams(QParams.per_tensor(0.5, 1))
    return True


def _drops(graph: Graph) -> bool:
    graph.outputs[0] = graph.nodes[0].output
    return True


def _adds_itself(graph: Graph) -> bool:
    last = graph.nodes[-1]
    if isinstance(last.op, Add):
        return False
    x = graph.outputs[0]
    made = Own(lambda g: True).make(Add(), [x, x], last.origin, x.type.qparams)
    graph.nodes.append(Node(made.op, made.inputs, made.outputs, made.origin))
    graph.outputs = [made.output]
    return True


def _fails(graph: Graph) -> bool:
    raise IndexError("list index out of range")


BROKEN = {
    "order": (_reads_too_early, "The pass `own` breaks the graph: `", " reads ", " before it is computed."),
    "type": (_wrong_type, "The pass `own` breaks the graph: `", "softmax", "dictates"),
    "border": (_drops, "The pass `own` changes the types of the graph's inputs or outputs."),
    "raises": (_fails, "The pass `own` fails with IndexError: list index out of range."),
    "returns nothing": (lambda graph: None, "The pass `own` returns None, not whether it changed anything."),
    "endless": (lambda graph: True, "The pass `own` still changes the graph after 50 rounds."),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_pass_that_breaks_the_graph_is_named_with_the_node(name) -> None:
    change, *says = BROKEN[name]
    with pytest.raises(PassError) as caught:
        Pipeline().before("merge_reshapes", Own(change)).run(graph())
    assert all(part in str(caught.value) for part in says), caught.value


def test_a_pass_that_changes_what_is_computed_is_named_where_each_is_verified() -> None:
    pipeline = Pipeline().before("copy_outputs", Own(_adds_itself))
    assert "add" in picture(pipeline.run(graph())), "a legal graph"
    with pytest.raises(PassError) as caught:
        dataclasses.replace(pipeline, verify_each=True).run(graph())
    assert "The pass `own` changes what is computed: " in str(caught.value) and "computed by `%add = add" in str(
        caught.value
    )
    right = Pipeline(verify_each=True).before("merge_reshapes", MergeEqualOperands())
    assert "maximum" not in picture(right.run(graph()))


def test_each_pass_of_ours_is_checked_too(monkeypatch) -> None:
    step = next(step for step in SIMPLIFY if step.name == "fuse_activations")
    run = type(step).run

    def broken(self: Pass, graph: Graph) -> bool:
        return run(self, graph) and _reads_too_early(graph)

    monkeypatch.setattr(type(step), "run", broken)
    with pytest.raises(InternalError, match=r"The pass `fuse_activations` breaks the graph: `.* before it is computed"):
        Pipeline(verify_each=True).run(graph())


def test_the_graph_behind_each_pass_goes_to_a_folder(tmp_path) -> None:
    pipeline, before = Pipeline().before("merge_reshapes", MergeEqualOperands()), graph()
    Intermediates("", "part").write_passes(before, pipeline)
    assert not list(tmp_path.iterdir())
    Intermediates(str(tmp_path), "part").write_passes(before, pipeline)
    assert (tmp_path / "part" / "graph_before.txt").read_text() == f"{before}\n"
    files = sorted((tmp_path / "part" / "passes").iterdir())
    steps = [path.stem[4:] for path in files]
    assert "merge_equal_operands" in steps and [path.stem[:3] for path in files] == [
        f"{number:03}" for number in range(1, len(files) + 1)
    ]
    own = files[steps.index("merge_equal_operands")]
    assert "maximum(" in files[steps.index("merge_equal_operands") - 1].read_text()
    assert "maximum(" not in own.read_text()
    assert picture(before) == picture(graph()), "the graph itself stays as it is"


def test_what_no_pipeline_is_made_of() -> None:
    with pytest.raises(OptionError, match="it is a tuple of phases"):
        Pipeline(phases=[*Pipeline().phases])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="No installed package has a pass 'nothing'"):
        Pipeline().before("merge_reshapes", "nothing")


def test_without_passes_of_ones_own_a_broken_graph_is_a_defect() -> None:
    broken = graph()
    broken.nodes[0].output.type = dataclasses.replace(broken.nodes[0].output.type, shape=(1, 2, 3, 4))
    with pytest.raises(InternalError):
        Pipeline(phases=()).run(broken)
