"""What a person has configured: settings, the home of a stack, runtimes, RPC endpoints and secrets of jobs."""

from tracelake.settings.declarations import CHILD_VARIABLE, SECRET_PREFIX, Settings, SettingsError, reference_markdown

__all__ = ["CHILD_VARIABLE", "SECRET_PREFIX", "Settings", "SettingsError", "reference_markdown"]
