"""Distribution files in iproute2's format: what is read, and what is refused with file and line."""

import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.profiles.distribution_table import load_distribution
from outrider_netsim.profiles.profile_files import load_profile, profile_text

HEAD = "# mean 12.5 ms, made by maketable\n"


def written(tmp_path, text, name="cell.dist"):
    (tmp_path / name).write_text(text)
    return tmp_path / name


def test_numbers_are_eighths_of_a_thousandth_deviation_and_comments_are_not_read(tmp_path):
    table = load_distribution(written(tmp_path, f"{HEAD}8192 -4096\n\t0\n#  9 9 9\n\n -32768 32767"))
    assert table.values == (-4.0, -0.5, 0.0, 1.0, 32767 / 8192)
    assert str(table) == str(tmp_path / "cell.dist")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cell.dist: no numbers: need 1 to 16384"),
        (HEAD, "cell.dist: no numbers"),
        (f"{HEAD}1 2\n3 4.5", "cell.dist, line 3: '4.5': need whole numbers"),
        ("1\n40000", "cell.dist, line 2: 40000: need -32768 to 32767, a number of 16 bits"),
        ("1 " * 16_385, "cell.dist, line 1: more than 16384 numbers"),
    ],
)
def test_mistakes_are_named_with_file_and_line(tmp_path, text, message):
    with pytest.raises(ProfileError) as refused:
        load_distribution(written(tmp_path, text))
    assert message in str(refused.value)


def test_a_profile_names_its_file_and_comes_back_as_written(tmp_path):
    written(tmp_path, "-8192 0 8192")
    text = "[both]\ndelay_ms = 20\njitter_ms = 5\ndistribution = 'cell.dist'\ncoherence_ms = 40"
    profile = load_profile(written(tmp_path, text, "a.toml"))
    assert profile.up.quantile_s(0.1) == pytest.approx(0.015)
    assert load_profile(written(tmp_path, profile_text(profile), "b.toml")).up == profile.up
