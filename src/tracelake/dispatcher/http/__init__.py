"""HTTP: three listeners, one route table, strict bodies, one place where errors become answers."""
