"""Makes the recorded chain of examples/token_flows: drives a real node through days of lifelike traffic."""
