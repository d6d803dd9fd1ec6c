"""Rows of buffered datasets: the encoder of operators, and the strict reader of sinks."""
