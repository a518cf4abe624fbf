# shellcheck shell=bash
# Have a modules tool change this shell, and notice when it has not; sourced by load.sh and eessi.sh.
# A tool that is killed prints nothing, and to evaluate nothing succeeds. So three things count: its own status, that of
# what it prints (by which Environment Modules tells a failure), and what LOADEDMODULES names after a load.

# envkit_module TOOL WORD...: as "module WORD..."; where it fails, envkit_reason says why, and envkit_fault whose it is.
envkit_module() {
    envkit_reason='' envkit_fault=tool envkit_told='' envkit_status=127
    if [ ! -f "$1" ]; then
        envkit_reason='is not there'
        return 1
    fi
    if [ ! -x "$1" ]; then
        envkit_reason='cannot be run: it is not executable'
        return 1
    fi
    envkit_status=0
    envkit_told=$(LMOD_TERM_WIDTH=${LMOD_TERM_WIDTH-80} "$1" bash "${@:2}") || envkit_status=$?
    if [ "$envkit_status" -gt 128 ] && envkit_told=$(kill -l "$envkit_status" 2>/dev/null); then
        envkit_reason="was killed by SIG$envkit_told"
    elif [ "$envkit_status" -ne 0 ]; then
        envkit_reason="ended with status $envkit_status; what it said is above"
        [ "$envkit_status" -ge 126 ] || envkit_fault=module
    elif [ -z "$envkit_told" ]; then
        envkit_reason='ended with status 0, but printed nothing for this shell'
    elif ! eval "$envkit_told" >&2; then
        envkit_reason='failed in what it had this shell do; what was said is above' envkit_fault=module
    fi
    [ -z "$envkit_reason" ]
}

# envkit_load TOOL MODULE [full]: load a module, which LOADEDMODULES then has to name. Where MODULE is no full name, but
# an alias or a part of one, LOADEDMODULES must at least have changed.
envkit_load() {
    envkit_before=${LOADEDMODULES-}
    envkit_module "$1" load "$2" || [ "$envkit_status$envkit_told" = 0 ] || return
    case ${3-part}:${LOADEDMODULES-}: in
    *:"$2":*) # what a tool prints may have been cut behind LOADEDMODULES; the files come after the search paths
        case :${_LMFILES_-}: in *"/$2":* | *"/$2.lua":*) return 0 ;; esac
        envkit_reason='ended with status 0, but what it printed for this shell is not whole (it has no _LMFILES_)'
        return 1
        ;;
    part*:"$2"[/.-]*) return 0 ;; # Environment Modules prints nothing for one that is there already
    part*)
        [ "${LOADEDMODULES-}" = "$envkit_before" ] || [ -z "${LOADEDMODULES-}" ] || return 0
        [ -z "$envkit_told" ] || envkit_fault=module
        ;;
    esac
    envkit_reason="${envkit_reason:-ended with status 0, but has not loaded it}; loaded: ${LOADEDMODULES:-nothing}"
    return 1
}

# envkit_is_table_whole: whether what Lmod keeps of the loaded modules is a table, or is not there.
envkit_is_table_whole() {
    [ -n "${_ModuleTable001_-}" ] || return 0
    case $(printf '%s' "$_ModuleTable001_" | base64 -d 2>/dev/null | tr -d '\0') in
    _ModuleTable_*) return 0 ;;
    *) return 1 ;;
    esac
}

# envkit_give_up WHAT TOOL FIX: say what could not be done, why, and what to do about the module; end the shell.
envkit_give_up() {
    if [ "$envkit_fault" = tool ]; then
        set -- "$1" "$2" "Run it again. If it stays so, the tool fails here, whatever the module: try '$2 bash list', and \
look at the limits of this session (ulimit -a). It has to be there on every node."
    fi
    printf 'envkit: %s\n\n  The modules tool %s %s.\n\nWhat to do: %s\n' "$1" "$2" "$envkit_reason" "$3" >&2
    exit 92
}

# envkit_forget: leave nothing of this to the command.
envkit_forget() {
    unset envkit_reason envkit_fault envkit_told envkit_status envkit_before
    unset -f envkit_module envkit_load envkit_is_table_whole envkit_give_up envkit_forget
}
