"""Capability tokens: what one attempt may read and write, signed. Minting and verifying, nothing else."""
