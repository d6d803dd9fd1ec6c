"""The Dispatcher's loops. Each is settings plus `run_once() -> counts`; `timer` repeats it and survives its store."""
