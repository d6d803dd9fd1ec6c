"""What can be wrong with a document: the stable codes, and the list that reading fills.

Reading goes on after a problem, so that a person sees all of them at once. The list is bounded, and so is the work
for suggestions: a hostile text must not cost more than an honest one.
"""

from collections.abc import Iterable

from tracelake.model.dag import Problem

MAX_PROBLEMS = 1000
MAX_WORK = 500_000
SHOWN = 80
"""How much of a text from the document a message repeats."""

CODES = {
    "always_on_runtime": "An `always_on` source needs a runtime with workers; the others end their tasks soon.",
    "append_without_merge": "`update_strategy: append` needs outputs that are published as buffered datasets.",
    "append_without_unique_key": "`update_strategy: append` needs `unique_key`, or a retry would add rows twice.",
    "buffered_needs_unique": "A buffered dataset needs a `schema` with `unique`: rows are merged on that key.",
    "buffered_storage": "`write_mode: buffered` exists for `storage: postgres` alone.",
    "config_invalid": "The operator does not take this `config`.",
    "cycle": "Jobs feed each other in a circle.",
    "dataset_name_taken": "There is another dataset of that name; the deploy says so when it takes the name.",
    "dataset_owned": "The dataset belongs to another DAG, or to jobs that no DAG made.",
    "dataset_storage": "The dataset exists with another kind of storage.",
    "dispatcher_runtime": "`runtime: dispatcher` is for platform control operators alone.",
    "dispatcher_secrets": "Jobs that the Dispatcher runs itself get no secrets.",
    "document_too_large": "The text is larger than 1 MiB.",
    "duplicate_input": "The same source with the same `where` is there twice.",
    "duplicate_item": "A list names the same thing twice.",
    "duplicate_job": "Two jobs have the same name.",
    "duplicate_key": "A map has the same key twice.",
    "duplicate_publish": "The same output is published twice.",
    "duplicate_webhook_path": "Two sources have the same `webhook_path`.",
    "invalid_value": "The text does not have the form that the field needs.",
    "key_not_text": "A key is a number, a boolean, null, a list or a map.",
    "missing_column": "The query does not give a column that is never null.",
    "missing_field": "A field that must be there is not.",
    "name_invalid": "A name is not lower-case letters, digits and _, beginning with a letter, at most 128 characters.",
    "nothing_runs": "A cron, webhook or manual source only emits events: nothing runs that uses or writes this.",
    "operator_runtime": "The operator does not run on this runtime.",
    "operator_storage": "The operator cannot read or write a dataset that is kept in this way.",
    "out_of_range": "A number, a length or a count is outside of its limits.",
    "partition_without_inputs": "`PerPartition` waits for the units of its inputs, and there are none.",
    "reactive_without_inputs": "A reactive job needs at least one input.",
    "reserved_column": "A buffered dataset has columns of its own by that name.",
    "schedule_invalid": "The schedule is not five cron fields, or six with seconds, or it never comes due.",
    "several_sources": "Only a buffered dataset may have several writers.",
    "source_field": "This kind of source does not have this field.",
    "source_with_inputs": "A source has no inputs.",
    "table_change": "The table of a buffered dataset cannot become what the schema says.",
    "text_invalid": "The text is not UTF-8, or has a character that cannot be stored.",
    "timeout_too_long": "The runtime does not let a task run for so long.",
    "too_many_problems": f"There are more than {MAX_PROBLEMS} problems; the rest is not shown.",
    "udf_entrypoint": "The function's language needs an `entrypoint`.",
    "udf_missing": "`operator: udf` needs a `udf` block.",
    "udf_runtime": "User functions run on `runtime: lambda` alone.",
    "udf_secrets": "User functions get no secrets.",
    "udf_unexpected": "A `udf` block belongs to `operator: udf`.",
    "unexpected_source": "A reactive job has no `source`.",
    "unique_key_mismatch": "`unique_key` and `schema.unique` of a published output name different columns.",
    "unique_nullable": "A column of `unique` cannot be null.",
    "unknown_column": "The schema has no such column.",
    "unknown_dataset": "There is no such dataset.",
    "unknown_field": "There is no such field.",
    "unknown_job": "The DAG has no such job.",
    "unknown_operator": "There is no such operator.",
    "unknown_output": "The job does not have so many outputs.",
    "unknown_runtime": "There is no such runtime.",
    "unknown_time_zone": "There is no time zone of that name.",
    "unknown_value": "The field takes one of a few words, and this is none of them.",
    "value_ambiguous": "Versions of YAML disagree about what this means; quote it, or spell it plainly.",
    "webhook_path_invalid": "The path is not lower-case words joined by slashes.",
    "webhook_path_taken": "The path belongs to another job of the org; the deploy says so when it takes the path.",
    "where_invalid": "The condition is not `field = literal` or `field IN (literals)`, joined by AND.",
    "where_type": "The column cannot be equal to this value.",
    "where_unknown_field": "The dataset has no such column.",
    "wrong_type": "The field takes another type of value.",
    "yaml_alias": "An alias refers to nothing, or to something that contains it.",
    "yaml_documents": "The text holds more than one document, or none.",
    "yaml_merge_key": "Merge keys (`<<`) are not supported.",
    "yaml_syntax": "The text is not YAML.",
    "yaml_tag": "Tags (`!!str`, `!thing`) are not supported.",
    "yaml_too_deep": "Lists and maps are nested too deeply.",
    "yaml_too_many_values": "The document has too many values, counting those that aliases repeat.",
}
"""What each code means. A code is stable: one may be added, none changes its meaning."""


class DagInvalidError(Exception):
    """A document that cannot be deployed, with everything that is wrong with it."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"line {first.line}, column {first.column}: {first.message}{more}")


class ProblemList:
    """Problems in the order in which they are found; `sorted` is what people see."""

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
        """`Did you mean x?`, or nothing when no known word is near."""
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
    """A text of the document as a message may repeat it: short, and in one line."""
    short = text if len(text) <= SHOWN else text[:SHOWN] + "..."
    return "`" + "".join(character if character.isprintable() else "?" for character in short) + "`"


def one_of(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _folded(word: str) -> str:
    return word[:128].casefold().replace("_", "").replace("-", "").replace(" ", "")


def _distance(left: str, right: str, limit: int) -> tuple[int, int]:
    """How many edits (a swap of neighbours is one) turn one word into the other, up to `limit`; and what it cost."""
    shorter = min(len(left), len(right))
    start = next((index for index in range(shorter) if left[index] != right[index]), shorter)
    left, right = left[start:], right[start:]
    beyond = len(right) + limit
    before: list[int] = []
    previous = list(range(len(right) + 1))
    for row, letter in enumerate(left, 1):
        current = [row] + [beyond] * len(right)
        # Further from the diagonal than `limit`, there are more edits than that.
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
