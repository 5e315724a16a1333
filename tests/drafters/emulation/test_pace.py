"""Named hardware: the shipped one, files of one's own, and what is said of those that are wrong."""

import pytest

from outrider_drafters.emulation.pace import Pace, shipped_paces
from outrider_proto.errors import UsageError

WHOLE = {"source": '"here"', "verify_ms": "20", "draft_level_ms": "3.5", "server_level_ms": "0"}


def written(tmp_path, extra: str = "", **changes: str | None):
    lines = [f"{key} = {value}" for key, value in (WHOLE | changes).items() if value is not None]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(lines) + "\n" + extra)
    return path


def test_the_papers_hardware_ships():
    assert "paper" in shipped_paces()
    pace = Pace.load("paper")
    assert (pace.name, pace.verify_ms, pace.draft_level_ms, pace.feature_width) == ("paper", 33.0, 7.0, 2048)
    assert [pace.level_factor(n) for n in (1, 8, 9, 16, 32, 64)] == [1.0, 1.0, 1.3, 1.3, 1.6, 3.2]
    assert pace.source


def test_a_file_of_ones_own(tmp_path):
    pace = Pace.load(written(tmp_path, "[batch_factors]\n4 = 1\n", row_us="250"))
    assert pace == Pace("mine", "here", 20.0, 3.5, 0.0, row_us=250.0, batch_factors={4: 1.0})
    assert Pace.load(str(tmp_path / "mine.toml")) == pace
    hash(pace)


def test_a_pass_of_many_rows_lasts_longer():
    pace = Pace("p", "", 20.0, 3.0, 3.0, row_us=100.0)
    assert [pace.pass_s(n) for n in (1, 64, 65, 164)] == pytest.approx([0.020, 0.020, 0.0201, 0.030])


@pytest.mark.parametrize(
    ("changes", "extra", "message"),
    [
        ({"verify_ms": "-1"}, "", "verify_ms=-1.0: need 0 or more"),
        ({"draft_level_ms": '"fast"'}, "", 'draft_level_ms="fast": input should be a valid number'),
        ({"server_level_ms": None}, "", "server_level_ms: missing"),
        ({"feature_width": "2.5"}, "", "feature_width=2.5: input should be a valid integer"),
        ({"verfy_ms": "3"}, "", "verfy_ms: no such key; did you mean verify_ms?"),
        ({}, "[batch_factors]\n", "batch_factors: empty"),
        ({}, "[batch_factors]\n8 = 2.0\n16 = 1.5\n", "batch_factors.16=1.5: need more than 0, and no less"),
        ({}, "oh no", "cannot be read as TOML"),
    ],
)
def test_a_wrong_file_is_told_by_file_key_and_remedy(tmp_path, changes, extra, message):
    with pytest.raises(UsageError) as refused:
        Pace.load(written(tmp_path, extra, **changes))
    assert f"mine.toml: {message}" in str(refused.value)


def test_a_name_that_is_not_there():
    with pytest.raises(UsageError, match=r"pace laptop: need a \.toml file or one of .*paper"):
        Pace.load("laptop")
