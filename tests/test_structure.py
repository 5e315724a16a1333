"""Holds the project's size and the structure of its rooms to bounds; structure.py states and measures both."""

import pytest

from .structure import BOUNDS, MAX_MODULES, SMALL_ON_PURPOSE, Structure, loose, over, sizes


@pytest.fixture(scope="module")
def rooms():
    return Structure.of()


def test_nothing_grows_beyond_its_bound():
    """Where this fails, take something away."""
    assert BOUNDS.keys() <= sizes().keys()
    assert over() == {}


def test_bounds_follow_what_is_reached():
    """Where this fails, lower the bound in structure.py."""
    assert loose() == {}


def test_no_folder_is_crowded(rooms):
    assert [folder for folder, count in rooms.crowds() if count > MAX_MODULES] == []


def test_no_two_folders_import_each_other(rooms):
    assert rooms.mutual_folders() == []


def test_no_modules_import_each_other_in_a_circle(rooms):
    assert rooms.circle() == []


def test_a_class_name_stands_once(rooms):
    assert rooms.twice() == {}


def test_no_module_is_too_small_to_stand_alone(rooms):
    assert rooms.small() == {}


def test_modules_kept_small_on_purpose_exist(rooms):
    assert SMALL_ON_PURPOSE.keys() <= rooms.modules.keys()
