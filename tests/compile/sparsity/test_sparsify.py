"""Sparse networks as a user makes them: the two front doors, what is chosen, what is said, what is refused."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from typing import Any

import pytest
import torch
from tests.compile.small import Small, conv, linear
from tests.compile.state_rows import Keeps
from torch import Tensor, nn

import micronpu
from micronpu import MicroNpuError, Sparsified, SparsityOptions
from micronpu.frontend.tensors import states_of
from micronpu.ir.pattern import is_made_two_in_four
from micronpu.quantize.calibrate import of_one, seen_calls
from micronpu.transforms.sparsity import judge, pattern_kept, search

U85 = "ethos-u85-256"
QUICK = SparsityOptions(steps=4, points=2, batch=8)


def network() -> nn.Module:
    torch.manual_seed(0)
    return Small(
        lambda m, x: m.fc(m.depthwise(m.second(m.norm(m.first(x)).relu()).relu()).flatten(1)),
        first=conv(6, 32, 3),
        norm=nn.BatchNorm2d(32),
        second=conv(32, 64, 3, stride=2),
        depthwise=conv(64, 64, 3, groups=64),
        fc=linear(64 * 16, 64),
    )


def inputs(count: int = 40) -> list[Tensor]:
    return list(torch.randn(count, 6, 8, 8, generator=torch.Generator().manual_seed(0)).split(1))


@functools.cache
def sparse() -> Sparsified:
    heard: list[tuple[str, float]] = []
    found = micronpu.sparsify(network(), inputs(), target=U85, sparsity=QUICK, callback=lambda *a: heard.append(a))
    assert {name for name, _ in heard} == {"price", "sensitivity", "distill"}
    for step in ("price", "sensitivity", "distill"):
        parts = [part for name, part in heard if name == step]
        assert parts == sorted(parts) and parts[-1] == 1.0
        # Nobody waits for long without a word: of a stage the fit of each node is heard, of a price each matrix.
        assert max(after - before for before, after in itertools.pairwise(parts)) <= 0.5
        assert len(parts) > 6
    # Quantizing and judging the network, with corrections and without, takes as long as all of the rest of a price.
    begun = [part for name, part in heard if name == "price" and part <= 0.5]
    assert max(after - before for before, after in itertools.pairwise(begun)) <= 0.2
    return found


def two_in_four(weight: Tensor) -> Tensor:
    """The two largest of each four along axis 1."""
    groups = weight.detach().movedim(1, -1).unflatten(-1, (-1, 4))
    mask = torch.zeros_like(groups).scatter(-1, groups.abs().argsort(-1)[..., 2:], 1.0)
    return (groups * mask).flatten(-2).movedim(-1, 1)


def graph_weights(program: Any) -> dict[str, Any]:
    return {
        node.op.name + str(node.inputs[1].shape): node.inputs[1].data
        for part in program.partitions
        for node in part.graph.nodes
        if len(node.inputs) > 1 and node.inputs[1].data is not None and node.inputs[1].data.ndim > 1
    }


@pytest.mark.sweep
def test_the_layers_that_gain_are_sparse_and_the_others_say_why() -> None:
    found = sparse()
    layers = {layer.name: layer for layer in found.report.layers}
    assert layers["first"].sparse and layers["second"].sparse
    assert layers["second"].cycles_sparse < 0.7 * layers["second"].cycles_dense
    assert "no sum over channels" in layers["depthwise"].why and not layers["depthwise"].sparse
    assert "1,024 columns" in layers["fc"].why and "saw 32" in layers["fc"].why
    points = found.report.points
    assert [len(p.layers) for p in points] == sorted(len(p.layers) for p in points) and points[0].layers == ()
    assert points[-1].cycles < points[0].cycles and found.report.chosen == len(points) - 1
    assert found.report.rows == 8
    assert all("small.py" in layer.source for layer in found.report.layers)
    assert [layer.name for layer in found.report.layers] == ["first", "second", "depthwise", "fc"]


def test_what_is_promised_is_what_is_compiled() -> None:
    found = sparse()
    program = micronpu.compile(
        found.model, inputs(1)[0], U85, calibration=inputs(), quantization=found.quantization, verify=False
    )
    assert sum(part.cycles for part in program.partitions) == found.report.point.cycles
    cycles = Counter[str]()
    for operation in program.report.operations:
        cycles[operation.origin.module] += operation.cost.cycles if operation.cost is not None else 0
    assert cycles == {layer.name: layer.cycles for layer in found.report.layers}
    assert {layer.name for layer in found.report.layers if layer.sparse} == {"first", "second"}
    assert {o.origin.module for o in program.report.operations if o.sparse} == {"first", "second"}
    assert any("2 layers of the program have two zeros in every four" in note for note in program.report.notes)
    assert any("small.py" in o.origin.source for o in program.report.operations)


def test_the_model_takes_any_batch_and_other_points_can_be_had() -> None:
    found = sparse()
    x = torch.cat(inputs(5))
    assert found.model(x).shape == (5, 64)
    dense = found.at(0)
    assert torch.allclose(dense.model(x), network()(x), atol=1e-4)
    assert dense.masks == {} and not any(layer.sparse for layer in dense.report.layers)
    halfway = found.at(1).report
    (only,) = halfway.point.layers
    assert [layer.name for layer in halfway.layers if layer.sparse] == [only]
    assert {layer.why for layer in halfway.layers if layer.name in {"first", "second"} - {only}} == {
        "sparse at a later point"
    }
    again = found.at(found.report.chosen)
    assert torch.equal(again.model(x), found.model(x)) and again.masks.keys() == found.masks.keys()
    with pytest.raises(MicroNpuError, match="no point 9"):
        found.at(9)


@pytest.mark.sweep
def test_the_same_seed_gives_the_same_bytes() -> None:
    first, x = sparse(), inputs(1)[0]
    second = micronpu.sparsify(network(), inputs(), U85, example_inputs=x, sparsity=QUICK)
    assert first.report == second.report
    state, other = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)


def test_training_goes_on_without_losing_a_zero() -> None:
    found = sparse().at(sparse().report.chosen)
    before = {name: p.detach().clone() for name, p in found.model.named_parameters()}
    optimizer = torch.optim.AdamW(found.model.parameters(), lr=1e-2, weight_decay=0.1)
    with found.keeping_pattern():
        for _ in range(2):
            optimizer.zero_grad()
            found.model(torch.cat(inputs(8))).square().mean().backward()
            optimizer.step()
    after = dict(found.model.named_parameters())
    for name, mask in found.masks.items():
        assert not bool(after[name][~mask].any()) and not torch.equal(after[name], before[name])


def test_masks_come_back_over_weights_that_somebody_assigns() -> None:
    layer = linear(8, 4)
    mask = two_in_four(layer.weight) != 0
    with pattern_kept(layer, {"weight": mask}):
        with torch.no_grad():
            layer.weight.fill_(1.0)
        layer(torch.ones(1, 8))
        assert torch.equal(layer.weight != 0, mask)


@pytest.mark.parametrize("via", ["litert", "tosa"])
def test_a_network_that_comes_sparse_is_recognised_and_loses_nothing(via: str) -> None:
    """Both formats, with a batch norm that is folded and a linear layer behind a picture in the program's order."""
    from micronpu.ethosu import EthosUOptions

    model: Any = network()
    with torch.no_grad():
        for layer in (model.second, model.fc):
            layer.weight.copy_(two_in_four(layer.weight))
        model.first.weight[:, 1::2] = 0
    program = micronpu.compile(model, inputs(1)[0], U85, calibration=inputs(4), options=EthosUOptions(U85, via=via))
    note = next(n for n in program.report.notes if "two zeros in every four" in n)
    assert note.startswith("3 layers of the program") and "skips them in all of them" in note
    assert {o.origin.module for o in program.report.operations if o.sparse} == {"first", "second", "fc"}


@pytest.mark.sweep
def test_quantization_aware_training_keeps_what_came_sparse() -> None:
    model: Any = network()
    with torch.no_grad():
        model.second.weight.copy_(two_in_four(model.second.weight))

    def train(module: nn.Module) -> None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for _ in range(2):
            optimizer.zero_grad()
            module(torch.cat(inputs(4))).square().mean().backward()
            optimizer.step()

    program = micronpu.compile(model, inputs(1)[0], U85, train=train)
    weight = graph_weights(program)["conv2d(64, 3, 3, 32)"]
    assert is_made_two_in_four(weight)
    # Sparse first, then trained: `calibration` is for the choice of weights.
    both = micronpu.compile(network(), inputs(1)[0], U85, calibration=inputs(), train=train, transforms=QUICK)
    assert both.report.sparsity is not None and is_made_two_in_four(graph_weights(both)["conv2d(64, 3, 3, 32)"])


@pytest.mark.sweep
def test_compile_makes_sparse_and_says_so() -> None:
    options = SparsityOptions(steps=0, points=1, max_cycles=0.9)
    program = micronpu.compile(network(), inputs(1)[0], U85, calibration=inputs(), transforms=options)
    report = program.report.sparsity
    assert report is not None and report.summary() in program.report.remarks
    assert json.loads(program.report.to_json())["sparsity"]["points"][report.chosen]["cycles"] == report.point.cycles
    assert sum(part.cycles for part in program.partitions) == report.point.cycles <= 0.9 * report.points[0].cycles
    assert program.report.agreement is not None and not program.report.agreement.reason


@pytest.mark.sweep
@pytest.mark.parametrize(("target", "bytes_known"), [("ethos-u55-128", True), ("imxrt700-neutron", False)])
def test_a_target_that_gains_nothing_leaves_the_network_as_it_is(target: str, bytes_known: bool) -> None:
    found = micronpu.sparsify(network(), inputs(), target=target, sparsity=QUICK)
    x = torch.cat(inputs(3))
    assert torch.allclose(found.model(x), network()(x), atol=1e-4) and found.masks == {}
    assert len(found.report.points) == 1 and "stays as it is" in found.report.notes[0]
    assert ("% less" in found.report.notes[0]) is bytes_known
    assert ("cycles instead of" in found.report.notes[0]) is bytes_known, "it waits for weights"


@pytest.mark.sweep
def test_attention_and_recurrent_layers() -> None:
    torch.manual_seed(0)
    model = Small(
        lambda m, x: m.fc(m.rnn(m.attention(x, x, x, need_weights=False)[0])[0].mean(1)),
        attention=nn.MultiheadAttention(32, 2, batch_first=True),
        rnn=nn.GRU(32, 32, batch_first=True),
        fc=linear(32, 8),
    )
    rows = list(torch.randn(40, 3, 32, generator=torch.Generator().manual_seed(0)).split(1))
    found = micronpu.sparsify(model, rows, target=U85, sparsity=SparsityOptions(steps=2, points=1, least_gain=0.0))
    layers = {layer.name: layer for layer in found.report.layers}
    assert layers["rnn"].sparse and layers["rnn"].cycles_sparse < layers["rnn"].cycles_dense
    assert layers["attention"].shape == (96, 32) and layers["attention"].cycles_dense
    for name in found.masks:
        weight = dict(found.model.named_parameters())[name].detach().numpy()
        assert is_made_two_in_four(weight), name


@pytest.mark.sweep
def test_a_model_that_keeps_a_state() -> None:
    """By itself and inside of `compile`: its calls are seen with the states that they meet."""
    torch.manual_seed(0)

    def step(m: Any, x: Tensor) -> Any:
        m.h.copy_(torch.tanh(m.mixes(torch.cat([x, m.h], 1))))
        return m.fc(m.h)

    model = Keeps(step, {"h": torch.zeros(1, 64)}, mixes=linear(128, 64), fc=linear(64, 32)).eval()
    sequences = [list(torch.randn(20, 64).split(1)) for _ in range(3)]
    options = SparsityOptions(steps=2, points=1, batch=4, least_gain=0.0)
    found = micronpu.sparsify(model, sequences, U85, example_inputs=sequences[0][0], sparsity=options)
    layers = {layer.name: layer for layer in found.report.layers}
    assert layers["mixes"].sparse and layers["mixes"].cycles_sparse < layers["mixes"].cycles_dense
    assert found.report.rows == 12 and "keeps a state" in found.report.notes[0]
    first, second = seen_calls(
        {"": found.at(0).model}, {"": states_of(found.model)}, of_one([[(x,) for x in sequences[0][:2]]])
    )[""]
    assert torch.equal(second[0], sequences[0][1]) and not first[1].any()
    assert torch.allclose(second[1], torch.tanh(model.mixes(torch.cat(first, 1))), atol=1e-5)
    program = micronpu.compile(found.model, sequences[0][0], U85, calibration=sequences)
    assert next(o.origin.module for o in program.report.operations if o.sparse) == "mixes"
    both = micronpu.compile(model, sequences[0][0], U85, calibration=sequences, transforms=options)
    assert both.report.sparsity is not None and both.report.sparsity.point.layers == found.report.point.layers
    assert both.report.agreement is not None and not both.report.agreement.reason
    answers = [torch.as_tensor(both.run(sequences[0][0])) for _ in range(2)]
    assert not torch.equal(*answers), "the state lives on"


@pytest.mark.sweep
def test_limits_that_nothing_reaches_name_the_nearest_point() -> None:
    quick = SparsityOptions(steps=0, points=1, max_loss=0.0)
    scored: list[Any] = []
    found = micronpu.sparsify(network(), inputs(), target=U85, sparsity=quick, score=_reported_size(scored))
    assert found.report.chosen == 0 and found.masks == {}
    assert f"the nearest, point 1 with {found.report.points[1].cycles:,} cycles" in found.report.notes[-1]
    # No network twice: the float one, and both points with corrections and without.
    assert len(scored) == len(set(map(id, scored))) == 5
    both = SparsityOptions(steps=0, points=1, max_loss=1.0, max_cycles=10)
    few = micronpu.sparsify(network(), inputs(), target=U85, sparsity=both)
    assert few.report.chosen == 1 and "Within a loss of 1 no network takes at most 10 cycles" in few.report.notes[-1]


def _reported_size(networks: list[Any]) -> Any:
    """A score that quantization alone makes no worse: how many weights are there."""

    def score(model: Any) -> float:
        networks.append(model)
        return float(sum((p != 0).sum() for p in model.parameters())) if list(model.parameters()) else 0.0

    return score


@pytest.mark.sweep
def test_nothing_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls for two points: what is quantized and run is what is judged or priced."""
    calls = Counter[str]()

    def counted(module: Any, name: str) -> None:
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: (calls.update([name]), function(*a, **k))[1])

    for module, name in ((judge, "quantize"), (search, "price"), (judge, "results"), (search, "pruned")):
        counted(module, name)
    few = micronpu.sparsify(network(), inputs(), target=U85, sparsity=SparsityOptions(steps=0, points=1, max_cycles=10))
    assert few.report.chosen == 1 and few.report.notes[0].startswith("Points were judged with only 8 held-out inputs")
    assert f"at most 10 cycles; the nearest takes {few.report.point.cycles:,}" in few.report.notes[-1]
    # Each point without corrections and with them, and what all layers gain.
    assert calls["quantize"] == 2 * 2 + 1 and calls["price"] == 2 + 1
    # The float network, what was quantized for the points, and in double precision the same again and each of two
    # layers alone.
    assert calls["results"] == 1 + 2 * 2 + 1 + 2
    assert calls["pruned"] == 2


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("few inputs", {"calibration": inputs(3)}, r"3 calibration inputs; to choose weights takes 8 .* 1,024 here"),
    ("few for all", {"model": "linear"}, r"8 calibration inputs are too few|needs as many inputs of the layer"),
    ("NaN in the data", {"calibration": [torch.full((1, 6, 8, 8), float("nan"))] * 9}, "NaN or infinity"),
    ("NaN in the weights", {"model": "nan"}, "holds NaN or infinity"),
    ("no such layer", {"sparsity": SparsityOptions(dense=("nowhere",))}, "'nowhere', and there is no such layer"),
    ("per cent", {"sparsity": SparsityOptions(max_loss=2)}, "`max_loss` is 2; without `score` it is the share"),
    ("no options", {"sparsity": "2:4"}, "`sparsity` is of type str"),
    ("generator", {"calibration": (x for x in inputs())}, "a list of inputs, the first of which"),
    ("empty", {"calibration": []}, "calibration data is empty"),
    ("training mode", {"model": "training"}, "training mode"),
]


@pytest.mark.parametrize(("given", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_input_is_one_sentence(given: dict[str, Any], message: str) -> None:
    model: Any = network()
    kind = given.get("model")
    if kind == "nan":
        model.first.weight.data[0, 0, 0, 0] = float("nan")
    elif kind == "training":
        model = model.train()
    data: Any = given.get("calibration", inputs())
    if kind == "linear":
        model, data = Small(lambda m, x: m.fc(x), fc=linear(256, 8)), list(torch.randn(10, 256).split(1))
    with pytest.raises(MicroNpuError, match=message):
        micronpu.sparsify(model, data, target=U85, sparsity=given.get("sparsity", QUICK))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"pattern": "1:4"}, "no sparsity pattern '1:4'"),
        ({"max_loss": -1}, "`max_loss` is -1"),
        ({"max_cycles": "few"}, "`max_cycles` is 'few'"),
        ({"points": 0}, "`points` is 0"),
        ({"steps": 1.5}, "`steps` is 1.5"),
        ({"rate": 2}, "`rate` is 2"),
        ({"held_back": 1}, "`held_back` is 1"),
        ({"dense": "fc"}, "`dense` is 'fc'"),
    ],
)
def test_options_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(MicroNpuError, match=message):
        SparsityOptions(**values)


def test_compile_refuses_what_cannot_be_made_sparse() -> None:
    x = inputs(1)[0]
    with pytest.raises(MicroNpuError, match="`transforms` is True"):
        micronpu.compile(network(), x, U85, calibration=inputs(), transforms=True)  # type: ignore[arg-type]
    quantized = micronpu.compile(network(), x, U85, calibration=inputs(2), verify=False).quantized
    with pytest.raises(MicroNpuError, match="quantized already and cannot be made sparse"):
        micronpu.compile(quantized, x, U85, calibration=inputs(), transforms="2:4")


@pytest.mark.sweep
def test_no_sparser_than_the_cycles_ask_for() -> None:
    """Of two layers that gain, one is enough for 0.9 of the cycles."""
    options = SparsityOptions(steps=0, points=1, max_cycles=0.9)
    found = micronpu.sparsify(network(), inputs(), target=U85, sparsity=options)
    (name,) = found.report.point.layers
    (other,) = {"first", "second"} - {name}
    assert next(layer.why for layer in found.report.layers if layer.name == other) == (
        "not needed for the requested cycles"
    )
