"""How Sphinx builds the documentation: python -m sphinx -W --keep-going docs build/docs."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

from envkit import __version__

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import reference

project = "envkit"
author = "The authors of envkit"
release = __version__
extensions = ["myst_parser"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "envkit"
html_show_copyright = False
nitpicky = True
suppress_warnings = ["misc.highlighting_failure"]  # a command and what it prints


def setup(app: Sphinx) -> None:
    """Write the reference from the code, then build."""
    reference.write(Path(app.srcdir) / "reference")
