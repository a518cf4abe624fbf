# shellcheck shell=bash
# Load modules into this shell; sourced by enter.sh and rc.bash:
#   . load.sh MODULES_COMMAND MODULEPATH LOAD... -- MODULE...
# MODULES_COMMAND is Lmod's lmod or Environment Modules' modulecmd.tcl. Modules that are loaded already are
# unloaded. LOAD are site modules, found on the caller's own MODULEPATH and loaded first; MODULE are found
# in the folder MODULEPATH.
# Ends the shell with status 92 when a module cannot be loaded.

envkit_modules_command=$1 envkit_modulepath=$2
shift 2

envkit_module() {
    eval "$(LMOD_TERM_WIDTH=${LMOD_TERM_WIDTH-80} "$envkit_modules_command" bash "$@")"
}

if [ -n "${LOADEDMODULES-}" ]; then
    envkit_module purge 2>/dev/null
fi
for envkit_word; do
    if [ "$envkit_word" = -- ]; then
        export MODULEPATH=$envkit_modulepath${MODULEPATH:+:$MODULEPATH}
    elif ! envkit_module load "$envkit_word"; then
        printf 'envkit: the module %s could not be loaded.\n' "$envkit_word" >&2
        exit 92
    fi
done
unset envkit_modules_command envkit_modulepath envkit_word
unset -f envkit_module
