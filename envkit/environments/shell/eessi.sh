# shellcheck shell=bash
# Enter a release of EESSI in this shell, and see to it that one is there; sourced by enter.sh and rc.bash:
#   . eessi.sh REPOSITORY TITLE VERSION CPU PYTHON SESSION MODULEPATH LOG -- MODULE...
# TITLE is EESSI, or the name of another repository, which the start file is then told of. CPU is what archspec calls this machine's; PYTHON is asked for the nearest names of an unknown module. An interactive
# shell leaves the names of its modules in the folder SESSION, if one is given, when it ends. MODULEPATH, if one is
# given, is a folder of modules on top of the release; LOG, if one is given, is what the client that mounts it has said.
# Beside that is what it would tell the system's log (.syslog), and what its words mean (causes).
# Ends the shell with status 3 when the release cannot be entered, 2 when there is none of that name, 92 when a module cannot be loaded, be it the
# module's fault or the modules tool's.

# shellcheck source=envkit/environments/shell/modules_tool.sh
. "${BASH_SOURCE[0]%/*}/modules_tool.sh"
envkit_repository=$1 envkit_title=$2 envkit_version=$3 envkit_cpu=$4 envkit_python=$5 envkit_session=$6
envkit_modulepath=$7 envkit_client=$8
shift 9
envkit_modules=("$@")
set --

envkit_notes=
envkit_end() {
    envkit_unwatched
    printf 'envkit: %s\n\n  %s\n\nWhat to do: %s\n' "$@" >&2
    exit 3
}

# envkit_ask_client: have envkit_why say what the client has said, envkit_fix what it means is to be done; fails where it
# has said nothing. A cache that is damaged is marked, to be put aside when the session is entered the next time.
envkit_ask_client() {
    local words envkit_word envkit_id envkit_meant envkit_reason envkit_remedy
    [ -n "$envkit_client" ] || return 1
    words=$(cat -- "${envkit_client%.log}.syslog" "$envkit_client" 2>/dev/null)
    [ -n "$words" ] || return 1
    envkit_why+=" The client that mounts it has said, in $envkit_client:"$'\n'$(tail -n 5 <<<"$words" | sed 's/^/  /')
    while IFS=$'\t' read -r envkit_word envkit_id envkit_meant envkit_reason envkit_remedy; do
        case $words in
        *"$envkit_word"*)
            envkit_why+=$'\n'"  That is: $envkit_meant $envkit_reason" envkit_fix=$envkit_remedy
            [ "$envkit_id" != cache ] || : >"${envkit_client%/*}/damaged"
            break
            ;;
        esac
    done 2>/dev/null <"${envkit_client%/*}/causes"
}

envkit_release=$envkit_repository/versions/$envkit_version
envkit_init=$envkit_release/init/lmod/bash
if [ "$envkit_title" != EESSI ] && [ -r "$envkit_release/init/bash" ] || [ ! -r "$envkit_init" ]; then
    envkit_init=$envkit_release/init/bash # which another repository has of its own; EESSI's Lmod knows EESSI alone
fi
if [ ! -r "$envkit_init" ]; then
    if [ ! -e "$envkit_release" ]; then
        envkit_there=$(cd "$envkit_repository/versions" 2>/dev/null && printf '%s\n' [0-9]*/init |
            sed -n -e '/\*/d' -e 's,/init$,,p' | tr '\n' ' ')
        if [ -n "$envkit_there" ]; then
            envkit_there=${envkit_there% }
            printf 'envkit: %s has no release %s.\n\nWhat to do: Use --release with one of: %s.\n' \
                "$envkit_title" "$envkit_version" "${envkit_there// /, }" >&2
            exit 2
        fi
    fi
    envkit_word=$(ls "$envkit_release/init" 2>&1 >/dev/null)
    envkit_what="$envkit_title $envkit_version cannot be read inside: ${envkit_word##*: }."
    envkit_why="There is no $envkit_init."
    envkit_fix="Mend what the client says (its server, proxy or key), or use another --access (native, dir)."
    envkit_ask_client
    envkit_end "$envkit_what" "$envkit_why" "$envkit_fix"
fi
# What hangs on the way is killed and named; envkit_require_answers ends the shell where something was.
if envkit_notes=$(mktemp -d 2>/dev/null); then
    ( # without the descriptors of this shell: by one of them a session is held
        {
            for envkit_word in /proc/"$BASHPID"/fd/*; do
                envkit_word=${envkit_word##*/}
                [ "$envkit_word" -lt 3 ] || [ "$envkit_word" = 255 ] || exec {envkit_word}>&-
            done
            exec sh "${BASH_SOURCE[0]%/*}/watch.sh" "$$" 10 "$envkit_repository" "$envkit_notes"
        } </dev/null >/dev/null &
    )
fi
envkit_require_answers() {
    [ -s "$envkit_notes/hung" ] || return 0
    read -r envkit_why <"$envkit_notes/hung"
    envkit_unwatched
    envkit_fix="The client waits for its servers or its proxy: ask an administrator (cvmfs_config stat), or use another --access."
    envkit_what="$envkit_why has not answered in 10 s." envkit_why="It was read to enter $envkit_title $envkit_version."
    envkit_ask_client
    envkit_end "$envkit_what" "$envkit_why" "$envkit_fix"
}
envkit_unwatched() {
    local envkit_watch
    [ -n "$envkit_notes" ] || return 0
    ! read -r envkit_watch 2>/dev/null <"$envkit_notes/watch" || kill "$envkit_watch" 2>/dev/null
    rm -rf -- "$envkit_notes"
    envkit_notes=
}
set +eu # the start file ends a shell that has these set, and it returns 0 when it fails
envkit_posix=${POSIXLY_CORRECT+set} envkit_value=${POSIXLY_CORRECT-}
set +o posix
unalias module ml 2>/dev/null

# Nothing of what was loaded or entered before: it would steer the start file, or hide that it has failed.
# The tool that loaded it may not be seen inside, and its folders are not, then.
envkit_word=
if [ -n "${LOADEDMODULES-}" ] && [ -x "${LMOD_CMD-}" ]; then
    envkit_module "$LMOD_CMD" --force purge 2>/dev/null || envkit_word=$LMOD_CMD
elif [ -n "${LOADEDMODULES-}" ] && [ -x "${MODULES_CMD-}" ]; then
    envkit_module "$MODULES_CMD" purge 2>/dev/null || envkit_word=$MODULES_CMD
fi
if [ -n "$envkit_word" ]; then
    printf 'envkit: what was loaded before could not be unloaded, and may get in the way: %s\n' "$LOADEDMODULES" >&2
fi
unset LOADEDMODULES _LMFILES_ "${!__LMOD_@}" "${!_ModuleTable@}" "${!MODULEPATH@}"
unset __Init_EESSI_Default_Modules __EESSI_VERSION_USED_FOR_INIT
unset EESSI_VERSION EESSI_VERSION_OVERRIDE EESSI_CVMFS_REPO EESSI_CVMFS_REPO_OVERRIDE
unset EESSI_SOFTWARE_PATH EESSI_SOFTWARE_SUBDIR EESSI_MODULEPATH EESSI_ARCHDETECT_OPTIONS
unset EESSI_ACCEL_SUBDIR EESSI_ACCELERATOR_TARGET EESSI_MODULEPATH_ACCEL
if [ "$envkit_title" != EESSI ]; then
    export EESSI_CVMFS_REPO=$envkit_repository EESSI_CVMFS_REPO_OVERRIDE=$envkit_repository
    export EESSI_VERSION_OVERRIDE=$envkit_version
fi
# The start file restores the caller's default collection of modules, of which there is none by this name.
envkit_system=${LMOD_SYSTEM_NAME-} envkit_named=${LMOD_SYSTEM_NAME+set}
export LMOD_SYSTEM_NAME=envkit-enters
envkit_said=
if [ -n "$envkit_notes" ] && : >"$envkit_notes/out" 2>"$envkit_notes/err"; then
    # shellcheck source=/dev/null
    . "$envkit_init" >"$envkit_notes/out" 2>"$envkit_notes/err"
    if [ -z "${EESSI_SOFTWARE_PATH-}" ]; then
        envkit_said=$(tail -n 3 -- "$envkit_notes/out" && head -n 20 -- "$envkit_notes/err")
    elif [ -s "$envkit_notes/err" ]; then
        cat -- "$envkit_notes/err" >&2
    fi
else
    # shellcheck source=/dev/null
    . "$envkit_init" >/dev/null
fi
if [ -n "$envkit_named" ]; then
    export LMOD_SYSTEM_NAME=$envkit_system
else
    unset LMOD_SYSTEM_NAME
fi

unset EESSI_CVMFS_REPO_OVERRIDE EESSI_VERSION_OVERRIDE

envkit_require_answers
if [ -z "${EESSI_SOFTWARE_PATH-}" ]; then
    envkit_unwatched
    envkit_place=$envkit_release/software/linux
    envkit_there=$(cd "$envkit_place" 2>/dev/null && printf '%s ' "$(uname -m)"/*/software "$(uname -m)"/*/*/software |
        tr ' ' '\n' | sed -n -e '/\*/d' -e 's,/software$,,p' | tr '\n' ' ')
    envkit_wanted=${EESSI_ARCHDETECT_OPTIONS_OVERRIDE-}
    for envkit_word in ${envkit_wanted//:/ }; do
        [ ! -d "$envkit_place/$envkit_word/software" ] || envkit_wanted=
    done
    envkit_why="$envkit_init has set no EESSI_SOFTWARE_PATH. It has said:"$'\n'${envkit_said:-  nothing that was kept; see above}
    envkit_why=${envkit_why//$'\n'/$'\n'  }
    if [ -n "$envkit_wanted" ] && [ -n "$envkit_there" ]; then
        envkit_end "$envkit_title $envkit_version has no CPU target $envkit_wanted (EESSI_ARCHDETECT_OPTIONS_OVERRIDE)." \
            "$envkit_why" "Unset it, or choose one that it has: $envkit_there"
    fi
    case $envkit_said in
    *"Input/output error"* | *"Transport endpoint"* | *"Stale file handle"*)
        envkit_fix="The client of CernVM-FS, its cache or its server has failed: try again, or use another --access."
        envkit_ask_client
        envkit_end "$envkit_title $envkit_version could not be read to its end." "$envkit_why" "$envkit_fix"
        ;;
    esac
    if [ -d "$envkit_place" ] && [ -z "$envkit_there" ]; then
        envkit_end "$envkit_title $envkit_version has no software for this kind of CPU, $(uname -m) ($envkit_cpu)." \
            "$envkit_why" "See what another --release has: ls $envkit_repository/versions/*/software/linux"
    fi
    envkit_end "$envkit_title $envkit_version could not be entered." "$envkit_why" \
        "Mend what it says. To see all that it does: bash -xc '. $envkit_init'"
fi
if [ ! -d "$EESSI_SOFTWARE_PATH" ]; then
    envkit_end "$envkit_title $envkit_version has no software for this CPU ($envkit_cpu)." "There is no $EESSI_SOFTWARE_PATH." \
        "Choose a target that it has: export EESSI_ARCHDETECT_OPTIONS_OVERRIDE=$(uname -m)/generic"
fi
if [ "${EESSI_VERSION-}${EESSI_SOFTWARE_LAYER_VERSION_SUFFIX-}" != "$envkit_version" ] &&
    [ "${EESSI_VERSION-}" != "$envkit_version" ]; then
    envkit_end "$envkit_title ${EESSI_VERSION-} was entered in place of $envkit_version." "$envkit_init did so." \
        "Unset what steers it: env | grep EESSI_"
fi
case $envkit_title:$EESSI_SOFTWARE_PATH in
EESSI:* | *:"$envkit_repository"/*) ;;
*)
    envkit_end "Another repository was entered in place of $envkit_title: $EESSI_SOFTWARE_PATH." "$envkit_init did so." \
        "Tell who keeps $envkit_title: its start file, or its module EESSI, names the other one."
    ;;
esac
case :${MODULEPATH-}: in
*:"$EESSI_SOFTWARE_PATH"/modules/all:*) ;;
*)
    envkit_end "The modules of $envkit_title $envkit_version cannot be found." \
        "MODULEPATH lacks $EESSI_SOFTWARE_PATH/modules/all: ${MODULEPATH-}" \
        "Unset what steers it: env | grep -e EESSI_ -e LMOD_"
    ;;
esac
envkit_gpu=${EESSI_ACCELERATOR_TARGET:+; GPU: $EESSI_ACCELERATOR_TARGET}
if [ -z "$envkit_gpu" ] && [ -n "${EESSI_ACCEL_SUBDIR-}" ]; then
    envkit_gpu="; it has nothing for the GPU, $EESSI_ACCEL_SUBDIR"
fi
printf 'envkit: %s %s for %s, which its archdetect chose; archspec calls this CPU %s%s\n' "$envkit_title" "$envkit_version" \
    "${EESSI_SOFTWARE_PATH#*/software/linux/}" "$envkit_cpu" "$envkit_gpu" >&2

if [ -n "$envkit_session" ]; then
    envkit_target=${EESSI_SOFTWARE_PATH#*/software/linux/}
    if [ -r "$envkit_session/target" ] && [ "$(<"$envkit_session/target")" != "$envkit_target" ]; then
        printf 'envkit: the last time it was %s\n' "$(<"$envkit_session/target")" >&2
    fi
    printf '%s\n' "$envkit_target" >"$envkit_session/target"
fi

if [ -n "$envkit_modulepath" ]; then
    if ! envkit_module "${LMOD_CMD-}" use "$envkit_modulepath"; then
        envkit_unwatched
        envkit_give_up "the folder of modules $envkit_modulepath could not be used." "${LMOD_CMD-lmod}" \
            "Read what it said."
    fi
fi
# envkit_unreadable NAME: print why the files of a software's modules cannot be read, nothing if they can.
envkit_unreadable() {
    tr : '\n' <<<"${MODULEPATH-}" | while read -r envkit_word; do
        [ ! -e "$envkit_word" ] || cat -- "$envkit_word/$1"/*.lua 2>&1 >/dev/null
    done | grep -m 1 -e 'Input/output error' -e 'Transport endpoint' -e 'Stale file handle'
}
for envkit_word in "${envkit_modules[@]}"; do
    envkit_load "${LMOD_CMD-}" "$envkit_word" && continue
    envkit_require_answers
    envkit_said=$(envkit_unreadable "${envkit_word%%/*}")
    if [ -n "$envkit_said" ]; then
        envkit_why="$envkit_said"
        envkit_fix="The client of CernVM-FS, its cache or its server has failed: try again, or use another --access."
        envkit_ask_client
        printf 'envkit: the module %s could not be read.\n\n  %s\n\nWhat to do: %s\n' "$envkit_word" "$envkit_why" \
            "$envkit_fix" >&2
        envkit_unwatched
        exit 92
    fi
    if [ "$envkit_fault" = module ] && [ "$envkit_status" -ne 0 ]; then
        if [ ! -x "$envkit_python" ]; then
            envkit_python=${EPREFIX-}/usr/bin/python3
        fi
        envkit_unwatched
        "$envkit_python" -I "${BASH_SOURCE[0]%/*}/../../inside/nearest.py" "$envkit_word" "$MODULEPATH" >&2
        exit 92
    fi
    envkit_unwatched
    envkit_give_up "the module $envkit_word could not be loaded." "${LMOD_CMD-lmod}" ""
done
envkit_unwatched
if [ -n "$envkit_posix" ]; then
    export POSIXLY_CORRECT=$envkit_value
fi
case $- in
*i*)
    if [ -n "$envkit_session" ]; then
        trap 'printf "%s\n" "${LOADEDMODULES-}" >"$envkit_session/loaded"' EXIT
    fi
    ;;
esac
unset envkit_repository envkit_title envkit_version envkit_cpu envkit_python envkit_modules envkit_release envkit_init
unset envkit_word envkit_target envkit_gpu envkit_modulepath envkit_said envkit_named envkit_system
unset envkit_posix envkit_value envkit_place envkit_there envkit_wanted envkit_why envkit_client envkit_what envkit_fix
unset envkit_notes
unset -f envkit_end envkit_ask_client envkit_unreadable envkit_require_answers envkit_unwatched
envkit_forget
