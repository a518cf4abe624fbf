# shellcheck shell=bash
# Load modules into this shell, and put a virtual environment on top of them; sourced by enter.sh and rc.bash:
#   . venv.sh FOLDER MODULES_COMMAND MODULEPATH LOAD... -- MODULE...
# FOLDER is that of the virtual environment, the rest is for load.sh, and so is the way in which it ends.

envkit_venv=$1
# shellcheck source=envkit/environments/shell/load.sh
. "${BASH_SOURCE[0]%/*}/load.sh" "${@:2}"
export VIRTUAL_ENV=$envkit_venv PATH=$envkit_venv/bin:$PATH
unset PYTHONHOME envkit_venv
