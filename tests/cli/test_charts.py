"""Charts: ticks that cover what they measure, drawings that stay on their canvas, and values that stay exact."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cli import samples
from tracelake.cli.chart_data import ChartData, PlotChoices, downsample, make_chart, read_number, read_time
from tracelake.cli.chart_scale import LEAST_TIME, MOST_TIME, Scale, format_number, number_scale, time_scale
from tracelake.cli.chart_svg import draw_svg
from tracelake.cli.chart_text import LEAST_WIDTH, draw_chart
from tracelake.wire.query import ResultColumn

HOSTILE = "</title><script>alert(1)</script>\"'&" + samples.EVIL
numbers = st.one_of(
    st.integers(-(2**256), 2**256),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Fraction(repr(value))),
    st.decimals(-(10**20), 10**20, places=9).map(Fraction),
)
texts = st.one_of(st.sampled_from(["HUSD", "WETH", "代币", HOSTILE, ""]), st.text(max_size=60))


def column(name: str, kind: str) -> ResultColumn:
    return ResultColumn(name=name, type=kind)


def chart(kinds: dict[str, str], rows: list[list[Any]], **choices: Any) -> ChartData:
    return make_chart([column(name, kind) for name, kind in kinds.items()], rows, PlotChoices(**choices))


def check_scale(scale: Scale, low: Any, high: Any, most: int) -> None:
    assert scale.ticks[0] <= low <= high <= scale.ticks[-1], "the ticks cover the range"
    assert all(before < after for before, after in pairwise(scale.ticks)), "they rise"
    assert 2 <= len(scale.ticks) <= max(most, 3)
    assert len(set(scale.labels)) == len(scale.labels) == len(scale.ticks), "no two have one label"
    assert scale.places[0] == 0
    assert scale.places[-1] == 1
    assert 0 <= scale.place(low) <= scale.place(high) <= 1


@given(numbers, numbers, st.integers(2, 12))
def test_ticks_of_numbers(one: Any, other: Any, most: int) -> None:
    low, high = sorted((one, other))
    scale = number_scale(low, high, most)
    check_scale(scale, low, high, most)
    assert len({after - before for before, after in pairwise(scale.ticks)}) == 1
    assert max(map(len, scale.labels)) <= 16


@given(st.integers(LEAST_TIME, MOST_TIME), st.integers(0, 10**9), st.integers(0, 10**6 - 1), st.integers(2, 12))
def test_ticks_of_times(start: int, seconds: int, micros: int, most: int) -> None:
    low = start + Fraction(micros, 10**6)
    high = min(low + seconds, Fraction(MOST_TIME))
    low = min(low, high)
    scale = time_scale(low, high, most)
    check_scale(scale, low, high, most)


@given(numbers, numbers)
def test_a_cut_scale_begins_and_ends_with_the_data(one: Any, other: Any) -> None:
    low, high = sorted((one, other))
    scale = number_scale(low, high, 8).cut(low, high)
    assert all(0 <= place <= 1 for place in scale.places)
    assert 0 <= scale.place(low) <= scale.place(high) <= 1


def test_labels_are_what_people_write() -> None:
    assert number_scale(0, 97, 7).labels == ["0", "20", "40", "60", "80", "100"]
    assert number_scale(0, 23_000_000, 6).labels == ["0", "5M", "10M", "15M", "20M", "25M"]
    assert number_scale(10**77, 10**77 + 5, 7).labels == ["+0", "+1", "+2", "+3", "+4", "+5"]
    assert number_scale(10**77, 10**77 + 5, 7).note == f"from {10**77}"
    day = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
    assert time_scale(day, day + 3 * 86_400, 6).labels == ["03-01", "03-02", "03-03", "03-04"]
    assert time_scale(day, day + 5 * 3600, 6).note == "UTC, 2026-03-01"
    assert time_scale(day, day + 300 * 86_400, 6).labels == [
        "2026-03",
        "2026-05",
        "2026-07",
        "2026-09",
        "2026-11",
        "2027-01",
    ]


@given(numbers)
def test_a_number_beside_a_bar_is_exact_or_has_an_exponent(value: Any) -> None:
    text = format_number(value)
    assert len(text) <= 24
    exact = Fraction(text.replace(",", ""))
    if "e" not in text and Fraction(value).denominator in (1, 10, 100, 1000):
        assert exact == value
    assert abs(exact - Fraction(value)) <= abs(Fraction(value)) / 100_000


@given(st.one_of(st.integers(), st.text(max_size=40), st.floats(), st.booleans(), st.none()))
def test_reading_a_number_never_fails(value: Any) -> None:
    number = read_number(value)
    if isinstance(value, int) and not isinstance(value, bool):
        assert number == value
    assert number is None or Fraction(number) == Fraction(
        repr(value) if isinstance(value, float) else str(value).strip()
    )


@given(st.text(max_size=40))
def test_reading_a_time_never_fails(value: str) -> None:
    seconds = read_time(value)
    assert seconds is None or LEAST_TIME <= seconds <= MOST_TIME


def test_a_time_is_exact() -> None:
    assert read_time("2026-03-01T00:00:00.000001Z") == 1_772_323_200 + Fraction(1, 10**6)
    assert read_time("2026-03-01") == 1_772_323_200
    assert read_time("infinity") is None
    assert read_time("+020000-01-01T00:00:00Z") is None


# --- drawing

_LABELLED = st.lists(st.tuples(texts, st.one_of(st.none(), numbers)), min_size=1, max_size=60)
_MEASURED = st.lists(
    st.tuples(st.integers(-(2**70), 2**70), st.sampled_from("abc"), st.one_of(st.none(), numbers)),
    min_size=1,
    max_size=60,
)


def _wire(value: Any) -> Any:
    """As the API sends it."""
    return value if value is None else str(value) if isinstance(value, int) else repr(float(value))


def _draw(data: ChartData, width: int) -> None:
    for ascii_only, has_colours in ((True, False), (False, True), (False, False)):
        lines = draw_chart(data, width, ascii_only=ascii_only, has_colours=has_colours)
        for line in lines:
            assert line.cell_len <= max(width, LEAST_WIDTH)
            assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", line.plain)
            assert not ascii_only or line.plain.isascii()
    check_picture(draw_svg(data, HOSTILE, HOSTILE))


def check_picture(text: str) -> ET.Element:
    """The SVG is well formed, has nothing but shapes, and everything is inside of its view box."""
    picture = ET.fromstring(text)
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for element in picture.iter():
        tag = element.tag.rpartition("}")[2]
        assert tag in {"svg", "title", "style", "text", "path", "rect", "circle"}
        for name, most in (("x", width), ("cx", width), ("y", height), ("cy", height)):
            if name in element.attrib:
                assert 0 <= float(element.attrib[name]) <= most, ET.tostring(element)
        if tag == "rect":
            assert float(element.attrib["x"]) + float(element.attrib["width"]) <= width
            assert float(element.attrib["y"]) + float(element.attrib["height"]) <= height
        if tag == "path" and element.attrib["class"] == "line":
            spots = [float(part) for part in re.findall(r"-?[0-9.]+", element.attrib["d"])]
            assert all(0 <= x <= width for x in spots[::2])
            assert all(0 <= y <= height for y in spots[1::2])
        assert not [name for name in element.attrib if name.startswith("on") or "href" in name]
    return picture


@settings(deadline=None)
@given(_LABELLED, st.integers(20, 200))
def test_bars_stay_on_their_canvas(rows: list[tuple[str, Any]], width: int) -> None:
    shown = [[name, _wire(value)] for name, value in rows]
    if all(value is None for _, value in rows):
        with pytest.raises(click.ClickException, match="nothing to draw"):
            chart({"token": "VARCHAR", "amount": "BIGNUM"}, shown)
        return
    _draw(chart({"token": "VARCHAR", "amount": "BIGNUM"}, shown), width)


@settings(deadline=None)
@given(_MEASURED, st.integers(20, 200))
def test_lines_stay_on_their_canvas(rows: list[tuple[int, str, Any]], width: int) -> None:
    shown = [[_wire(x), name, _wire(value)] for x, name, value in rows]
    kinds = {"block": "HUGEINT", "token": "VARCHAR", "amount": "DOUBLE"}
    if all(value is None for _, _, value in rows):
        return
    _draw(chart(kinds, shown, by="token"), width)


def x_labels(data: ChartData, width: int) -> tuple[list[str], int]:
    """What stands below the axis, and the number of ticks on it."""
    lines = [line.plain for line in draw_chart(data, width, ascii_only=True, has_colours=False)]
    place = next(number for number, line in enumerate(lines) if line.lstrip().startswith("+--") or "-+" in line)
    return re.split(r" +(?=\S)", lines[place + 1].strip()), lines[place].count("+") - 1


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP"])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_days_have_dates_and_no_hours(kind: str, width: int) -> None:
    rows = [[f"2026-03-0{day}", day] for day in (2, 3, 4, 5)]
    labels, ticks = x_labels(chart({"day": kind, "n": "BIGINT"}, rows), width)
    assert labels == ["03-02", "03-03", "03-04", "03-05"]
    assert ticks == 4
    picture = draw_svg(chart({"day": kind, "n": "BIGINT"}, rows), "x", "")
    assert ">03-03<" in picture
    assert "00:00" not in picture


@given(st.integers(1, 400), st.integers(60, 160))
@settings(max_examples=50)
def test_every_tick_has_its_label(hours: int, width: int) -> None:
    start = int(datetime(2026, 3, 1, 3, tzinfo=UTC).timestamp())
    rows = [[datetime.fromtimestamp(start + 3600 * hour, UTC).isoformat(), hour] for hour in (0, hours)]
    data = chart({"time": "TIMESTAMP", "n": "BIGINT"}, rows)
    lines = [line.plain for line in draw_chart(data, width, ascii_only=True, has_colours=False)]
    axis = next(number for number, line in enumerate(lines) if "+--" in line and "-" * 5 in line)
    labels = re.findall(r"\d\d-\d\d \d\d:\d\d|\d\d:\d\d|\d\d-\d\d", lines[axis + 1])
    assert len(labels) == lines[axis].count("+") - 1


def test_a_null_leaves_a_gap() -> None:
    data = chart({"n": "BIGINT", "v": "BIGINT"}, [[1, 5], [2, None], [3, 7], [4, 8]])
    path = next(item for item in check_picture(draw_svg(data, "t")) if item.attrib.get("class") == "line")
    assert path.attrib["d"].count("M") == 2
    assert path.attrib["d"].count("L") == 1
    bars = chart({"t": "VARCHAR", "v": "BIGINT"}, [["a", 5], ["b", None]])
    assert any("NULL" in line.plain for line in draw_chart(bars, 80, ascii_only=False, has_colours=True))


def test_many_points_are_drawn_with_fewer_and_the_extremes_stay() -> None:
    rows = [[number, 10**6 if number == 777 else number % 7] for number in range(20_000)]
    data = chart({"n": "BIGINT", "v": "BIGINT"}, rows)
    draw_svg(data, "t")
    assert data.notes == ["v: 20000 points drawn as 1,485; the lowest and highest of each stretch are kept."]
    kept = downsample(data.series[0].points, 2000)
    assert (777, 10**6) in kept
    assert kept[0] == (0, 0)
    assert kept[-1] == (19_999, rows[-1][1])
    assert kept == sorted(kept, key=lambda point: point[0])


@pytest.mark.parametrize(
    ("kinds", "row", "expected"),
    [
        ({"h": "TIMESTAMP WITH TIME ZONE", "n": "DOUBLE"}, ["2026-03-01T00:00:00Z", 1.5], ("h", "time", "line", "n")),
        ({"amount": "DOUBLE", "day": "DATE"}, [1.5, "2026-03-01"], ("day", "time", "line", "amount")),
        ({"block": "BIGINT", "gas": "BIGINT"}, [1, 2], ("block", "number", "line", "gas")),
        ({"token": "VARCHAR", "n": "BIGINT"}, ["a", 2], ("token", "category", "bar", "n")),
        ({"n": "BIGINT", "token": "BLOB"}, [2, "0x01"], ("token", "category", "bar", "n")),
        ({"n": "DECIMAL(38,0)"}, ["2"], ("row", "number", "line", "n")),
        ({"ok": "BOOLEAN", "n": "HUGEINT"}, [True, 3], ("ok", "category", "bar", "n")),
    ],
)  # fmt: skip
def test_columns_choose_the_axes(kinds: dict[str, str], row: list[Any], expected: tuple[str, ...]) -> None:
    data = chart(kinds, [row])
    assert (data.x_name, data.x_kind, data.kind, data.y_name) == expected


def test_series() -> None:
    kinds = {"hour": "TIMESTAMP", "token": "VARCHAR", "amount": "DOUBLE", "n": "BIGINT"}
    rows = [["2026-03-01T00:00:00", token, number, 1] for number in range(2) for token in ("a", "b")]
    assert [series.name for series in chart(kinds, rows, y=("amount",)).series] == ["a", "b"], "the only text"
    assert [series.name for series in chart(kinds, rows).series] == ["amount", "n"], "each column of numbers"
    both = chart(kinds, rows, by="token")
    assert [series.name for series in both.series] == ["a amount", "b amount", "a n", "b n"]
    many = chart({"x": "BIGINT", "t": "VARCHAR", "y": "BIGINT"}, [[1, f"s{number}", 1] for number in range(20)], by="t")
    assert len(many.series) == 8
    assert many.notes == ["The first 8 of 20 series; choose others with WHERE."]


def test_wide_numbers_are_exact() -> None:
    most = 2**256 - 1
    data = chart({"t": "VARCHAR", "amount": "VARCHAR"}, [["a", str(most)], ["b", str(most - 1)]], y=("amount",))
    assert data.values == [most, most - 1]
    decimals = chart({"t": "VARCHAR", "amount": "DECIMAL(38,18)"}, [["a", "0.100000000000000001"]])
    assert decimals.values == [Fraction(100000000000000001, 10**18)]


@pytest.mark.parametrize(
    ("kinds", "rows", "choices", "message"),
    [
        ({"n": "BIGINT"}, [], {}, "no rows"),
        ({"t": "VARCHAR", "s": "STRUCT(a INTEGER)"}, [["a", {}]], {}, "no column of numbers.*t \\(varchar\\)"),
        ({"t": "VARCHAR", "n": "BIGINT"}, [["a", 1]], {"y": ("m",)}, "--y: the result has no column m; it has t, n"),
        ({"t": "VARCHAR", "n": "BIGINT"}, [["a", 1]], {"kind": "line"}, "--kind line: expected a time or a number"),
        ({"t": "VARCHAR", "n": "VARCHAR"}, [["a", "1"], ["b", "x"]], {"y": ("n",)}, "received 'x' in row 2"),
        ({"t": "VARCHAR", "n": "DOUBLE"}, [["a", "NaN"], ["b", None]], {}, "nothing to draw"),
        ({"t": "VARCHAR", "n": "VARCHAR"}, [["a", "1e999999999"]], {"y": ("n",)}, "expected numbers in n"),
    ],
)
def test_what_cannot_be_drawn(
    kinds: dict[str, str], rows: list[list[Any]], choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(click.ClickException, match=message):
        chart(kinds, rows, **choices)


def test_what_has_no_place_is_left_out_and_said() -> None:
    data = chart({"n": "BIGINT", "v": "DOUBLE"}, [[None, 1.0], [1, 2.0], [2, "Infinity"], [3, 4.0]])
    assert data.values == [2, 4]
    assert data.notes == ["1 row without n left out.", "1 value that is not finite left out."]
