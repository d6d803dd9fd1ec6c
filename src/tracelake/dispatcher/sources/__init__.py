"""Sources that only emit, at work: each takes what came from outside and routes it in the same transaction."""
