"""Types of calls, for functions whose result follows from the types of their arguments; others are UNKNOWN.

A test compares the tables here with Spark, function by function.
"""

from collections.abc import Callable, Mapping, Sequence

from tracelake.catalogue.sql.columns.operators import TypeMismatchError, arithmetic, common, join_texts
from tracelake.catalogue.sql.columns.types import (
    ATOMIC,
    BIGINT,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    INTEGRAL,
    NUMERIC,
    STRING,
    TIMESTAMP,
    UNKNOWN,
    SqlType,
    array,
    decimal,
    parse_type,
)

Types = Sequence[SqlType]
Rule = Callable[[Types], SqlType]

_FIXED = {
    "bigint": """
        approx_count_distinct array_position bigint count count_if crc32 factorial grouping_id regr_count timestampdiff
        to_unix_timestamp unix_micros unix_millis unix_seconds width_bucket xxhash64""",
    "binary": "binary encode to_binary try_to_binary unbase64 unhex",
    "boolean": """
        any array_contains arrays_overlap bool_and bool_or boolean contains endswith equal_null every exists forall
        is_valid_utf8 isnan isnotnull isnull map_contains_key regexp_like some startswith""",
    "date": "add_months date date_from_unix_date date_sub last_day make_date next_day to_date trunc try_to_date",
    "double": """
        acos acosh asin asinh atan atan2 atanh cbrt corr cos cosh cot covar_pop covar_samp csc cume_dist degrees double
        e exp expm1 hypot kurtosis ln log log10 log1p log2 months_between percent_rank pi pow power radians
        regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy rint sec sin sinh skewness sqrt std stddev
        stddev_pop stddev_samp tan tanh var_pop var_samp variance""",
    "float": "float",
    "int": """
        array_size ascii bit_count bit_length cardinality char_length character_length dense_rank find_in_set hash instr
        int json_array_length len length levenshtein locate ntile octet_length position rank regexp_count regexp_instr
        row_number size unix_date year month day dayofmonth dayofweek dayofyear hour minute second quarter weekday
        weekofyear""",
    "smallint": "smallint",
    "string": """
        array_join base64 bin btrim chr concat_ws conv date_format dayname format_number format_string from_unixtime
        get_json_object hex initcap lcase lower ltrim make_valid_utf8 mask md5 monthname printf quote regexp_extract
        regexp_replace regexp_substr repeat replace rtrim schema_of_json sha sha1 sha2 soundex space split_part string
        substring_index to_char to_json to_varchar translate trim try_validate_utf8 typeof ucase upper url_decode
        url_encode""",
    "timestamp": "timestamp timestamp_micros timestamp_millis timestamp_seconds",
    "tinyint": "tinyint bit_get getbit grouping",
    "array<string>": "json_object_keys regexp_extract_all split",
    "map<string,string>": "str_to_map",
}
FIXED: Mapping[str, SqlType] = {name: parse_type(kind) for kind, names in _FIXED.items() for name in names.split()}
"""Functions whose result has one type, whatever their arguments are."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NEEDS_NUMBER = frozenset(
    _words("""
    abs avg bround cbrt ceil ceiling degrees exp floor kurtosis ln log10 log2 mean median negative positive radians
    round sin skewness sqrt std stddev stddev_pop stddev_samp sum try_avg try_sum var_pop var_samp variance""")
)
NEEDS_TIME = {
    **dict.fromkeys(_words("day dayofmonth dayofweek dayofyear hour last_day minute month quarter second weekday"), 0),
    **dict.fromkeys(_words("weekofyear year date_format trunc"), 0),
    "date_trunc": 1,
}
"""Functions of a date or a time, and which of their arguments it is."""
NEEDS_BYTES = frozenset(_words("base64 crc32 md5 sha sha1 sha2"))
_NO_NUMBER = frozenset(["binary", "boolean", "date"])
_NO_TIME = NUMERIC | {"binary", "boolean"}
_NO_BYTES = ATOMIC - {"string", "binary"}


def check_arguments(name: str, types: Types) -> str:
    """What the function expected, if it takes no argument of the type; else empty."""
    first = types[0] if types else UNKNOWN
    if name in NEEDS_NUMBER and first.kind in _NO_NUMBER:
        return "a number"
    place = NEEDS_TIME.get(name)
    if place is not None and place < len(types) and types[place].kind in _NO_TIME:
        return "a date or a timestamp"
    return "text or bytes" if name in NEEDS_BYTES and first.kind in _NO_BYTES else ""


def call_type(name: str, types: Types) -> SqlType:
    """The type of a call without lambdas."""
    fixed = FIXED.get(name)
    if fixed is not None:
        return fixed
    rule = _RULES.get(name)
    if rule is None or not types:
        return UNKNOWN
    try:
        return rule(types)
    except TypeMismatchError:
        return UNKNOWN


def _sum(types: Types) -> SqlType:
    kind = types[0]
    if kind in INTEGRAL:
        return BIGINT
    if kind.kind == "decimal":
        return decimal(kind.digits[0] + 10, kind.digits[1])
    return DOUBLE if kind in (DOUBLE, FLOAT) else UNKNOWN


def _mean(types: Types) -> SqlType:
    kind = types[0]
    if kind.kind == "decimal":
        return decimal(kind.digits[0] + 4, kind.digits[1] + 4)
    return DOUBLE if kind.kind in NUMERIC else UNKNOWN


def _first(types: Types) -> SqlType:
    return types[0]


def _number(types: Types) -> SqlType:
    return types[0] if types[0].kind in NUMERIC else UNKNOWN


def _plain_number(types: Types) -> SqlType:
    return types[0] if types[0].kind in NUMERIC - {"decimal"} else UNKNOWN


def _rounded_up(types: Types) -> SqlType:
    kind = types[0]
    if len(types) > 1:
        return UNKNOWN
    if kind.kind == "decimal":
        precision, scale = kind.digits
        return decimal(precision - scale + 1, 0) if scale else kind
    return BIGINT if kind.kind in NUMERIC else UNKNOWN


def _array(types: Types) -> SqlType:
    item = common(types)
    return array(item) if item.is_known else UNKNOWN


def _collected(types: Types) -> SqlType:
    return array(types[0]) if types[0].is_known else UNKNOWN


def _whole_array(types: Types) -> SqlType:
    return types[0] if types[0].kind == "array" and all(kind == types[0] for kind in types) else UNKNOWN


def _same_array(types: Types) -> SqlType:
    return types[0] if types[0].kind == "array" else UNKNOWN


def _item(types: Types) -> SqlType:
    kind = types[0]
    return kind.items[-1] if kind.kind in ("array", "map") else UNKNOWN


def _flat(types: Types) -> SqlType:
    return types[0].items[0] if types[0].kind == "array" and types[0].items[0].kind == "array" else UNKNOWN


def _of_map(place: int) -> Rule:
    return lambda types: array(types[0].items[place]) if types[0].kind == "map" else UNKNOWN


def _map(types: Types) -> SqlType:
    key, value = common(types[::2]), common(types[1::2])
    return SqlType("map", items=(key, value)) if key.is_known and value.is_known else UNKNOWN


def _best(types: Types) -> SqlType:
    return types[0] if len(types) == 2 else _collected(types)


def _text(types: Types) -> SqlType:
    """Of bytes, these make bytes."""
    return STRING if types[0].kind in ATOMIC - {"binary"} else UNKNOWN


def _concatenated(types: Types) -> SqlType:
    joined = types[0] if types[0].kind in ("binary", "array") else _text(types)
    for kind in types[1:]:
        joined = join_texts(joined, kind)
    return joined


def _operation(sign: str) -> Rule:
    return lambda types: arithmetic(sign, types[0], types[1]) if len(types) == 2 else UNKNOWN


def _of_time(result: SqlType) -> Rule:
    """Of one kind of time; there are others that make others."""
    return lambda types: result if any(kind in (DATE, TIMESTAMP, STRING) for kind in types) else UNKNOWN


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("sum", "try_sum"), _sum),
    **dict.fromkeys(("avg", "mean", "try_avg"), _mean),
    **dict.fromkeys(_words("any_value first first_value last last_value lag lead max min nth_value nullif"), _first),
    "mode": _first,
    **dict.fromkeys(("abs", "negative", "positive", "bit_and", "bit_or", "bit_xor"), _number),
    **dict.fromkeys(("round", "bround"), _plain_number),
    **dict.fromkeys(("ceil", "ceiling", "floor"), _rounded_up),
    **dict.fromkeys(("median",), lambda types: DOUBLE if types[0].kind in NUMERIC else UNKNOWN),
    **dict.fromkeys(("array_agg", "collect_list", "collect_set"), _collected),
    **dict.fromkeys(("coalesce", "ifnull", "nvl"), common),
    "nvl2": lambda types: common(types[1:]),
    "if": lambda types: common(types[1:]),
    "array": _array,
    "array_repeat": _collected,
    **dict.fromkeys(("array_compact", "array_distinct", "slice", "sort_array", "filter"), _same_array),
    **dict.fromkeys(("array_except", "array_intersect", "array_union"), _whole_array),
    **dict.fromkeys(("array_max", "array_min", "element_at", "get", "try_element_at"), _item),
    "flatten": _flat,
    "map": _map,
    "map_keys": _of_map(0),
    "map_values": _of_map(1),
    **dict.fromkeys(("max_by", "min_by"), _best),
    **dict.fromkeys(("left", "lpad", "right", "rpad", "substr", "substring", "reverse"), _text),
    "concat": _concatenated,
    **dict.fromkeys(("listagg", "string_agg"), lambda types: _text(types[:1])),
    "try_add": _operation("+"),
    "try_subtract": _operation("-"),
    "try_multiply": _operation("*"),
    "try_divide": _operation("/"),
    **dict.fromkeys(("mod", "try_mod"), _operation("%")),
    **dict.fromkeys(("div",), _operation("DIV")),
    **dict.fromkeys(("date_trunc", "to_timestamp", "try_to_timestamp"), _of_time(TIMESTAMP)),
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), _of_time(TIMESTAMP)),
    **dict.fromkeys(("date_add", "dateadd"), lambda types: DATE if len(types) == 2 else UNKNOWN),
    **dict.fromkeys(("date_diff", "datediff"), lambda types: INT if len(types) == 2 else BIGINT),
    "percentile_approx": lambda types: _number(types) if types[1].kind in NUMERIC else UNKNOWN,
    "approx_percentile": lambda types: _number(types) if types[1].kind in NUMERIC else UNKNOWN,
    "shiftleft": lambda types: types[0] if types[0] in (INT, BIGINT) else UNKNOWN,
    "shiftright": lambda types: types[0] if types[0] in (INT, BIGINT) else UNKNOWN,
    "sequence": lambda types: array(types[0]) if types[0] in INTEGRAL and {*types} == {types[0]} else UNKNOWN,
}


def generated(name: str, types: Types) -> tuple[tuple[str, SqlType], ...] | None:
    """The columns of a generator of rows, as Spark names them; None: unknown."""
    kind = types[0] if types else UNKNOWN
    name = name.removesuffix("_outer")
    place = (("pos", INT),) if name == "posexplode" else ()
    if name in ("explode", "posexplode") and kind.kind == "array":
        return (*place, ("col", kind.items[0]))
    if name in ("explode", "posexplode") and kind.kind == "map":
        return (*place, ("key", kind.items[0]), ("value", kind.items[1]))
    if name == "inline" and kind.kind == "array" and kind.items[0].kind == "struct":
        return tuple(zip(kind.items[0].names, kind.items[0].items, strict=True))
    return None
