"""Tests of `trace udf test`: its command, and the parts of the platform that it has in its own process."""
