# shellcheck shell=sh
# See to it that a process, and what it starts, gets on, until FOLDER has gone:
#   sh watch.sh PROCESS SECONDS REPOSITORY FOLDER
# FOLDER/watch is left the number of this process. Where nothing of them has used a CPU, begun or ended for so long, the
# last of them is killed, and FOLDER/hung has what it waited for; where that is PROCESS itself, it is said on standard error.

envkit_process=$1 envkit_limit=$(($2 - 1)) envkit_repository=$3 envkit_folder=$4
printf '%s\n' "$$" >"$envkit_folder/watch"

# envkit_below PROCESS: print a process, and those that it has started.
envkit_below() {
    printf '%s\n' "$1"
    # shellcheck disable=SC2013
    for envkit_one in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
        envkit_below "$envkit_one"
    done
}

# envkit_waits PROCESS: print the file of the repository that it has open, or names, else its command line.
envkit_waits() {
    envkit_words=$(tr '\0' '\n' <"/proc/$1/cmdline" 2>/dev/null)
    # shellcheck disable=SC2012
    envkit_open=$(ls -l "/proc/$1/fd" 2>/dev/null | sed -n 's/.* -> //p' | grep -F "$envkit_repository" | tail -n 1)
    envkit_named=$(printf '%s\n' "$envkit_words" | grep "^$envkit_repository/" | tail -n 1)
    printf '%s\n' "${envkit_open:-${envkit_named:-$envkit_repository ($(printf '%s' "$envkit_words" | tr '\n' ' ' | cut -c 1-120))}}"
}

envkit_before='' envkit_same=0
while sleep 1 >/dev/null 2>&1 && [ -e "$envkit_folder/watch" ]; do
    envkit_now='' envkit_last=$envkit_process
    for envkit_one in $(envkit_below "$envkit_process"); do
        read -r envkit_line 2>/dev/null <"/proc/$envkit_one/stat" || continue
        envkit_now="$envkit_now $envkit_line" envkit_last=$envkit_one
    done 2>/dev/null
    [ -n "$envkit_now" ] || break
    case $envkit_now in
    "$envkit_before") envkit_same=$((envkit_same + 1)) ;;
    *) envkit_same=0 ;;
    esac
    case $envkit_now in *") T "*) envkit_same=0 ;; esac # a person has stopped it
    envkit_before=$envkit_now
    [ "$envkit_same" -ge "$envkit_limit" ] || continue
    envkit_waits "$envkit_last" >>"$envkit_folder/hung"
    if [ "$envkit_last" = "$envkit_process" ]; then
        printf 'envkit: %s has not answered in %s s.\n\n  It was read to enter EESSI.\n\nWhat to do: %s\n' \
            "$(head -n 1 "$envkit_folder/hung")" "$2" \
            "The client waits for its servers or its proxy: ask an administrator, or use another --access." >&2
        rm -rf -- "$envkit_folder"
    fi
    kill -KILL "$envkit_last"
    envkit_limit=1 envkit_same=0
done
