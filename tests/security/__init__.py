"""What one tenant, or another user of the machine, must not be able to do."""
