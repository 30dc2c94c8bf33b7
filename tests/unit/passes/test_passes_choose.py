"""The search for what computes a node, on letters: rewrites make words of them, and letters have prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from micronpu.ir import DType, Graph, QParams, Tensor, TensorType
from micronpu.ir.graph import Node
from micronpu.ops.clamps import Relu
from micronpu.passes.rewrite import Choice, Rewrite, choose, rewritten

TYPE = TensorType((4,), DType.INT8, QParams.per_tensor(0.1, 0))


def letter(name: str) -> Node:
    return Node(Relu(), [Tensor("x", TYPE)], [Tensor(name, TYPE)])


class Spelling(Rewrite):
    """a -> b c, or another word of several."""

    def __init__(self, name: str, words: Mapping[str, Sequence[str]]) -> None:
        self.name = name  # type: ignore[misc]
        self._words = words

    def apply(self, node: Node) -> list[Node] | None:
        return next(self.offers(node), None)

    def offers(self, node: Node, before: Node | None = None) -> Iterator[list[Node]]:
        for word in self._words.get(node.output.name, ()):
            yield [letter(name) for name in word]


def spelled(
    start: str,
    *rewrites: Rewrite,
    runs: str = "",
    costs: Mapping[str, float | None] | None = None,
    depth: int = 3,
    least_gain: float | None = None,
    disabled: Sequence[str] = (),
) -> tuple[str, tuple[str, ...], float, int] | None:
    """The word that is chosen, by which rewrites, its cost, and which offer it is; letters without a price cost 1."""

    def estimate(nodes: Sequence[Node], instead: Node) -> float | None:
        each = [(costs or {}).get(n.output.name, 1.0) for n in nodes]
        return None if None in each else sum(e for e in each if e is not None)

    found = choose(
        letter(start),
        lambda n: n.output.name in runs,
        estimate,
        rewrites,
        depth=depth,
        least_gain=least_gain,
        disabled=disabled,
    )
    if found is None:
        return None
    return "".join(n.output.name for n in found.nodes), found.rewrites, found.cost, found.offer


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param({"runs": "abcd", "costs": {"a": 9.0}}, ("a", (), 0.0, 0), id="what_runs_stays"),
        pytest.param({"runs": "bc"}, ("bc", ("r",), 2.0, 0), id="what_does_not_is_rewritten"),
        pytest.param({"runs": "b"}, None, id="every_part_has_to_run"),
        pytest.param({"runs": "d"}, ("d", ("r",), 1.0, 1), id="the_next_offer_where_the_first_does_not_run"),
        pytest.param({"runs": "bcd"}, ("d", ("r",), 1.0, 1), id="the_cheapest"),
        pytest.param({"runs": "bcd", "costs": {"d": 2.0}}, ("bc", ("r",), 2.0, 0), id="the_first_of_equals"),
        pytest.param({"runs": "bcd", "costs": {"b": None}}, ("d", ("r",), 1.0, 1), id="no_price_is_no_way"),
        pytest.param({"runs": "bcd", "costs": dict.fromkeys("bcd")}, None, id="no_price_at_all"),
        pytest.param({"runs": "bcd", "disabled": ("r",)}, None, id="switched_off"),
        pytest.param({"runs": "bcd", "depth": 0}, None, id="no_rewrite_is_left"),
    ],
)
def test_one_rewrite(what: dict[str, object], expected: object) -> None:
    assert spelled("a", Spelling("r", {"a": ["bc", "d"]}), **what) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        pytest.param({"costs": {"a": 10.0, "b": 9.0}}, ("b", ("r",), 9.0, 0), id="what_saves_enough"),
        pytest.param({"costs": {"a": 10.0, "b": 9.6}}, ("a", (), 0.0, 0), id="what_saves_too_little"),
        pytest.param({"costs": {"a": None}}, ("a", (), 0.0, 0), id="what_has_no_price_stays"),
        pytest.param({"costs": {"a": 10.0}, "depth": 0}, ("a", (), 0.0, 0), id="no_rewrite_is_left"),
    ],
)
def test_what_runs_is_rewritten_where_that_saves(what: dict[str, object], expected: object) -> None:
    found = spelled("a", Spelling("r", {"a": ["b"]}), runs="ab", least_gain=0.05, **what)  # type: ignore[arg-type]
    assert found == expected


def test_what_a_rewrite_made_is_rewritten_again() -> None:
    first, second = Spelling("first", {"a": ["bc"]}), Spelling("second", {"b": ["de"]})
    assert spelled("a", first, second, runs="cde") == ("dec", ("first", "second"), 3.0, 0)
    assert spelled("a", first, second, runs="cde", depth=1) is None
    again = Spelling("again", {"a": ["aa"]})
    assert spelled("a", again, runs="b") is None  # and ends


def test_a_graph_gets_what_was_chosen() -> None:
    a, b, c = letter("a"), letter("b"), letter("c")
    graph = Graph(list(a.inputs), [b.output], [a, b])
    assert not rewritten(graph, lambda node: Choice((node,)) if node is a else None)
    assert graph.nodes == [a, b]
    assert rewritten(graph, lambda node: Choice((c, a), ("r",)) if node is a else None)
    assert graph.nodes == [c, a, b]
