"""The package of examples/operator_template, installed by pip into a directory of its own."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.real_stack import ROOT

TEMPLATE = ROOT / "examples/operator_template"


def install_template(directory: Path) -> Path:
    """Builds and installs it without the network; returns the directory to import it from."""
    source, target = directory / "template", directory / "site"
    shutil.copytree(TEMPLATE, source, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, *options, str(source)], check=True, capture_output=True)
    return target
