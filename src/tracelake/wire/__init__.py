"""The HTTP contract as types, and nothing else. Unknown fields are errors in every request."""
