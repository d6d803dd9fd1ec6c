"""Recorded chains: a file of what a node answered, and a server that answers the same again over JSON-RPC."""
