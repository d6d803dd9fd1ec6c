"""Following the head of a chain: what is stored, what the nodes say, and the next write that makes both agree."""
