"""The outputs of one task as files or batches: where they go, what is sealed, and what the final report says of them.

Shared by the operators on Spark (`SparkWork`) and those that need none.
"""

from collections.abc import Sequence

import pyarrow as pa

from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorContext, OperatorResult
from tracelake.model.prefixes import parse_uri
from tracelake.ports import FileTransfer
from tracelake.spark.writer import Target, Written, WrittenFile, mark_success, write_empty
from tracelake.wire.task_calls import DatasetPublished, OutputReport, StorageRef
from tracelake.wire.units import EventIn, TaskOutput, Unit


class TaskOutputs:
    __slots__ = ()

    context: OperatorContext
    transfer: FileTransfer
    written: dict[int, Written]
    """By output: the files that were sealed."""
    handed_over: dict[int, Written]
    """By output: what went to the sinks."""
    times: tuple[int, int] | None
    """Of the first and the last block of the unit, in seconds since 1970, for operators that know them."""

    @property
    def unit(self) -> Unit:
        """What the task is for. Every input of it has the same one."""
        return self.context.inputs[0].unit

    @property
    def blocks(self) -> tuple[int, int]:
        """First and last block of the unit, both included."""
        start, end = self.unit.blocks
        if start is None or end is None:
            raise NonRetryableError(f"the unit {self.unit.partition_key} is not a range of blocks")
        return start, end

    def output(self, output_index: int = 0) -> TaskOutput:
        return next(item for item in self.context.outputs if item.output_index == output_index)

    def has_output(self, output_index: int) -> bool:
        return any(item.output_index == output_index for item in self.context.outputs)

    def target(self, output_index: int = 0, *, block_column: str | None = "block_number") -> Target:
        """Where files of an output go; for operators whose Spark tasks write by themselves (`PartWriter`)."""
        output = self.output(output_index)
        prefix = output.storage.write_prefix
        if prefix is None:
            raise NonRetryableError(f"output {output_index} is not kept in files")
        return Target(prefix, output.name or "data", self.transfer, block_column)

    def seal_output(self, output_index: int, files: Sequence[WrittenFile], schema: pa.Schema | None) -> Written:
        """Declare these files the output's content, in `_SUCCESS`; without any, write an empty one with this schema."""
        self.stop_if_canceled()
        target = self.target(output_index)
        batch_files = list(files)
        if not batch_files:
            assert schema is not None
            batch_files = [write_empty(target, schema, *self.blocks)]
        mark_success(target, batch_files)
        self.written[output_index] = Written(batch_files)
        return self.written[output_index]

    def stop_if_canceled(self) -> None:
        if self.context.cancel.is_set():
            raise CanceledError

    def result(self) -> OperatorResult:
        """Every output that was written, committed and announced as a range: the unit, or what its cursor passed."""
        result = OperatorResult()
        for index, report in sorted(self.handed_over.items()):
            result.outputs.append(self._report(index, report))
        for index, report in sorted(self.written.items()):
            output = self.output(index)
            assert output.storage.write_prefix is not None
            place = parse_uri(output.storage.write_prefix)
            assert place is not None
            ref = StorageRef(scheme="s3", bucket=place[0], prefix=place[1], glob="*.parquet")
            start, end = self.blocks
            result.outputs.append(self._report(index, report))
            result.datasets_published.append(
                DatasetPublished(
                    dataset_uuid=output.dataset_uuid,
                    dataset_version=output.dataset_version,
                    storage_ref=ref,
                    range_start=start,
                    range_end=end,
                    time_min=None if self.times is None else self.times[0],
                    time_max=None if self.times is None else self.times[1],
                )
            )
            result.events.append(
                EventIn(
                    dataset_uuid=output.dataset_uuid,
                    dataset_version=output.dataset_version,
                    partition_key=f"{start}-{end}",
                    start=start,
                    end=end,
                )
            )
        return result

    def _report(self, index: int, report: Written) -> OutputReport:
        output = self.output(index)
        return OutputReport(
            output_index=index,
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            row_count=report.rows,
            size_bytes=report.size,
            file_count=len(report.files),
        )
