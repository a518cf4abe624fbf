# shellcheck shell=sh
# Read files and folders that may not answer, each after its path was printed:
#   sh read_paths.sh PATH...
# Who gives up waiting learns from the last line which one it was. Ends with the status of the first; of the others, what
# is not there is left out.

envkit_status=
for envkit_path; do
    printf '%s\n' "$envkit_path"
    if [ -z "$envkit_status" ]; then
        ls -- "$envkit_path" >/dev/null
        envkit_status=$?
    elif [ -d "$envkit_path" ]; then # no program is started for the others, which takes longer than they do
        for envkit_entry in "$envkit_path"/*; do break; done
    elif [ -f "$envkit_path" ]; then
        # shellcheck disable=SC2034
        read -r envkit_entry 2>/dev/null <"$envkit_path"
    fi
done
exit "${envkit_status:-0}"
