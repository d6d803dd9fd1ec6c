"""The operator registry refuses what an operator could not use, and says where."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.catalogue import CATALOGUE, SleepConfig, check_config, read_config
from tracelake.errors import TraceError


def test_names_are_their_keys_and_every_operator_has_a_summary() -> None:
    assert all(name == spec.name and spec.summary for name, spec in CATALOGUE.items())


@pytest.mark.parametrize(
    ("operator", "config"),
    [("noop", {}), ("sleep", {"seconds": 0}), ("sleep", {"seconds": 1.5, "fail_attempts": 2})],
)
def test_good_configs(operator: str, config: dict[str, Any]) -> None:
    check_config(operator, config)


def test_a_config_is_read_with_its_defaults() -> None:
    assert read_config("sleep", {"seconds": 3}) == SleepConfig(seconds=3.0, fail_attempts=0)


@pytest.mark.parametrize(
    ("operator", "config", "field"),
    [
        ("unheard_of", {}, "operator"),
        ("noop", {"extra": 1}, "config"),
        ("sleep", {}, "config"),
        ("sleep", {"seconds": -1}, "config.seconds"),
        ("sleep", {"seconds": "1"}, "config.seconds"),
        ("sleep", {"seconds": True}, "config.seconds"),
        ("sleep", {"seconds": float("nan")}, "config.seconds"),
        ("sleep", {"seconds": float("inf")}, "config.seconds"),
        ("sleep", {"seconds": 1, "fail_attempts": -1}, "config.fail_attempts"),
        ("sleep", {"seconds": 1, "fail_attempts": 0.5}, "config.fail_attempts"),
    ],
)
def test_bad_configs(operator: str, config: dict[str, Any], field: str) -> None:
    with pytest.raises(TraceError) as caught:
        check_config(operator, config)
    assert (caught.value.code, caught.value.details) == ("job_invalid", {"field": field})


@given(
    operator=st.sampled_from([*CATALOGUE, "other"]),
    config=st.dictionaries(
        st.sampled_from(["seconds", "fail_attempts"]) | st.text(max_size=3),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers()),
    ),
)
def test_nothing_but_job_invalid(operator: str, config: dict[str, Any]) -> None:
    try:
        check_config(operator, config)
    except TraceError as error:
        code = error.code
    else:
        code = "job_invalid"
    assert code == "job_invalid"
