"""The reference page of the settings, `docs/reference/settings.md`."""

from tracelake.settings.declarations import DECLARED
from tracelake.settings.kinds import SettingKind
from tracelake.settings.loading import variable_of


def reference_markdown() -> str:
    """The settings reference page."""
    lines = [
        "# Settings",
        "",
        "Generated from `tracelake.settings`; do not edit by hand (`make docs`).",
        "",
        "Later wins: the default, `HOME/settings.toml` (`name = value`), the environment variable, the",
        "command line. Unknown names and invalid values are rejected at start.",
        "",
        "| setting | variable | value | default | what it does |",
        "|---|---|---|---|---|",
    ]
    for name, spec in DECLARED.items():
        kind: SettingKind = spec.metadata["kind"]
        default = "" if spec.default is None else f"`{kind.show(spec.default)}`"
        expected = kind.expected.replace("|", "\\|")
        lines.append(f"| `{name}` | `{variable_of(name)}` | {expected} | {default} | {spec.metadata['doc']} |")
    return "\n".join(lines) + "\n"
