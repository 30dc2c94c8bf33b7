"""What is delegated and why: verdicts, reasons, partitions and their borders, on programs of a few operators."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter

import pytest
import torch
import torch.nn.functional as F
from tests.cases import Case, c8, case, i8, q, w8
from tests.compile.ops import test_operators_spatial
from tests.compile.small import Small, conv, find, image, linear, quantized
from torch import nn

from micronpu.frontend.graphs import nodes_where
from micronpu.frontend.program import (
    ProgramView,
    is_compute,
    is_dequantize,
    is_dequantize_channel,
    is_quantize,
    overload_name,
)
from micronpu.ir.types import DType
from micronpu.neutron import NeutronTargetSpec
from micronpu.ops.convolution import Conv2d, DepthwiseConv2d
from micronpu.ops.elementwise import Add
from micronpu.ops.movement import Reshape
from micronpu.ops.pooling import AvgPool2d
from micronpu.ops.quantization import Requantize
from micronpu.ops.slicing import Concat
from micronpu.ops.softmax import Softmax
from micronpu.partition.partition import COMPUTES, IMPORTED, Partitioning
from micronpu.targets.neutron.device import NeutronDevice
from micronpu.targets.neutron.options import NeutronOptions
from micronpu.targets.neutron.rules import RULES, SUPPORTED_RULE, check_node

TARGET = NeutronTargetSpec("imxrt700")


def partitioned(model: nn.Module, *inputs: torch.Tensor, **options) -> Partitioning:
    """The partitioning of a model's quantized program, checked to be sound."""
    view = ProgramView(quantized(model, inputs))
    made = NeutronDevice(NeutronOptions(**options)).partition(view)
    assert_sound(view, made)
    return made


def assert_sound(view: ProgramView, made: Partitioning) -> None:
    """Verdicts cover every operator once and agree with the partitions; the program stays acyclic."""
    operators = [n.name for n in nodes_where(view, is_compute)]
    judged = Counter(v.node for v in made.report.verdicts)
    assert max(judged.values(), default=1) == 1, f"judged twice: {judged}"
    unjudged = [n for n in operators if n not in judged]
    assert all(_makes_a_constant(view, n) for n in unjudged), f"not judged: {unjudged}"
    assert [n for n in operators if n in judged] == list(judged), "verdicts are not in execution order"
    for verdict in made.report.verdicts:
        assert bool(verdict.reasons) != verdict.delegated, verdict
        homes = [i for i, g in enumerate(made.partitions) if verdict.node in {n.name for n in g.nodes}]
        assert homes == ([verdict.partition] if verdict.delegated else []), verdict
    for group in made.partitions:
        members, produced = set(group.nodes), {n for n in group.nodes if is_quantize(n)}
        assert any(is_compute(n) for n in members)
        assert all(is_quantize(n) or n.op == "placeholder" for n in group.inputs)
        assert not set(group.inputs) & members
        assert produced.issuperset(group.outputs)
        assert len(set(group.inputs)) == len(group.inputs) and len(set(group.outputs)) == len(group.outputs)
        for node in members:
            for source in node.all_input_nodes:
                known = source in members or source in group.inputs or view.constant(source) is not None
                assert known, f"{node} reads {source} from outside"
        for node in members - set(group.outputs):
            if is_compute(node) or is_quantize(node):
                readers = {r for u in node.users for r in ([u] if u in members else _behind_dequantize(u))}
                assert readers <= members, f"{readers - members} reads {node}, which is no output"
    _assert_acyclic(view, made)


def _behind_dequantize(node):
    """A dequantize may be shared with the host, which then has a copy of its own."""
    return list(node.users) if is_dequantize(node) else [node]


def _makes_a_constant(view: ProgramView, name: str) -> bool:
    node = next(n for n in view.graph.nodes if n.name == name)
    sources = [node]
    while sources:
        source = sources.pop()
        if source.op == "placeholder" and view.constant(source) is None:
            return False
        sources += source.all_input_nodes
    return True


def _assert_acyclic(view: ProgramView, made: Partitioning) -> None:
    """Contracts the partitions; quantizes and operators belong to one, what is between may be copied."""
    home = {
        n: f"partition {i}" for i, g in enumerate(made.partitions) for n in g.nodes if is_quantize(n) or is_compute(n)
    }
    sorter: TopologicalSorter = TopologicalSorter()
    for node in view.graph.nodes:
        if is_dequantize(node) or is_dequantize_channel(node):
            continue
        mine = home.get(node, node)
        for source in node.all_input_nodes:
            while is_dequantize(source) or is_dequantize_channel(source):
                source = source.args[0]
            other = home.get(source, source)
            if other != mine:
                sorter.add(mine, other)
    sorter.prepare()


def by_operator(made: Partitioning) -> dict[str, list[int | None]]:
    """Operator to the partitions of its nodes."""
    found: dict[str, list[int | None]] = {}
    for verdict in made.report.verdicts:
        found.setdefault(verdict.operator, []).append(verdict.partition)
    return found


def reason(made: Partitioning, operator: str) -> tuple[str, str]:
    """Rule and detail of the one reason why an operator stays on the host."""
    (verdict,) = (v for v in made.report.host if v.operator == operator)
    (only,) = verdict.reasons
    assert only.node == verdict.node and only.sentence.endswith(".")
    return only.rule, only.detail


# ---------------------------------------------------------------- verdicts


def test_one_verdict_per_operator_with_macs_source_and_module():
    model = Small(lambda s, x: F.max_pool2d(F.relu(s.c(x)), 2).flatten(1), c=conv())
    made = partitioned(model, image())
    verdicts = made.report.verdicts
    assert [v.operator for v in verdicts] == [
        "conv2d.default",
        "relu.default",
        "max_pool2d.default",
        "flatten.using_ints",
    ]
    assert [v.partition for v in verdicts] == [0, 0, 0, 0]
    assert [v.macs for v in verdicts] == [8 * 6 * 6 * 8 * 9, 0, 0, 0]
    assert [v.shape for v in verdicts] == [(1, 8, 6, 6), (1, 8, 6, 6), (1, 8, 3, 3), (1, 72)]
    assert all("small.py:" in v.origin.source for v in verdicts[1:])
    assert verdicts[0].origin.module == "c"
    assert made.report.summary() == "4 of 4 operators on the NPU of imxrt700-neutron in 1 partition"


def test_weights_that_are_transposed_in_the_program_need_no_verdict():
    weight = nn.Parameter(torch.randn(8, 5))
    made = partitioned(Small(lambda s, x: torch.mm(x, s.w), w=weight), image(2, 8))
    assert all(v.delegated for v in made.report.verdicts) and len(made.report.verdicts) == 1


def test_an_operator_that_nobody_knows():
    made = partitioned(Small(lambda s, x: torch.erf(s.c(x)), c=conv()), image())
    assert by_operator(made) == {"conv2d.default": [0], "erf.default": [None]}
    assert reason(made, "erf.default") == (
        IMPORTED,
        "its result is not quantized; `erf.default` is a table of a function of one element, which not every chip "
        "looks up",
    )


def test_an_operator_on_other_numbers_than_floats():
    made = partitioned(Small(lambda s, x, i: (s.c(x), i + i), c=conv()), image(), torch.tensor([1, 2]))
    assert by_operator(made) == {"conv2d.default": [0], "add.Tensor": [None]}
    assert "int64" in reason(made, "add.Tensor")[1]


def test_a_program_without_quantization_stays_on_the_host():
    view = ProgramView(torch.export.export(Small(lambda s, x: F.relu(s.c(x)), c=conv()), (image(),)))
    made = NeutronDevice(NeutronOptions()).partition(view)
    assert_sound(view, made)
    assert not made.partitions and made.report.share == 0.0
    assert reason(made, "conv2d.default") == (IMPORTED, "its result is not quantized")
    assert "quantize the model" in made.report.host[0].reasons[0].hint


def test_a_program_of_nothing():
    made = partitioned(Small(lambda s, x: x), image())
    assert not made.partitions and made.report.verdicts == () and made.report.share == 1.0


def test_a_float_result_that_the_host_reads():
    """An observer is removed by hand, so that a node reads the result of the convolution before it is quantized."""
    module = quantized(Small(lambda s, x: torch.erf(s.c(x)), c=conv()), (image(),))
    erf, layer = find(module, "erf.default"), find(module, "conv2d.default")
    erf.replace_input_with(erf.args[0], layer)
    view = ProgramView(module)
    made = NeutronDevice(NeutronOptions()).partition(view)
    assert by_operator(made) == {"conv2d.default": [None], "erf.default": [None]}
    rule, detail = reason(made, "conv2d.default")
    assert rule == IMPORTED and ("`erf` reads the float result" in detail or "not quantized" in detail)


# ---------------------------------------------------------------- what the user does not want


@pytest.mark.parametrize("name", ["aten.add.Tensor", "add.Tensor", "aten::add.Tensor", "torch.ops.aten.add.Tensor"])
def test_operators_not_to_delegate(name: str):
    model = Small(lambda s, x: s.c(x) + x, c=conv())
    made = partitioned(model, image(), operators_not_to_delegate=(name,))
    assert by_operator(made) == {"conv2d.default": [0], "add.Tensor": [None]}
    assert reason(made, "add.Tensor") == ("is_wanted", "aten.add.Tensor is in operators_not_to_delegate")


def test_only_the_exact_overload_is_excluded():
    """`conv2d.padding` is another overload than `conv2d.default`; both layers share their weights."""
    layer, same = conv(), conv(padding="same")
    same.weight, same.bias = layer.weight, layer.bias
    model = Small(lambda s, x: s.b(s.a(x)), a=layer, b=same)
    made = partitioned(model, image(), operators_not_to_delegate=("aten.conv2d.default",))
    assert by_operator(made) == {"conv2d.default": [None], "conv2d.padding": [0]}


def test_a_clamp_that_is_fused_stays_with_its_operator():
    model = Small(lambda s, x: F.relu(s.c(x)), c=conv())
    for name in ("aten.relu.default", "aten.conv2d.default"):
        made = partitioned(model, image(), operators_not_to_delegate=(name,))
        assert by_operator(made) == {"conv2d.default": [None], "relu.default": [None]}


# ---------------------------------------------------------------- partitions


def test_two_partitions_round_a_host_operator():
    made = partitioned(Small(lambda s, x: s.b(torch.erf(s.a(x))), a=conv(), b=conv()), image())
    assert by_operator(made) == {"conv2d.default": [0, 1], "erf.default": [None]}


def test_no_value_leaves_a_partition_and_comes_back():
    """a -> c directly and through the host: {a, c} would wait for itself."""

    def forward(s, x):
        y = s.a(x)
        return s.c(y) + torch.erf(y)

    made = partitioned(Small(forward, a=conv(), c=conv()), image())
    assert by_operator(made) == {"conv2d.default": [0, 0], "erf.default": [None], "add.Tensor": [1]}
    first, second = made.partitions
    assert len(first.outputs) == 2 and len(second.inputs) == 2


def test_branches_that_do_not_touch_are_one_call():
    def forward(s, x, z):
        return s.a(x), torch.erf(s.b(z)), torch.erf(x)

    made = partitioned(Small(forward, a=conv(), b=conv()), image(), image(1, 8, 4, 4))
    assert by_operator(made)["conv2d.default"] == [0, 0]
    (group,) = made.partitions
    assert len(group.inputs) == len(group.outputs) == 2


def test_hosts_in_two_branches_need_two_partitions_only():
    def forward(s, x):
        left, right = torch.erf(s.a(x)), torch.erf(s.b(x))
        return s.a(left) + s.b(right) + x

    made = partitioned(Small(forward, a=conv(), b=conv()), image())
    assert by_operator(made)["conv2d.default"] == [0, 0, 1, 1]
    assert len(made.partitions) == 2


def test_a_dequantize_that_both_npu_and_host_read():
    def forward(s, x):
        y = s.a(x)
        return F.max_pool2d(y, 2), torch.erf(y)

    made = partitioned(Small(forward, a=conv()), image())
    (group,) = made.partitions
    assert len(group.outputs) == 2


def test_a_value_that_is_output_and_read_on():
    made = partitioned(Small(lambda s, x: (lambda y: (y, F.max_pool2d(y, 2)))(s.a(x)), a=conv()), image())
    (group,) = made.partitions
    assert len(group.outputs) == 2


def test_no_partition_of_reshapes_only():
    made = partitioned(Small(lambda s, x: torch.erf(x.reshape(1, -1).unsqueeze(0))), image())
    assert not made.partitions
    assert [r.rule for v in made.report.host[:2] for r in v.reasons] == [COMPUTES, COMPUTES]


def test_a_partition_of_moves_that_saves_operators_on_the_host():
    made = partitioned(Small(lambda s, x: torch.erf(x.permute(0, 2, 3, 1).reshape(1, -1))), image())
    assert len(made.partitions) == 1 and [v.operator for v in made.report.host] == ["erf.default"]
    assert "Partition 0 only moves values: it saves the host 2 operators in float." in made.report.notes


def test_moves_beside_an_operator_go_along():
    made = partitioned(Small(lambda s, x: s.c(x.flip(0).permute(0, 1, 3, 2)).reshape(1, -1), c=conv()), image())
    assert {"permute.default", "conv2d.default", "reshape.default"} <= {
        v.operator for v in made.report.verdicts if v.delegated
    }


def test_moves_between_hosts_are_a_partition_and_reshapes_are_not():
    def forward(s, x):
        moved = torch.erf(torch.erf(s.a(x)).permute(0, 1, 3, 2))
        return s.b(torch.erf(moved.reshape(1, 8, -1)).reshape(moved.shape))

    made = partitioned(Small(forward, a=conv(), b=conv()), image())
    assert by_operator(made)["permute.default"] == [1]
    assert by_operator(made)["reshape.default"] == [None, 2]
    assert by_operator(made)["conv2d.default"] == [0, 2]


def test_weights_shared_by_two_partitions_and_the_host():
    """The same layer runs twice on the NPU; a clone of it with another stride of the same weights as well."""
    layer, wide = conv(), conv(stride=2)
    wide.weight, wide.bias = layer.weight, layer.bias
    made = partitioned(Small(lambda s, x: s.b(torch.erf(s.a(torch.erf(s.a(x))))), a=layer, b=wide), image())
    assert by_operator(made)["conv2d.default"] == [0, 1, 2]


def test_partitions_are_the_same_every_time():
    def forward(s, x):
        return torch.cat([s.a(x), s.b(x), torch.erf(s.a(x))], 1) + 1.0

    model, x = Small(forward, a=conv(), b=conv()), image()
    first, second = partitioned(model, x), partitioned(model, x)
    for one, other in zip(first.partitions, second.partitions, strict=True):
        for ours, theirs in ((one.nodes, other.nodes), (one.inputs, other.inputs), (one.outputs, other.outputs)):
            assert [n.name for n in ours] == [n.name for n in theirs]


RANDOM_STEPS = (
    lambda s, x, z: s.a(x),
    lambda s, x, z: F.relu(s.b(x)),
    lambda s, x, z: torch.erf(x),
    lambda s, x, z: x + z,
    lambda s, x, z: torch.sigmoid(x),
    lambda s, x, z: x.permute(0, 1, 3, 2),
    lambda s, x, z: torch.cumsum(x, 1),
    lambda s, x, z: torch.cat([x, z], 1)[:, :8],
    lambda s, x, z: F.max_pool2d(x, 3, 1, 1),
)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_are_divided_soundly(seed: int):
    """A third of the operators is unknown; values are read again at random."""
    random = torch.Generator().manual_seed(seed)

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=random))

    plan = [(pick(len(RANDOM_STEPS)), pick(n + 1), pick(n + 1)) for n in range(10)]

    def forward(s, x):
        values = [x]
        for step, left, right in plan:
            values.append(RANDOM_STEPS[step](s, values[left], values[right]))
        return values[-1], values[-2]

    made = partitioned(Small(forward, a=conv(), b=conv()), image())
    for verdict in made.report.host:
        # An error function between quantized values is a table, which Neutron does not have.
        expected = {IMPORTED, SUPPORTED_RULE} if verdict.operator == "erf.default" else {COMPUTES}
        (reason,) = verdict.reasons
        assert reason.rule in expected, verdict


# ---------------------------------------------------------------- limits

OUT = q(0.1)
FILTER = 65535

# Rule, a row that keeps it, a row that breaks it and nothing else.
LIMITS = [
    ("activations_are_int8", case(Reshape((8,)), x=i8(2, 4)), None),
    ("rank_is_small", case(Reshape((1,) * 6 + (8,)), x=i8(8)), case(Reshape((1,) * 7 + (8,)), x=i8(8))),
    ("rank_is_small", case(Reshape((8,)), x=i8(1, 1, 1, 1, 1, 1, 8)), case(Reshape((8,)), x=i8(*[1] * 7, 8))),
    ("broadcast_goes_one_way", case(Add(), x=i8(4, 8), z=i8(8), out=OUT), case(Add(), x=i8(4, 1), z=i8(8), out=OUT)),
    ("broadcast_goes_one_way", case(Add(), x=i8(1), z=i8(4, 8), out=OUT), case(Add(), x=c8(1, 8), z=i8(4, 1), out=OUT)),
    ("parts_share_quantization", case(Concat(0), tensors=[i8(2, 3, zero=4), i8(1, 3, zero=4)]), None),
    (
        "steps_are_small",
        case(Conv2d((4096, 1)), x=i8(1, 3, 3, 1), weight=w8(2, 1, 1, 1), out=OUT),
        case(Conv2d((4097, 1)), x=i8(1, 3, 3, 1), weight=w8(2, 1, 1, 1), out=OUT),
    ),
    (
        "steps_are_small",
        case(Conv2d(), x=i8(1, 1, 4096, 8), weight=w8(1, 1, 4096, 8), out=OUT),
        case(Conv2d(), x=i8(1, 1, 4097, 8), weight=w8(1, 1, 4097, 8), out=OUT),
    ),
    (
        "steps_are_small",
        case(DepthwiseConv2d(dilation=(1, 4096)), x=i8(1, 1, 4097, 8), weight=w8(1, 1, 2, 8), out=OUT),
        case(DepthwiseConv2d(dilation=(1, 4097)), x=i8(1, 1, 4098, 8), weight=w8(1, 1, 2, 8), out=OUT),
    ),
    (
        "filter_fits",
        case(Conv2d(), x=i8(1, 1, 1, 8 * (FILTER // 8)), weight=w8(1, 1, 1, 8 * (FILTER // 8)), out=OUT),
        case(Conv2d(), x=i8(1, 1, 1, FILTER), weight=w8(1, 1, 1, FILTER), out=OUT),  # 65535 channels count as 65536
    ),
    (
        "groups_are_one_or_depthwise",
        case(Conv2d(), x=i8(1, 3, 3, 4), weight=w8(4, 3, 3, 4), out=OUT),
        case(Conv2d(), x=i8(1, 3, 3, 4), weight=w8(4, 3, 3, 2), out=OUT),
    ),
    (
        "depthwise_keeps_channels",
        case(DepthwiseConv2d(), x=i8(1, 7, 7, 8), weight=w8(1, 3, 3, 8), out=OUT),
        case(DepthwiseConv2d(), x=i8(1, 7, 7, 8), weight=w8(1, 3, 3, 16), out=OUT),
    ),
    (
        "average_window_is_small",
        case(AvgPool2d((4096, 1)), x=i8(1, 4096, 1, 1)),
        case(AvgPool2d((4097, 1)), x=i8(1, 4097, 1, 1)),
    ),
    (
        "average_window_is_small",
        case(AvgPool2d((1, 1), (1, 4096)), x=i8(1, 2, 2, 1)),
        case(AvgPool2d((1, 1), (1, 4097)), x=i8(1, 2, 2, 1)),
    ),
    ("softmax_is_small", case(Softmax(), x=i8(1, 2040)), case(Softmax(), x=i8(1, 2041))),
    ("softmax_is_small", case(Softmax(), x=i8(4096, 8)), case(Softmax(), x=i8(4097, 8))),
    ("softmax_is_small", case(Softmax(), x=i8(4096, 128)), case(Softmax(), x=i8(4096, 129))),
]


def broken(row: Case) -> list[str]:
    """Names of the rules that the operator of a row breaks."""
    (node,) = row.graph().nodes
    return [r.rule for r in check_node(node, TARGET)]


@pytest.mark.parametrize(("rule", "inside", "outside"), LIMITS)
def test_both_sides_of_a_limit(rule: str, inside: Case, outside: Case | None):
    assert broken(inside) == []
    if outside is not None:
        assert broken(outside) == [rule]


def test_activations_have_to_be_int8():
    (node,) = case(Reshape((8,)), x=i8(2, 4)).graph().nodes
    plain = node.inputs[0].type.with_qparams(None)
    (rule,) = (r for r in RULES if r.name == "activations_are_int8")
    finding = rule.check(node.op, TARGET, plain)
    assert finding is not None and "int8[2,4]" in finding.detail
    finding = rule.check(Requantize(DType.INT16), TARGET, i8(2, 4))
    assert finding is not None and finding.detail.startswith("a result of type int")


def test_parts_of_a_concatenation_share_their_qparams():
    """No quantizer makes this; a program that was quantized elsewhere may hold it."""
    (node,) = case(Concat(0), tensors=[i8(2, 3, zero=4), i8(1, 3, zero=4)]).graph().nodes
    node.inputs[1].type = i8(1, 3, zero=5)
    assert [r.rule for r in check_node(node, TARGET)] == ["parts_share_quantization"]


def test_every_limit_has_rows_on_both_sides():
    """The limits of the newest rule set; those of the published table are in test_published_rules.py."""
    covered = {row[0] for table in (LIMITS, test_operators_spatial.LIMITS) for row in table}
    elsewhere = {"matrices_are_symmetric"}  # tests/compile/ops/test_operators_elementwise.py
    assert {rule.name for rule in RULES if not rule.flavors} <= covered | elsewhere


def test_a_reason_reads_as_a_sentence():
    model = Small(lambda s, x: F.softmax(s.l(x), -1), l=linear(8, 3000))
    made = partitioned(model, image(1, 8))
    (text,) = map(str, made.report.host[0].reasons)
    assert text.startswith("`softmax` (") and "small.py:" in text
    assert text.endswith(
        "Softmax has at most 2040 channels, at most 4096 rows, and at most 524288 elements in all. "
        "Found: 3000 channels x 1 rows = 3000 elements. Try: leave softmax to the application."
    )
    assert "Try:   leave softmax to the application." in str(made.report).splitlines()[-1]


def test_the_report_as_a_value():
    made = partitioned(Small(lambda s, x: torch.erf(s.c(x)), c=conv()), image())
    data = made.report.to_dict()
    assert (data["operators"], data["delegated"], data["partitions"]) == (2, 1, 1)
    host = data["verdicts"][1]
    assert host["operator"] == "erf.default" and host["partition"] is None
    assert host["reasons"][0]["rule"] == IMPORTED
    assert overload_name(find(quantized(Small(lambda s, x: torch.erf(x)), (image(),)), "erf.default")) == "erf.default"
