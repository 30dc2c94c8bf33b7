"""What the folder of a program for silicon says of NXP's SDK."""

from __future__ import annotations

from micronpu.deploy.csource import rendered
from micronpu.targets.neutron.firmware import NeutronFirmware


def test_the_steps_of_a_project_of_the_sdk():
    reported = rendered(NeutronFirmware.section, on_device=True)
    steps = (
        "west update_board --set board mimxrt700evk",
        "NEUTRON_LIB_DIR",
        "micronpu_sections.ld",
        "MIMXRT798S_M33_0",
    )
    places = [reported.index(step) for step in steps]
    assert places == sorted(places) and reported.count("```") == 2
    assert "neutronInit()" in reported and "not run here" in reported


def test_a_program_for_the_laptop_needs_none_of_it():
    assert "west" not in rendered(NeutronFirmware.section, on_device=False)
