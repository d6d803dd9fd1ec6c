"""Contract ABI decoding: `values` row by row, `words` for many at once, `logs` and `tokens` for batches of logs."""
