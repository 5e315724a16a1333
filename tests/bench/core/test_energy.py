"""Counters of energy as sysfs shows them."""

import pytest

from outrider_bench.core.energy import EnergyMeter

RANGE = 262_143_328_850


def domain(powercap, place, name, counted=None):
    directory = powercap / place
    directory.mkdir(parents=True)
    (directory / "name").write_text(f"{name}\n")
    if counted is None:
        (directory / "energy_uj").mkdir()  # to root, no mode makes a file unreadable
    else:
        (directory / "energy_uj").write_text(f"{counted}\n")
    (directory / "max_energy_range_uj").write_text(f"{RANGE}\n")
    return directory / "energy_uj"


def test_all_packages_are_summed_and_nothing_twice(tmp_path):
    first = domain(tmp_path, "intel-rapl:0", "package-0", 1_000_000)
    core = domain(tmp_path, "intel-rapl:0:0", "core", 5)
    second = domain(tmp_path, "intel-rapl:1", "package-1-die-0", 7)
    others = [domain(tmp_path, "intel-rapl:2", "psys", 5), domain(tmp_path, "intel-rapl-mmio:0", "package-0", 5)]
    meter = EnergyMeter.of_machine(tmp_path)
    before = meter.read()
    assert meter.joules_since(before) == 0
    first.write_text("3500000\n")
    second.write_text("500007\n")
    for other in (core, *others):
        other.write_text("900000000\n")
    assert meter.joules_since(before) == pytest.approx(3.0)


def test_a_counter_that_has_begun_again_goes_on(tmp_path):
    counter = domain(tmp_path, "intel-rapl:0", "package-0", RANGE - 1_500_000)
    meter = EnergyMeter.of_machine(tmp_path)
    before = meter.read()
    counter.write_text("500000\n")
    assert meter.joules_since(before) == pytest.approx(2.0)


def test_without_a_meter_that_can_be_read_there_is_none(tmp_path):
    assert EnergyMeter.of_machine(tmp_path / "nothing") is None
    domain(tmp_path, "intel-rapl:2", "psys", 5)
    assert EnergyMeter.of_machine(tmp_path) is None
    domain(tmp_path, "intel-rapl:0", "package-0", 5)
    assert EnergyMeter.of_machine(tmp_path) is not None
    domain(tmp_path, "intel-rapl:1", "package-1")
    assert EnergyMeter.of_machine(tmp_path) is None
