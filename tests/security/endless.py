"""An operator that hears nothing: it never stops by itself."""

import threading

from tracelake.catalogue.context import OperatorResult
from tracelake.spark.work import SparkWork


def run(work: SparkWork) -> OperatorResult:
    work.context.progress("begun")
    threading.Event().wait()
    return OperatorResult()
