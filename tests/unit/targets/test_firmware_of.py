"""What delegates ask of the firmware, found by the name of the delegate."""

from __future__ import annotations

import pytest

from micronpu.container.payload import PayloadLayout, TensorSlot, pack, reference_artifacts
from micronpu.deploy.csource import rendered
from micronpu.targets.ethosu.firmware import EthosUFirmware
from micronpu.targets.neutron.firmware import NeutronFirmware
from micronpu.targets.registry import BACKENDS, find_target, firmware_of

DELEGATING = [backend for backend in BACKENDS.values() if backend.backend_id]


@pytest.mark.parametrize("backend", DELEGATING, ids=lambda f: f.name)
def test_every_delegate_says_how_it_is_linked(backend) -> None:
    firmware = firmware_of(backend.backend_id)
    assert type(firmware) is type(backend.firmware())
    lines = rendered(firmware.cmake, name="kws", NAME="KWS").splitlines()
    assert lines[-1].startswith("target_link_libraries(kws_app PRIVATE ${KWS_")
    rendered(firmware.build_note, accelerator="an NPU", memory_mode="a mode")  # no other words


def test_a_delegate_of_no_backend() -> None:
    assert firmware_of("XnnpackBackend") is None
    assert firmware_of("") is None  # a core alone delegates nothing


def test_the_core_and_the_virtual_platform_that_a_backend_knows_of() -> None:
    known = {
        "ethos-u55-128": "cortex-m55",
        "ethos-u85-256": "cortex-m85",
        "ethos-u65-256": "",
        "cortex-m33": "cortex-m33",
    }
    for name, core in known.items():
        assert BACKENDS[find_target(name).backend].core_beside(name) == core
    assert [n for n in known if EthosUFirmware().has_platform(n)] == ["ethos-u55-128", "ethos-u85-256"]
    assert not NeutronFirmware().has_platform("imxrt700")


def test_a_reference_container_is_for_no_silicon() -> None:
    layout = PayloadLayout(inputs=(TensorSlot(0, False),), outputs=(TensorSlot(0, False),), num_arguments=1)
    payload = pack(layout, reference_artifacts(b"TFL3", 1, 1, 1))
    firmware = firmware_of("NeutronBackend")
    assert firmware is not None and not firmware.is_for_silicon(payload)
    assert firmware.temporary(payload) == (0, "") and firmware.laptop_only(None)
    on_device, on_host = (rendered(firmware.section, on_device=kind) for kind in (True, False))
    assert "micronpu inspect" in on_device and "micronpu inspect" not in on_host
