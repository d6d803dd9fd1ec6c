"""The domain without I/O: states, transitions, identifiers, prefixes."""
