# shellcheck shell=sh disable=SC2154
# The pip of a virtual environment; 'pip install --upgrade pip' puts another in the place of this file.
# A line before this one sets envkit_venv, the folder.
exec "$envkit_venv/bin/python" -I -m pip "$@"
