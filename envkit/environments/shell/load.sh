# shellcheck shell=bash
# Load modules into this shell; sourced by enter.sh and rc.bash:
#   . load.sh MODULES_COMMAND MODULEPATH LOAD... -- MODULE...
# MODULES_COMMAND is Lmod's lmod or Environment Modules' modulecmd.tcl. Modules that are loaded already are
# unloaded. LOAD are site modules, found on the caller's own MODULEPATH and loaded first; MODULE are found
# in the folder MODULEPATH, by their full names.
# Ends the shell with status 92 when a module cannot be loaded, be it the module's fault or the modules tool's.

# shellcheck source=envkit/environments/shell/modules_tool.sh
. "${BASH_SOURCE[0]%/*}/modules_tool.sh"
envkit_tool=$1 envkit_modulepath=$2 envkit_manpath=${MANPATH-}
shift 2

# A module that is sticky, or whose file has gone, stays; the tool says so, and that is no failure. It is asked again to
# be heard when it fails.
if [ -n "${LOADEDMODULES-}" ] && ! envkit_module "$envkit_tool" purge 2>/dev/null; then
    if [ "$envkit_status" -ne 0 ] || [ -z "$envkit_told" ]; then
        envkit_module "$envkit_tool" purge || envkit_give_up 'the modules that are loaded could not be unloaded.' \
            "$envkit_tool" "Unload them yourself ('module purge'), or start a new shell, and run this again."
    fi
fi
envkit_kind=part envkit_fix="See what there is with 'module avail', and name it as it is listed."
for envkit_word; do
    if [ "$envkit_word" = -- ]; then
        export MODULEPATH=$envkit_modulepath${MODULEPATH:+:$MODULEPATH}
        envkit_kind=full
        envkit_fix="If a file of it has gone, 'envkit repair' with the environment's name brings it back. If \
'$envkit_tool bash list' fails, too, it is the tool that is broken."
    elif ! envkit_load "$envkit_tool" "$envkit_word" "$envkit_kind"; then
        if ! envkit_is_table_whole; then
            envkit_reason="$envkit_reason; _ModuleTable001_, in which it keeps what this shell has loaded, is damaged"
            envkit_fix="'unset \${!_ModuleTable@}', or start a new shell."
        fi
        envkit_give_up "the module $envkit_word could not be loaded." "$envkit_tool" "$envkit_fix"
    fi
done
# Without an empty entry man would know the pages of the modules alone, where it knew those of the system before.
if [ -z "$envkit_manpath" ] && [ -n "${MANPATH-}" ]; then
    case $MANPATH in
    :* | *: | *::*) ;;
    *) MANPATH=$MANPATH: ;;
    esac
fi
unset envkit_tool envkit_modulepath envkit_manpath envkit_word envkit_kind envkit_fix
envkit_forget
