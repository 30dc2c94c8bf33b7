"""Published measurements: each row makes sense, and the estimates keep to the bands that reports print."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import anchors, ethosu_latency, results
from benchmarks.anchors import NETWORKS, Anchor

from micronpu.chips import shipped_chips
from micronpu.targets.cortexm.costs import BANDS
from micronpu.targets.ethosu.accelerators import timing_of
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
        assert target.chip is None and target.backend == "cortex-m"
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


USED = [a for a in anchors.npu_anchors("ethos-u") if not a.left_out]


@pytest.mark.sweep
@pytest.mark.parametrize("anchor", USED, ids=lambda a: f"{a.network}-{a.target}-{a.memory}")
def test_a_published_time_of_ethosu_is_in_its_band(anchor: Anchor) -> None:
    """With the estimate as it is now: of the stored streams, the package's model and the chip's file."""
    row = ethosu_latency.entry(anchor)
    assert row["low_ms"] <= row["published_ms"] <= row["high_ms"], row
    ends = [row[end] / row["predicted_ms"] for end in ("low_ms", "high_ms")]  # rounded in the row
    assert ends[0] >= 0.6 - 2e-3 and ends[1] <= 1.6 + 2e-3, row


def test_the_page_has_the_figures_of_now() -> None:
    """A change of model, chip file or anchor wants `python -m benchmarks.ethosu_latency` and `make pages`."""
    assert ethosu_latency.figures() == results.read("ethosu_latency")


def test_estimates_of_unseen_networks_are_near() -> None:
    found = results.read("ethosu_latency")["leave_one_out"]
    assert found["mean_absolute"] <= 0.20 and found["worst"] <= 0.50
    assert found["rows"] == len(USED)


@pytest.mark.parametrize("target", ethosu_latency.FITTED)
def test_the_chip_files_have_what_is_fitted(target: str) -> None:
    factor, call = ethosu_latency.fit(ethosu_latency.used(target))
    timing = timing_of(find_target(target).chip)
    assert factor == pytest.approx(1.0, abs=0.06)
    assert timing.call_us[1] == pytest.approx(call, abs=5)


def test_beats_are_those_that_are_published() -> None:
    """Within 5 % where weights do not matter: they are random here, and Arm's are smaller when stored."""
    rows = {row["counter"]: row for row in ethosu_latency.beats() if not row["note"]}
    assert abs(rows["AXI0 read"]["error"]) <= 0.05
    assert all(row["published"] > 0 and row["counted"] > 0 for row in ethosu_latency.beats())


def test_what_contradicts_its_own_page_has_less_of_everything() -> None:
    """DS-CNN on i.MX 93 takes longer than a MobileNetV1 there, which no model can have that grows with what is done."""
    less, more = (
        next(a for a in anchors.npu_anchors("ethos-u") if (a.network, a.target) == (network, "imx93"))
        for network in ("DS-CNN", "MobileNetV1-0.25-96 (VWW)")
    )
    assert "no model can have both" in less.left_out and less.source == more.source
    assert less.figure > 1.5 * more.figure
    (small,), (large,) = (ethosu_latency.estimates(ethosu_latency.key_of(a)) for a in (less, more))
    assert sum(x.npu_cycles for x in small.layers) < sum(x.npu_cycles for x in large.layers)
    for port, traffic in small.bus.items():
        assert traffic.read_bytes < large.bus[port].read_bytes


def test_no_page_compares_a_figure_with_another_npu() -> None:
    """A line of a table with a network, a target and a source: the source has that figure of that target's NPU."""
    root, checked = Path(__file__).parents[3], 0
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        for line in page.read_text(encoding="utf-8").splitlines():
            targets = {t for t in TARGETS if f"`{t}`" in line}
            sources = {a.source for a in anchors.anchors() if a.source in line and f"| {a.network} |" in line}
            if targets and sources:
                known = {(a.source, a.target) for a in anchors.anchors() if f"| {a.network} |" in line}
                assert any((s, t) in known for s in sources for t in targets), f"{page.name}: {line}"
                checked += 1
    assert checked > 20
    said = [a for a in anchors.anchors() if a.figure == 19.0 and a.kind == "ms"]
    assert [a.target for a in said] == ["alif-e8-hp"]  # the tutorial says Ethos-U55, and not the U85 beside it


TARGETS = {a.target for a in anchors.anchors() if a.processor == "npu"}


@pytest.mark.parametrize("row", _stored("neutron_latency"), ids=lambda r: f"{r['network']}-{r['target']}")
def test_a_published_time_of_neutron_is_in_the_band_of_the_package(row: dict[str, float]) -> None:
    assert BAND[0] <= row["published_ms"] / row["predicted_ms"] <= BAND[1]


@pytest.mark.parametrize("row", _stored("cortexm_latency"), ids=lambda r: f"{r['network']}-{r['core']}-{r['source']}")
def test_a_published_time_of_a_core_is_in_the_band_of_the_package(row: dict[str, float]) -> None:
    low, high = BANDS[device_for(str(row["core"])).core.instructions]
    assert low * 0.995 <= row["cycles"] / row["predicted"] <= high * 1.005 or "leave_one_out" in row


@pytest.mark.parametrize("name", [n for n, c in shipped_chips().items() if c.npu and c.npu.family == "ethos-u"])
def test_bands_are_narrow_where_there_are_anchors_and_said_to_be_wide_elsewhere(name: str) -> None:
    chip = shipped_chips()[name]
    timing, usual = timing_of(chip), timing_of(None)
    names = {n for entry in chip.targets for n in (entry.name, *entry.aliases)}
    has_anchors = any(a.target in names for a in USED)
    assert (timing.low, timing.high) == (usual.low, usual.high) or (0.6 <= timing.low < 1 < timing.high <= 1.6)
    assert ("wide" in timing.basis) != has_anchors


def test_what_is_stored_is_what_is_compiled() -> None:
    """The smallest network; `python -m benchmarks.ethosu_latency --compile` stores all of them anew."""
    anchor = next(a for a in USED if a.network == "autoencoder" and a.target == "ra8p1")
    found = ethosu_latency.compiled(anchor)
    row = next(
        r
        for r in results.read(ethosu_latency.FEATURES)
        if (r["network"], r["target"], r["memory_mode"]) == ethosu_latency.key_of(anchor)
    )
    assert [p["arithmetic"] for p in found["parts"]] == [p["arithmetic"] for p in row["parts"]]
    assert [p["places"] for p in found["parts"]] == [p["places"] for p in row["parts"]]


def test_every_network_is_needed() -> None:
    assert {a.network for a in anchors.anchors()} >= set(NETWORKS)
