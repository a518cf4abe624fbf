# SPDX-FileCopyrightText: The authors of envkit
# SPDX-License-Identifier: GPL-2.0-or-later
"""Run EasyBuild, installed beside envkit, under another Python: ``python -I run_eb.py SITE_PACKAGES ARGUMENT...``.

EasyBuild makes environments for the interpreter that runs it, so this is the host's own, not envkit's. The
folder goes on ``sys.path`` and not into PYTHONPATH, which every program of a build would inherit.
"""

import sys

sys.path.append(sys.argv.pop(1))
sys.argv[0] = "eb"

from easybuild.main import main_with_hooks  # noqa: E402

main_with_hooks()
