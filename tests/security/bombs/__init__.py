"""The corpus of queries made to hurt, from `bombs.yaml`."""

from pathlib import Path
from typing import Any

import yaml

BOMBS: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("bombs.yaml").read_text())
INPUTS = frozenset({"t", "u"})
