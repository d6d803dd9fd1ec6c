"""Programs for people who work on Trace; nothing here is installed."""
