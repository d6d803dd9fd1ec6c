"""Running a Spark operator without a stack, as tests do it: `tracelake.spark.testing`."""

from tracelake.spark.testing import BUCKET, DirectoryTransfer, plain_name
from tracelake.spark.testing import Trial as Bench

__all__ = ["BUCKET", "Bench", "DirectoryTransfer", "plain_name"]
