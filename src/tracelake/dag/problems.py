"""The problems of a document: their stable codes, and the list that the reader fills.

Reading continues after a problem, so that all of them are reported at once. The list is bounded, and so is the work for
suggestions, so that a hostile text costs no more than an honest one.
"""

from collections.abc import Iterable

from tracelake.model.dag import Problem

MAX_PROBLEMS = 1000
MAX_WORK = 500_000
SHOWN = 80
"""The most characters of the document that a message quotes."""

CODES = {
    "always_on_runtime": "An `always_on` source needs a runtime with workers.",
    "ambiguous_column": "A name in the query is a column of several relations.",
    "append_without_merge": "`update_strategy: append` needs outputs that are published as buffered datasets.",
    "append_without_unique_key": "`update_strategy: append` needs `unique_key`: a retry must not duplicate rows.",
    "buffered_needs_unique": "A buffered dataset needs a `schema` with `unique`: rows are merged on that key.",
    "buffered_storage": "`write_mode: buffered` needs `storage: postgres`.",
    "by_type": "`by` names a column that is no time, no date and no whole number.",
    "check_kind": "A check has exactly one kind, and no field of another kind.",
    "check_operator": "Rows of this output cannot be checked when they are written.",
    "check_sql": "The query of a check is not one SELECT over `output`.",
    "check_type": "The column of a check has a type, or a value, that the check cannot compare.",
    "column_type": "The type of a column of the result does not fit the dataset.",
    "config_invalid": "The operator does not accept this `config`.",
    "cycle": "The inputs of jobs form a cycle.",
    "dataset_name_taken": "Another dataset has this name; reported by the deploy, not by validation.",
    "dataset_owned": "The dataset belongs to another DAG, or to jobs outside of any DAG.",
    "dataset_storage": "The dataset already exists with a different storage.",
    "delivery_input": "The operator reads deliveries: its input is a webhook source with `unit: delivery`.",
    "dispatcher_runtime": "`runtime: dispatcher` is only for control operators.",
    "dispatcher_secrets": "Jobs on `runtime: dispatcher` receive no secrets.",
    "document_too_large": "The text is larger than 1 MiB.",
    "duplicate_check": "Two checks of one output have the same name.",
    "duplicate_column": "The result of a query has two columns of one name.",
    "duplicate_input": "Two inputs have the same `from` and the same `where`.",
    "duplicate_item": "A list contains the same item twice.",
    "duplicate_job": "Two jobs have the same name.",
    "duplicate_key": "A map has the same key twice.",
    "duplicate_publish": "The same output is published twice.",
    "duplicate_webhook_path": "Two sources have the same `webhook_path`.",
    "input_field": "This input does not have this field.",
    "inputs_one_by_one": "Each task has one input of the job, and its operator needs all of them.",
    "invalid_value": "The text does not have the form that the field requires.",
    "key_not_text": "A key is a number, a boolean, null, a list or a map.",
    "missing_column": "The query does not return a column that must not be null.",
    "missing_field": "A required field is missing.",
    "name_invalid": "A name must have 1 to 128 lower-case letters, digits or _, and begin with a letter.",
    "nothing_runs": "A cron, webhook or manual source runs no task that could use or write this.",
    "operator_runtime": "The operator does not run on this runtime.",
    "operator_storage": "The operator cannot read or write a dataset with this storage.",
    "out_of_range": "A number, length or count is out of range.",
    "partition_without_inputs": "`PerPartition` needs at least one input.",
    "previous_type": "A column of `self: previous` has another type than the job writes.",
    "reactive_without_inputs": "A reactive job needs at least one input.",
    "read_storage": "The dataset cannot be read in this way: only files have units.",
    "read_unit": "A job with `units` reads windows, not units of its inputs.",
    "reserved_column": "The column name is reserved in buffered datasets.",
    "schedule_invalid": "The schedule does not have five cron fields (or six, with seconds), or never fires.",
    "several_sources": "Only a buffered dataset may have several writers.",
    "source_field": "This kind of source does not have this field.",
    "source_with_inputs": "A source has no inputs.",
    "table_change": "The table of a dataset cannot have the new schema, rule for conflicts, or chain.",
    "text_invalid": "The text is not UTF-8, or contains a character that cannot be stored.",
    "timeout_too_long": "The timeout exceeds the maximum of the runtime.",
    "too_many_problems": f"There are more than {MAX_PROBLEMS} problems; only these are shown.",
    "type_mismatch": "The query applies an operation to types that do not have it.",
    "udf_bundle": "The org has no such bundle that is finalized.",
    "udf_bundle_disabled": "The bundle is disabled: nothing may run it.",
    "udf_entrypoint": "The bundle's language needs an `entrypoint`: the one that the bundle was finalized for.",
    "udf_memory": "The function asks for more memory than the stack allows.",
    "udf_missing": "`operator: udf` needs a `udf` block.",
    "udf_runtime": "User functions run only on `runtime: lambda`.",
    "udf_secrets": "User functions receive no secrets.",
    "udf_unexpected": "A `udf` block needs `operator: udf`.",
    "unexpected_source": "A reactive job has no `source`.",
    "unique_key_mismatch": "`unique_key` and `schema.unique` of a published output name different columns.",
    "unique_nullable": "A column of `unique` cannot be null.",
    "units_field": "These units do not have this field.",
    "units_mismatch": "The units of two inputs can never be the same: blocks and time, or other sizes.",
    "units_of_source": "A source has no `units` of its own.",
    "unknown_column": "The schema, the dataset or what a query reads does not have this column.",
    "unknown_dataset": "The dataset does not exist.",
    "unknown_field": "The field does not exist.",
    "unknown_job": "The DAG does not have this job.",
    "unknown_operator": "The operator does not exist.",
    "unknown_output": "The output index is not below the job's number of outputs.",
    "unknown_runtime": "The runtime does not exist.",
    "unknown_time_zone": "The time zone does not exist.",
    "unknown_value": "The value is not one of those that the field accepts.",
    "value_ambiguous": "YAML versions disagree about this value; quote it, or use the plain spelling.",
    "webhook_path_invalid": "The path must consist of lower-case words joined by slashes.",
    "webhook_path_taken": "Another job of the org has this path; reported by the deploy, not by validation.",
    "where_invalid": "The condition is not `field = literal` or `field IN (literals)`, joined by AND.",
    "where_type": "The value does not match the type of the column.",
    "where_unknown_field": "The dataset does not have this column.",
    "window_operator": "The operator reads one unit at a time.",
    "window_strategy": "A job with windows has no `execution_strategy`.",
    "window_without_units": "Nothing says which units the job computes.",
    "wrong_type": "The value has the wrong type for the field.",
    "yaml_alias": "An alias refers to nothing, or to something that contains it.",
    "yaml_documents": "The text must contain exactly one YAML document.",
    "yaml_merge_key": "Merge keys (`<<`) are not supported.",
    "yaml_syntax": "The text is not valid YAML.",
    "yaml_tag": "Tags (`!!str`, `!thing`) are not supported.",
    "yaml_too_deep": "Lists and maps are nested too deeply.",
    "yaml_too_many_values": "The document has too many values, counting those that aliases repeat.",
}
"""What each code means. A code is stable: one may be added, none changes its meaning."""


class DagInvalidError(Exception):
    """An invalid document, with all of its problems."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"line {first.line}, column {first.column}: {first.message}{more}")


class ProblemList:
    """Problems in the order of discovery; `sorted` returns them in the order of the text."""

    def __init__(self) -> None:
        self._problems: dict[tuple[str, int, int, str], Problem] = {}
        self._work = MAX_WORK

    def __bool__(self) -> bool:
        return bool(self._problems)

    def add(self, code: str, message: str, *, line: int, column: int, path: str, suggestion: str = "") -> None:
        assert code in CODES
        if len(self._problems) == MAX_PROBLEMS:
            code, message, suggestion = "too_many_problems", CODES["too_many_problems"], ""
        elif len(self._problems) > MAX_PROBLEMS:
            return
        problem = Problem(code=code, message=message, line=line, column=column, path=path, suggestion=suggestion)
        self._problems.setdefault((code, line, column, path), problem)

    def sorted(self) -> list[Problem]:
        return sorted(
            self._problems.values(), key=lambda problem: (problem.line, problem.column, problem.path, problem.code)
        )

    def did_you_mean(self, word: str, candidates: Iterable[str]) -> str:
        """`Did you mean x?`, or an empty text if no candidate is similar."""
        folded_word = _folded(word)
        nearest, best = "", max(1, min(3, len(folded_word) // 3)) + 1
        for candidate in candidates:
            if self._work < 0:
                return ""
            folded = _folded(candidate)
            self._work -= 1
            if abs(len(folded) - len(folded_word)) > best:
                continue
            distance, work = _distance(folded_word, folded, best + 1)
            self._work -= work
            if distance < best or (nearest and distance == best and candidate < nearest):
                nearest, best = candidate, distance
        return f"Did you mean `{nearest}`?" if nearest else ""


def shown(text: str) -> str:
    """A text of the document as a message may quote it: short, and in one line."""
    short = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    return "`" + "".join(character if character.isprintable() else "?" for character in short) + "`"


def one_of(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _folded(word: str) -> str:
    return word[:128].casefold().replace("_", "").replace("-", "").replace(" ", "")


def _distance(left: str, right: str, limit: int) -> tuple[int, int]:
    """The edit distance of two words up to `limit` (a swap of neighbours is one edit), and the work it took."""
    shorter = min(len(left), len(right))
    start = next((index for index in range(shorter) if left[index] != right[index]), shorter)
    left, right = left[start:], right[start:]
    beyond = len(right) + limit
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        current = [row] + [beyond] * len(right)
        # Cells further than `limit` from the diagonal have a larger distance.
        for column in range(max(1, row - limit), min(len(right), row + limit) + 1):
            other = right[column - 1]
            cost = min(previous[column] + 1, current[column - 1] + 1, previous[column - 1] + (letter != other))
            if row > 1 and column > 1 and letter == right[column - 2] and left[row - 2] == other:
                cost = min(cost, before[column - 2] + 1)
            current[column] = cost
        if min(current) >= limit:
            return limit, row * (2 * limit + 1)
        before, previous = previous, current
    return min(previous[-1], limit), len(left) * (2 * limit + 1)
