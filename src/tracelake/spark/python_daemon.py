"""Spark's Python processes on one machine: copies of a process that has imported what they need.

Spark starts this in place of its own daemon (`spark.python.daemon.module`), which imports nothing before it copies
itself, so that each copy imports Arrow, pandas and our operators again. It does so because a process with threads
cannot be copied safely: here the environment (`session.py`) keeps these libraries from starting any.
"""

import gc

import pyarrow as pa
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import tracelake.spark.child.transfer
import tracelake.spark.operators.decode_logs
import tracelake.spark.operators.evm_ingest
import tracelake.spark.operators.integrity_check
import tracelake.spark.writer  # noqa: F401

if __name__ == "__main__":
    pa.array([0])  # imports pandas where it is installed, to see whether a value is one of its own
    gc.collect()
    gc.freeze()  # pages that nobody writes stay shared
    manager()
