"""The encoder and the reader of rows."""
