# shellcheck shell=bash
# Enter a release of EESSI in this shell, and see to it that one is there; sourced by enter.sh and rc.bash:
#   . eessi.sh REPOSITORY VERSION CPU PYTHON SESSION MODULEPATH -- MODULE...
# CPU is what archspec calls this machine's; PYTHON is asked for the nearest names of an unknown module. An interactive
# shell leaves the names of its modules in the folder SESSION, if one is given, when it ends. MODULEPATH, if one is
# given, is a folder of modules on top of the release.
# Ends the shell with status 3 when the release cannot be entered, 92 when a module cannot be loaded.

envkit_repository=$1 envkit_version=$2 envkit_cpu=$3 envkit_python=$4 envkit_session=$5
envkit_modulepath=$6
shift 7
envkit_modules=("$@")
set --

envkit_end() {
    printf 'envkit: %s\n\n  %s\n\nWhat to do: %s\n' "$@" >&2
    exit 3
}

envkit_release=$envkit_repository/versions/$envkit_version
envkit_init=$envkit_release/init/lmod/bash
if [ ! -r "$envkit_init" ]; then
    envkit_init=$envkit_release/init/bash
fi
if [ ! -r "$envkit_init" ]; then
    envkit_word=$(ls "$envkit_release/init" 2>&1 >/dev/null)
    envkit_end "EESSI $envkit_version cannot be read inside: ${envkit_word##*: }." "There is no $envkit_init." \
        "The client that mounts it may have given up: read what it said above, or use another --access (native, dir)."
fi
set +eu # the start file ends a shell that has these set, and it returns 0 when it fails

# Nothing of what was loaded or entered before: it would steer the start file, or hide that it has failed.
if [ -n "${LOADEDMODULES-}" ] && [ -x "${LMOD_CMD-}" ]; then
    eval "$("$LMOD_CMD" bash --force purge 2>/dev/null)"
elif [ -n "${LOADEDMODULES-}" ] && [ -x "${MODULES_CMD-}" ]; then
    eval "$("$MODULES_CMD" bash purge 2>/dev/null)"
fi
for envkit_word in $(compgen -v | grep -E '^(__LMOD_|_ModuleTable|LOADEDMODULES$|_LMFILES_$|MODULEPATH)'); do
    unset "$envkit_word"
done
unset __Init_EESSI_Default_Modules __EESSI_VERSION_USED_FOR_INIT
unset EESSI_VERSION EESSI_VERSION_OVERRIDE EESSI_CVMFS_REPO EESSI_CVMFS_REPO_OVERRIDE
unset EESSI_SOFTWARE_PATH EESSI_SOFTWARE_SUBDIR EESSI_MODULEPATH EESSI_ARCHDETECT_OPTIONS
unset EESSI_ACCEL_SUBDIR EESSI_ACCELERATOR_TARGET EESSI_MODULEPATH_ACCEL
# shellcheck source=/dev/null
. "$envkit_init" >/dev/null

if [ -z "${EESSI_SOFTWARE_PATH-}" ]; then
    envkit_end "EESSI $envkit_version could not be entered." \
        "$envkit_init has set no EESSI_SOFTWARE_PATH (archspec calls this CPU $envkit_cpu)." \
        "Read what it said above. For a CPU that it has nothing for: export EESSI_ARCHDETECT_OPTIONS_OVERRIDE=$(uname -m)/generic"
fi
if [ ! -d "$EESSI_SOFTWARE_PATH" ]; then
    envkit_end "EESSI $envkit_version has no software for this CPU ($envkit_cpu)." "There is no $EESSI_SOFTWARE_PATH." \
        "Choose a target that it has: export EESSI_ARCHDETECT_OPTIONS_OVERRIDE=$(uname -m)/generic"
fi
if [ "${EESSI_VERSION-}" != "$envkit_version" ]; then
    envkit_end "EESSI ${EESSI_VERSION-} was entered in place of $envkit_version." "$envkit_init did so." \
        "Unset what steers it: env | grep EESSI_"
fi
case :${MODULEPATH-}: in
*:"$EESSI_SOFTWARE_PATH"/modules/all:*) ;;
*)
    envkit_end "The modules of EESSI $envkit_version cannot be found." \
        "MODULEPATH lacks $EESSI_SOFTWARE_PATH/modules/all: ${MODULEPATH-}" \
        "Unset what steers it: env | grep -e EESSI_ -e LMOD_"
    ;;
esac
envkit_gpu=${EESSI_ACCELERATOR_TARGET:+; GPU: $EESSI_ACCELERATOR_TARGET}
if [ -z "$envkit_gpu" ] && [ -n "${EESSI_ACCEL_SUBDIR-}" ]; then
    envkit_gpu="; it has nothing for the GPU, $EESSI_ACCEL_SUBDIR"
fi
printf 'envkit: EESSI %s for %s, which its archdetect chose; archspec calls this CPU %s%s\n' "$envkit_version" \
    "${EESSI_SOFTWARE_PATH#*/software/linux/}" "$envkit_cpu" "$envkit_gpu" >&2

if [ -n "$envkit_session" ]; then
    envkit_target=${EESSI_SOFTWARE_PATH#*/software/linux/}
    if [ -r "$envkit_session/target" ] && [ "$(<"$envkit_session/target")" != "$envkit_target" ]; then
        printf 'envkit: the last time it was %s\n' "$(<"$envkit_session/target")" >&2
    fi
    printf '%s\n' "$envkit_target" >"$envkit_session/target"
fi

if [ -n "$envkit_modulepath" ]; then
    module use "$envkit_modulepath" >&2
fi
for envkit_word in "${envkit_modules[@]}"; do
    if ! module load "$envkit_word" >&2; then
        if [ ! -x "$envkit_python" ]; then
            envkit_python=${EPREFIX-}/usr/bin/python3
        fi
        "$envkit_python" -I "${BASH_SOURCE[0]%/*}/../eessi/nearest.py" "$envkit_word" "$MODULEPATH" >&2
        exit 92
    fi
done
case $- in
*i*)
    if [ -n "$envkit_session" ]; then
        trap 'printf "%s\n" "${LOADEDMODULES-}" >"$envkit_session/loaded"' EXIT
    fi
    ;;
esac
unset envkit_repository envkit_version envkit_cpu envkit_python envkit_modules envkit_release envkit_init
unset envkit_word envkit_target envkit_gpu envkit_modulepath
unset -f envkit_end
