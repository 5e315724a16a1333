"""Interface names that the kernel accepts; real interfaces are tested in test_namespaces.py and test_tun.py."""

import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.namespaces.interfaces import interface_name


@pytest.mark.parametrize("name", ["a" * 16, "é" * 8])
def test_a_name_too_long_says_how_long(name):
    with pytest.raises(ProfileError, match=f"interface name '{name}': 16 bytes, the kernel takes 15 at most"):
        interface_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "a:b", "a%d"])
def test_a_name_with_other_faults_says_what_is_needed(name):
    with pytest.raises(ProfileError, match="need a name without blanks"):
        interface_name(name)
