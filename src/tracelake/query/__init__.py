"""The Query Service: SQL over exactly the relations that a caller may read."""
