"""The configuration: settings, the home of a stack, runtimes, and the config objects of the parts."""

from tracelake.settings.declarations import Settings
from tracelake.settings.loading import CHILD_VARIABLE, SECRET_PREFIX, SettingsError
from tracelake.settings.reference import reference_markdown

__all__ = ["CHILD_VARIABLE", "SECRET_PREFIX", "Settings", "SettingsError", "reference_markdown"]
