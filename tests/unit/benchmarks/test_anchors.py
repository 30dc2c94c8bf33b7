"""Published measurements: each row makes sense, and the estimates keep to the bands that reports print."""

from __future__ import annotations

import json

import pytest
from benchmarks import anchors, results
from benchmarks.anchors import NETWORKS, Anchor

from micronpu.chips import shipped_chips
from micronpu.targets.cortexm.costs import BANDS
from micronpu.targets.ethosu.accelerators import find_accelerator
from micronpu.targets.ethosu.timing import timing_of
from micronpu.targets.neutron.costs import BAND
from micronpu.targets.registry import device_for, find_target


def test_there_are_enough_of_them() -> None:
    used = [a for a in anchors.anchors() if not a.left_out and a.trust != "own"]
    assert len(used) >= 25
    assert len({a.target if a.processor == "npu" else (a.target, a.source) for a in used}) >= 7


def test_no_figure_stands_twice() -> None:
    keys = [(a.network, a.target, a.figure, a.kind, a.source, a.memory) for a in anchors.anchors()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("anchor", anchors.anchors(), ids=lambda a: f"{a.network}-{a.target}-{a.figure}")
def test_the_clock_is_that_of_the_chip(anchor: Anchor) -> None:
    """A figure of another NPU than that of the target cannot stand in the file."""
    target = find_target(anchor.target)
    if anchor.processor == "core":
        assert target.chip is None and target.family == "cortex-m"
    else:
        assert target.chip is not None and target.chip.npu is not None
        assert anchor.clock_mhz == target.chip.npu.clock_mhz


@pytest.mark.parametrize(
    ("field", "value"),
    [("kind", "hours"), ("trust", "hearsay"), ("figure", 0.0), ("network", "none"), ("clock_mhz", None)],
)
def test_a_row_without_sense_is_refused(field: str, value: object) -> None:
    row = {"network": "DS-CNN", "target": "ra8p1", "figure": 1.0, "kind": "ms", "source": "a", "trust": "vendor"}
    assert Anchor(**{**row, "clock_mhz": 500.0}).cycles == 500_000  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"DS-CNN|none"):
        Anchor(**{**row, "clock_mhz": 500.0, field: value})  # type: ignore[arg-type]


def _stored(name: str) -> list[dict[str, object]]:
    return [a for a in results.read(name)["anchors"] if not a["left_out"]]


def test_the_stored_figures_are_of_all_anchors() -> None:
    for name, wanted in (
        ("ethosu_latency", anchors.npu_anchors("ethos-u")),
        ("neutron_latency", anchors.npu_anchors("neutron")),
        ("cortexm_latency", anchors.core_anchors()),
    ):
        rows = results.read(name)["anchors"]
        found = [(r["network"], r["source"], round(r.get("published_ms") or r["cycles"], 3)) for r in rows]
        known = [
            (a.network, a.source, round(a.milliseconds, 3) if a.processor == "npu" else round(a.cycles)) for a in wanted
        ]
        assert sorted(found) == sorted(known), f"Run python -m benchmarks.{name}."


@pytest.mark.parametrize("row", _stored("ethosu_latency"), ids=lambda r: f"{r['network']}-{r['target']}-{r['memory']}")
def test_a_published_time_of_ethosu_is_in_the_band_of_the_package(row: dict[str, float]) -> None:
    target = find_target(str(row["target"]))
    timing = timing_of(target.chip, find_accelerator(target.silicon))
    least, usual, most = (us / 1000 for us in timing.call_us)
    assert row["low_ms"] == pytest.approx(timing.low * row["vela_ms"] + least, abs=2e-4)
    assert row["high_ms"] == pytest.approx(timing.high * row["vela_ms"] + most, abs=2e-4)
    assert row["predicted_ms"] == pytest.approx(row["vela_ms"] + usual, abs=2e-4)
    assert row["low_ms"] <= row["published_ms"] <= row["high_ms"]


@pytest.mark.parametrize("row", _stored("neutron_latency"), ids=lambda r: f"{r['network']}-{r['target']}")
def test_a_published_time_of_neutron_is_in_the_band_of_the_package(row: dict[str, float]) -> None:
    assert BAND[0] <= row["published_ms"] / row["predicted_ms"] <= BAND[1]


@pytest.mark.parametrize("row", _stored("cortexm_latency"), ids=lambda r: f"{r['network']}-{r['core']}-{r['source']}")
def test_a_published_time_of_a_core_is_in_the_band_of_the_package(row: dict[str, float]) -> None:
    low, high = BANDS[device_for(str(row["core"])).core.instructions]
    assert low * 0.995 <= row["cycles"] / row["predicted"] <= high * 1.005 or "leave_one_out" in row


@pytest.mark.parametrize("name", [n for n, c in shipped_chips().items() if c.npu and c.npu.family == "ethos-u"])
def test_bands_are_no_wider_than_those_without_anchors(name: str) -> None:
    chip = shipped_chips()[name]
    assert chip.npu is not None
    accelerator = find_accelerator(chip.npu.own.text("accelerator"))
    timing, usual = timing_of(chip, accelerator), timing_of(None, accelerator)
    assert usual.low <= timing.low < 1 < timing.high <= usual.high
    assert "wide" in usual.basis and (("wide" in timing.basis) == (timing == usual))


@pytest.mark.slow
@pytest.mark.parametrize("network", ["DS-CNN", "autoencoder"])
def test_the_stored_figures_are_those_of_the_package(network: str) -> None:
    from benchmarks.ethosu_latency import Row

    for anchor in anchors.npu_anchors("ethos-u"):
        if anchor.network == network:
            row = next(
                r
                for r in results.read("ethosu_latency")["anchors"]
                if (r["network"], r["target"], r["memory"]) == (network, anchor.target, anchor.memory)
            )
            found = sum(t.milliseconds for t in Row.of(anchor).latency)
            assert found == pytest.approx(row["predicted_ms"], rel=0.02), json.dumps(row)


def test_every_network_is_needed() -> None:
    assert {a.network for a in anchors.anchors()} >= set(NETWORKS)
