"""Rows of buffered datasets: the one strict reader, for whoever publishes batches and for whoever merges them."""
