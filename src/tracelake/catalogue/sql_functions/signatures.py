"""Every function that a query may call, with the kind of each argument and how large its result is.

A line is `name(kind, kind?, ...) result`. `?`: the argument may be left out; `...` repeats the last kind, `...2` the
last two. A function with two forms has two lines. Kinds are in `kinds`. The result says how large a value comes out,
for `sql_cost`: `one` (a number, a date), `most` (as large as its largest argument), `sum` (as all of them together),
`x2`, `x6` (that often the sum), `product` (of all of them), `joined` (the first, with the others between its parts),
`made` (as large as the number it is given), `rows` (all rows of a group). A group has a result for lines without one.
"""

import re
from dataclasses import dataclass

from tracelake.catalogue.sql_functions.kinds import KINDS, ArgumentKind

_AGGREGATES = """
any(value)
any_value(value, flag?) most
approx_count_distinct(value, error?)
approx_percentile(value, share, accuracy?)
array_agg(value) rows
avg(value)
bit_and(value)
bit_or(value)
bit_xor(value)
bool_and(value)
bool_or(value)
collect_list(value) rows
collect_set(value) rows
corr(value, value)
count(value?, ...)
count_if(value)
count_min_sketch(value, epsilon, confidence, seed)
covar_pop(value, value)
covar_samp(value, value)
every(value)
first(value, flag?) most
first_value(value, flag?) most
grouping(value)
grouping_id(value?, ...)
histogram_numeric(value, bins)
kurtosis(value)
last(value, flag?) most
last_value(value, flag?) most
listagg(value, delimiter?) rows
max(value) most
max_by(value, value, top?) most
mean(value)
median(value)
min(value) most
min_by(value, value, top?) most
mode(value?, flag?) most
percentile(value, share, value?)
percentile_approx(value, share, accuracy?)
percentile_cont(share)
percentile_disc(share)
regr_avgx(value, value)
regr_avgy(value, value)
regr_count(value, value)
regr_intercept(value, value)
regr_r2(value, value)
regr_slope(value, value)
regr_sxx(value, value)
regr_sxy(value, value)
regr_syy(value, value)
skewness(value)
some(value)
std(value)
stddev(value)
stddev_pop(value)
stddev_samp(value)
string_agg(value, delimiter?) rows
sum(value)
try_avg(value)
try_sum(value)
var_pop(value)
var_samp(value)
variance(value)
"""

_WINDOWS = """
cume_dist()
dense_rank(value?, ...)
lag(value, offset?, value?) most
lead(value, offset?, value?) most
nth_value(value, rank, flag?) most
ntile(rank)
percent_rank(value?, ...)
rank(value?, ...)
row_number()
"""

_CONDITIONS = """
coalesce(value, ...) most
equal_null(value, value)
greatest(value, ...) most
if(value, value, value) most
ifnull(value, value) most
isnan(value)
isnotnull(value)
isnull(value)
least(value, ...) most
nanvl(value, value)
nullif(value, value) most
nullifzero(value)
nvl(value, value) most
nvl2(value, value, value) most
zeroifnull(value)
"""

_NUMBERS = """
abs(value)
acos(value)
acosh(value)
asin(value)
asinh(value)
atan(value)
atan2(value, value)
atanh(value)
bin(value)
bit_count(value)
bit_get(value, value)
bround(value, scale?)
cbrt(value)
ceil(value, scale?)
ceiling(value, scale?)
conv(value, value, value)
cos(value)
cosh(value)
cot(value)
csc(value)
degrees(value)
div(value, value)
e()
exp(value)
expm1(value)
factorial(value)
floor(value, scale?)
getbit(value, value)
hex(value) x2
hypot(value, value)
ln(value)
log(value, value?)
log10(value)
log1p(value)
log2(value)
mod(value, value)
negative(value)
pi()
pmod(value, value)
positive(value)
pow(value, value)
power(value, value)
radians(value)
rint(value)
round(value, scale?)
sec(value)
shiftleft(value, value)
shiftright(value, value)
shiftrightunsigned(value, value)
sign(value)
signum(value)
sin(value)
sinh(value)
sqrt(value)
tan(value)
tanh(value)
try_add(value, value)
try_divide(value, value)
try_mod(value, value)
try_multiply(value, value)
try_subtract(value, value)
unhex(value) most
width_bucket(value, value, value, value)
"""

_TEXT = """
ascii(value) one
base64(value) x2
bit_length(value) one
btrim(value, value?) most
char_length(value) one
character_length(value) one
chr(value) one
concat(value?, ...) sum
concat_ws(value, value?, ...) joined
contains(value, value) one
crc32(value) one
decode(value, charset) sum
decode(value, value, value, value?, ...) most
elt(value, value, ...) most
encode(value, charset) x6
endswith(value, value) one
find_in_set(value, value) one
format_number(value, decimals) one
format_string(printf, value?, ...) x6
initcap(value) most
instr(value, value, value?, value?) one
is_valid_utf8(value) one
lcase(value) most
left(value, value) most
len(value) one
length(value) one
levenshtein(value, value, value?) one
locate(value, value, value?) one
lower(value) most
lpad(value, size, value?) made
ltrim(value, value?) most
make_valid_utf8(value) x6
mask(value, value?, value?, value?, value?) x6
md5(value) one
octet_length(value) one
overlay(value, value, value, value?) sum
position(value, value, value?) one
printf(printf, value?, ...) x6
quote(value) x2
regexp_count(value, pattern) one
regexp_extract(value, pattern, group?) most
regexp_extract_all(value, pattern, group?) sum
regexp_instr(value, pattern, group?) one
regexp_like(value, pattern) one
regexp_replace(value, pattern, replacement, rank?) joined
regexp_substr(value, pattern) most
repeat(value, size) product
replace(value, value, value?) joined
reverse(value) most
right(value, value) most
rpad(value, size, value?) made
rtrim(value, value?) most
sha(value) one
sha1(value) one
sha2(value, value) one
soundex(value) one
space(size) made
split(value, pattern, limit?) sum
split_part(value, value, value) most
startswith(value, value) one
string(value) x2
substr(value, value, value?) most
substring(value, value, value?) most
substring_index(value, value, value) most
to_binary(value, binary_format?) most
to_char(value, char_format) x2
to_number(value, number_format) one
to_varchar(value, char_format) x2
translate(value, value, value) x6
trim(value, value?) most
try_to_binary(value, binary_format?) most
try_to_number(value, number_format) one
try_validate_utf8(value) most
ucase(value) most
unbase64(value) most
upper(value) most
url_decode(value) most
url_encode(value) x6
xxhash64(value, ...) one
"""

_DATES = """
add_months(value, value)
convert_timezone(zone, value)
convert_timezone(zone, zone, value)
date(value)
date_add(value, value)
date_add(unit, value, value)
date_diff(value, value)
date_diff(unit, value, value)
date_format(value, datetime)
date_from_unix_date(value)
date_part(part, value)
date_sub(value, value)
date_trunc(truncation, value)
dateadd(value, value)
dateadd(unit, value, value)
datediff(value, value)
datediff(unit, value, value)
datepart(part, value)
day(value)
dayname(value)
dayofmonth(value)
dayofweek(value)
dayofyear(value)
extract(part, value)
from_unixtime(value, datetime?)
from_utc_timestamp(value, zone)
hour(value)
last_day(value)
make_date(value, value, value)
make_dt_interval(value?, value?, value?, value?)
make_interval(value?, value?, value?, value?, value?, value?, value?)
make_timestamp(value, value?)
make_timestamp(value, value, zone)
make_timestamp(value, value, value, value, value, value, zone?)
make_timestamp_ltz(value, value, zone?)
make_timestamp_ltz(value, value, value, value, value, value, zone?)
make_timestamp_ntz(value, value)
make_timestamp_ntz(value, value, value, value, value, value)
make_ym_interval(value?, value?)
minute(value)
month(value)
monthname(value)
months_between(value, value, flag?)
next_day(value, weekday)
quarter(value)
second(value)
timestamp(value)
timestamp_micros(value)
timestamp_millis(value)
timestamp_seconds(value)
timestampadd(unit, value, value)
timestampdiff(unit, value, value)
to_date(value, datetime?)
to_timestamp(value, datetime?)
to_timestamp_ltz(value, datetime?)
to_timestamp_ntz(value, datetime?)
to_unix_timestamp(value, datetime?)
to_utc_timestamp(value, zone)
trunc(value, truncation)
try_make_timestamp(value, value?)
try_make_timestamp(value, value, zone)
try_make_timestamp(value, value, value, value, value, value, zone?)
try_to_date(value, datetime?)
try_to_timestamp(value, datetime?)
unix_date(value)
unix_micros(value)
unix_millis(value)
unix_seconds(value)
weekday(value)
weekofyear(value)
year(value)
"""

_COLLECTIONS = """
aggregate(value, value, lambda, lambda?)
array(value?, ...)
array_append(value, value)
array_compact(value)
array_contains(value, value) one
array_distinct(value)
array_except(value, value)
array_insert(value, position, value)
array_intersect(value, value)
array_join(value, value, value?) joined
array_max(value) most
array_min(value) most
array_position(value, value) one
array_prepend(value, value)
array_remove(value, value) most
array_repeat(value, size) product
array_size(value) one
array_sort(value, lambda?)
array_union(value, value)
arrays_overlap(value, value) one
arrays_zip(value, ...)
cardinality(value) one
element_at(value, value) most
exists(value, lambda) one
filter(value, lambda)
flatten(value)
forall(value, lambda) one
get(value, value) most
map(value?, ...)
map_concat(value?, ...)
map_contains_key(value, value) one
map_entries(value)
map_filter(value, lambda)
map_from_arrays(value, value)
map_from_entries(value)
map_keys(value)
map_values(value)
map_zip_with(value, value, lambda)
named_struct(field, value, ...2)
reduce(value, value, lambda, lambda?)
sequence(value, end, value?) made
size(value) one
slice(value, value, value)
sort_array(value, flag?)
str_to_map(value, pattern?, pattern?) x2
struct(value?, ...)
transform(value, lambda)
transform_keys(value, lambda)
transform_values(value, lambda)
try_element_at(value, value) most
zip_with(value, value, lambda)
"""

_JSON = """
from_json(value, schema, options?) x2
get_json_object(value, json_path) x2
json_array_length(value) one
json_object_keys(value)
parse_json(value)
schema_of_json(json, options?)
to_json(value, options?) x6
try_parse_json(value)
try_variant_get(value, variant_path, type?)
variant_get(value, variant_path, type?)
"""

_TYPES = """
bigint(value)
binary(value) most
boolean(value)
decimal(value)
double(value)
float(value)
hash(value, ...)
int(value)
smallint(value)
tinyint(value)
typeof(value)
"""

_GENERATORS = """
explode(value)
explode_outer(value)
inline(value)
inline_outer(value)
posexplode(value)
posexplode_outer(value)
stack(rows, value, ...)
"""

_GROUPS = {
    "Aggregates": ("one", _AGGREGATES),
    "Windows": ("one", _WINDOWS),
    "Conditions": ("one", _CONDITIONS),
    "Numbers": ("one", _NUMBERS),
    "Text and bytes": ("sum", _TEXT),
    "Dates and times": ("one", _DATES),
    "Arrays, maps and structs": ("sum", _COLLECTIONS),
    "JSON": ("sum", _JSON),
    "Types and hashes": ("one", _TYPES),
    "Generators": ("sum", _GENERATORS),
}
_LINE = re.compile(r"(?P<name>\w+)\((?P<kinds>[^)]*)\)(?: (?P<result>\w+))?")


@dataclass(frozen=True, slots=True)
class Signature:
    """One form of a function."""

    name: str
    kinds: tuple[ArgumentKind, ...]
    least: int
    """So many arguments have to be there."""
    repeated: int
    """So many of the last kinds repeat."""
    result: str

    def kinds_of(self, count: int) -> tuple[ArgumentKind, ...] | None:
        """The kind of each of so many arguments; None: it has another number of them."""
        if count < self.least:
            return None
        if count <= len(self.kinds):
            return self.kinds[:count]
        more = count - len(self.kinds)
        if not self.repeated or more % self.repeated:
            return None
        return self.kinds + self.kinds[-self.repeated :] * (more // self.repeated)

    def __str__(self) -> str:
        parts = [kind.name + ("?" if index >= self.least else "") for index, kind in enumerate(self.kinds)]
        return f"{self.name}({', '.join(parts + ['...'] * bool(self.repeated))})"


def _read(line: str, default: str) -> Signature:
    match = _LINE.fullmatch(line)
    assert match is not None, line
    words = [word.strip() for word in match["kinds"].split(",") if word.strip()]
    repeated = 0
    if words and words[-1].startswith("..."):
        repeated = int(words.pop().removeprefix("...") or 1)
    least = sum(not word.endswith("?") for word in words)
    kinds = tuple(KINDS[word.removesuffix("?")] for word in words)
    return Signature(match["name"], kinds, least, repeated, match["result"] or default)


GROUPS: dict[str, tuple[Signature, ...]] = {
    group: tuple(_read(line, default) for line in lines.strip().split("\n"))
    for group, (default, lines) in _GROUPS.items()
}
SIGNATURES: dict[str, tuple[Signature, ...]] = {}
for _signature in (item for items in GROUPS.values() for item in items):
    SIGNATURES[_signature.name] = (*SIGNATURES.get(_signature.name, ()), _signature)
AGGREGATES: frozenset[str] = frozenset(item.name for item in GROUPS["Aggregates"])
GENERATORS: frozenset[str] = frozenset(item.name for item in GROUPS["Generators"])
