"""Scales of charts: round ticks that cover a range, their labels, and where a value is between them.

Numbers are exact: a tick is a fraction, so that labels never differ from their place, neither for 256-bit integers nor
for small decimals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import pairwise

Number = int | float | Fraction

_SUFFIXES = ((12, "T"), (9, "B"), (6, "M"), (3, "k"))
_LABEL_LENGTH = 10
"""Longer labels are written with an exponent, or as a distance from the first one."""
_PLAIN_BELOW = 10_000
_SMALL = Fraction(1, 1000)
_MINUTE, _HOUR, DAY = 60, 3600, 86_400
_TIME_STEPS = (
    1, 2, 5, 10, 15, 30, _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY,
)  # fmt: skip
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12_000)
_TIME_FORMATS = ("%Y", "%Y-%m", "%m-%d", "%Y-%m-%d", "%H:%M", "%m-%d %H:%M", "%Y-%m-%d %H:%M", "%H:%M:%S",
                 "%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S")  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LEAST_TIME = int((datetime(1, 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())
MOST_TIME = int((datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH).total_seconds())


@dataclass(frozen=True, slots=True)
class Scale:
    """Ticks in rising order, at least two, with a label each."""

    ticks: list[Fraction]
    labels: list[str]
    note: str = ""
    """What the labels leave out: `UTC`, or the number that they count from."""
    ends: tuple[Fraction, Fraction] | None = None
    """Where the scale begins and ends, if not with its first and its last tick."""

    def place(self, value: Number) -> float:
        """0 where the scale begins, 1 where it ends."""
        first, last = self.ends or (self.ticks[0], self.ticks[-1])
        return float((Fraction(value) - first) / (last - first))

    def cut(self, low: Number, high: Number) -> "Scale":
        """The same scale from `low` to `high`, if at least two ticks are left."""
        places = [place for place, tick in enumerate(self.ticks) if low <= tick <= high]
        if len(places) < 2:
            return self
        ticks, labels = [self.ticks[place] for place in places], [self.labels[place] for place in places]
        return Scale(ticks, labels, self.note, (Fraction(low), Fraction(high)))

    @property
    def places(self) -> list[float]:
        return [self.place(tick) for tick in self.ticks]


def number_scale(low: Number, high: Number, most: int) -> Scale:
    """Of at least 3 and at most `most` ticks, the first not above `low` and the last not below `high`."""
    first, last = Fraction(low), Fraction(high)
    ticks = _multiples(first, last, most)
    labels, note = _number_labels(ticks)
    return Scale(ticks, labels, note)


def _multiples(low: Fraction, high: Fraction, most: int) -> list[Fraction]:
    most = max(most, 3)
    if low == high:
        low, high = min(low, Fraction(0)), max(high, Fraction(0))
    if low == high:
        high = Fraction(1)
    exponent = _exponent(high - low) - 2
    while True:
        for factor in (1, 2, 5):
            step = factor * Fraction(10) ** exponent
            first, last = low // step, -(-high // step)
            if last - first + 1 <= most:
                return [number * step for number in range(first, last + 1)]
        exponent += 1


def _exponent(value: Fraction) -> int:
    """The power of ten of the first digit of a value above 0."""
    exponent = len(str(value.numerator)) - len(str(value.denominator))
    return exponent if Fraction(10) ** exponent <= value else exponent - 1


def _number_labels(ticks: Sequence[Fraction]) -> tuple[list[str], str]:
    most = max(map(abs, ticks))
    step = ticks[1] - ticks[0]
    power, suffix = 0, ""
    if most >= _PLAIN_BELOW:
        power, suffix = next((power, text) for power, text in _SUFFIXES if most >= 10**power)
    plain = [_fixed(tick, step, power) + (suffix if tick else "") for tick in ticks]
    if max(map(len, plain)) <= _LABEL_LENGTH and _SMALL <= most < 10**15:
        return plain, ""
    power = _exponent(most)
    scientific = [_fixed(tick, step, power) + (f"e{power}" if tick else "") for tick in ticks]
    if max(map(len, scientific)) <= _LABEL_LENGTH + 2:
        return scientific, ""
    origin = ticks[0]
    relative, _ = _number_labels([tick - origin for tick in ticks])
    return [f"+{label}" for label in relative], f"from {origin if origin.denominator == 1 else float(origin)}"


def _fixed(value: Fraction, step: Fraction, power: int) -> str:
    """The value over 10^power, with the digits that a multiple of the step needs."""
    digits = max(0, power - _exponent(step))
    scaled = value / Fraction(10) ** power
    shifted = round(scaled * 10**digits)
    if shifted == 0:
        return "0"
    sign, text = "-" if shifted < 0 else "", str(abs(shifted)).rjust(digits + 1, "0")
    return sign + (text if not digits else f"{text[:-digits]}.{text[-digits:]}")


def format_number(value: Number, length: int = 24) -> str:
    """The number in digits with separators; one that is longer than that is rounded to six, with an exponent."""
    number = Fraction(repr(value)) if isinstance(value, float) else Fraction(value)
    denominator = number.denominator
    digits = 0
    while (10**digits * number).denominator != 1 and digits < 18 and denominator != 1:
        digits += 1
    exact = (10**digits * number).denominator == 1
    if exact:
        shifted = abs(int(10**digits * number))
        whole, rest = divmod(shifted, 10**digits)
        text = ("-" if number < 0 else "") + f"{whole:,}" + (f".{rest:0{digits}d}" if digits else "")
        if len(text) <= length:
            return text
    power = _exponent(abs(number))
    rounded = round(number / Fraction(10) ** (power - 5))
    if abs(rounded) >= 10**6:
        power, rounded = power + 1, round(rounded / 10)
    text = str(abs(rounded))
    mantissa = f"{text[0]}.{text[1:]}".rstrip("0").rstrip(".")
    if not exact and -4 <= power < 6:
        return f"{float(number):.6g}"
    return f"{'-' if number < 0 else ''}{mantissa}e{power}"


def time_scale(low: Number, high: Number, most: int, *, whole_days: bool = False) -> Scale:
    """Of seconds since 1970, at most `most` ticks at round times of UTC; of dates, no more than one a day."""
    first, last = Fraction(low), Fraction(high)
    most = max(most, 3)
    ticks = _time_ticks(first, last, most, DAY if whole_days else 1)
    if ticks is None:  # parts of a second, or beyond the calendar
        scale = number_scale(first, last, most)
        origin = scale.ticks[0]
        if LEAST_TIME <= origin <= MOST_TIME:
            labels, _ = _number_labels([tick - origin for tick in scale.ticks])
            return Scale(scale.ticks, [f"+{label}s" for label in labels], f"from {_moment(origin)} UTC")
        return Scale(scale.ticks, scale.labels, "seconds since 1970")
    return Scale([Fraction(tick) for tick in ticks], *_time_labels(ticks))


def _time_ticks(low: Fraction, high: Fraction, most: int, least_step: int) -> list[int] | None:
    if low < LEAST_TIME or high > MOST_TIME or 0 < high - low < 1:
        return None
    for step in _TIME_STEPS:
        if step < least_step:
            continue
        first, last = low // step, -(-high // step)
        last = max(last, first + 1)
        if last - first + 1 <= most:
            # Weeks begin on Mondays, and the day of 1970 was a Thursday.
            shift = 4 * DAY if step % (7 * DAY) == 0 else 0
            if shift:
                first, last = (low - shift) // step, -(-(high - shift) // step)
                last = max(last, first + 1)
                if last - first + 1 > most:
                    continue
            ticks = [number * step + shift for number in range(first, last + 1)]
            return ticks if ticks[0] >= LEAST_TIME and ticks[-1] <= MOST_TIME else None
    start = _EPOCH + timedelta(seconds=int(low // 1))
    for step in _MONTH_STEPS:
        month = (start.year * 12 + start.month - 1) // step * step
        ticks = []
        while len(ticks) < most:
            if not 12 <= month < 12 * 10_000:
                return None
            ticks.append(_month_start(month))
            if len(ticks) > 1 and ticks[-1] >= high:
                return ticks
            month += step
    return None


def _month_start(month: int) -> int:
    return int((datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) - _EPOCH).total_seconds())


def _time_labels(ticks: Sequence[int]) -> tuple[list[str], str]:
    """The shortest form that shows all parts in which the ticks differ, and what it leaves out."""
    moments = [_EPOCH + timedelta(seconds=tick) for tick in ticks]
    step = min(after - before for before, after in pairwise(ticks))
    forms = [form for form in _TIME_FORMATS if _shows(form, step)]
    labels = [moment.strftime("%Y-%m-%d %H:%M:%S") for moment in moments]
    for form in forms:
        texts = [_pad_year(moment, form) for moment in moments]
        if len(set(texts)) == len(texts) and _is_exact(moments, form):
            labels = texts
            break
    else:
        form = "%Y-%m-%d %H:%M:%S"
    note = "UTC" if "%Y" in form else f"UTC, {_span(moments, form)}"
    return labels, note


def _pad_year(moment: datetime, form: str) -> str:
    return moment.strftime(form.replace("%Y", f"{moment.year:04d}"))


def _shows(form: str, step: int) -> bool:
    if step < _MINUTE:
        return "%S" in form
    if step < DAY:
        return "%M" in form
    return "%H" not in form


def _is_exact(moments: Sequence[datetime], form: str) -> bool:
    """Whether nothing below the smallest part that the form shows is left out."""
    if form == "%Y":
        return all((moment.month, moment.day) == (1, 1) for moment in moments)
    if form == "%Y-%m":
        return all(moment.day == 1 for moment in moments)
    return True


def _span(moments: Sequence[datetime], form: str) -> str:
    form = "%Y" if "%d" in form else "%Y-%m-%d"
    first, last = (_pad_year(moment, form) for moment in (moments[0], moments[-1]))
    return first if first == last else f"{first} to {last}"


def _moment(seconds: Fraction) -> str:
    moment = _EPOCH + timedelta(microseconds=int(seconds * 10**6 // 1))
    return _pad_year(moment, "%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
