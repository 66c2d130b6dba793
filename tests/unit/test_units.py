"""Durations and sizes as people write them."""

import math

import pytest

from lmdeploy.units import byte_count, duration, size_text

HUGE = 10**400


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(300, 300), (-1, -1), (0.5, 0.5), ("90", 90), ("-1", -1), ("0", 0), ("5m", 300), ("1h30m", 5400), ("1.5h", 5400),
     ("-1m", -60), ("0s", 0), ("-0m", 0), ("100ms", 0.1), (".5s", 0.5), ("+2s", 2), (" 24h ", 86400)],
)  # fmt: skip
def test_a_duration_is_a_number_or_what_go_writes(written: str | float, seconds: float) -> None:
    assert duration("keep_alive", written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", ["", "5 minutes", "5min", "m", "1d", "--1", "1m-5s", True, math.nan, math.inf, "inf", HUGE, "1e99h"]
)
def test_other_durations_are_refused_by_name(written: str | float) -> None:
    with pytest.raises(ValueError, match="keep_alive must be seconds or a duration such as 5m"):
        duration("keep_alive", written)


@pytest.mark.parametrize(
    ("written", "count"),
    [("8GB", 8 * 10**9), ("8g", 8 * 10**9), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("2000", 2000), ("1kB", 1000)],
)
def test_a_size_is_a_number_of_bytes_with_or_without_a_unit(written: str, count: int) -> None:
    assert byte_count("--models-memory", written) == count


@pytest.mark.parametrize("written", ["", "0", "-1GB", "8XB", "GB", "8 G B", "0.1"])
def test_other_sizes_are_refused_by_name(written: str) -> None:
    with pytest.raises(ValueError, match="--models-memory must be a size such as 8GB"):
        byte_count("--models-memory", written)


def test_a_size_is_shown_in_the_unit_that_suits_it() -> None:
    assert (size_text(3_450_000), size_text(1_239_000_000)) == ("3.5 MB", "1.24 GB")
