# shellcheck shell=sh
# Find or read every file of EESSI that loading what is loaded now takes:
#   sh prefetch.sh list REPOSITORY PLACE...
#   sh prefetch.sh read REPOSITORY PLACE...
# These are the folders of the modules loaded, their module files, the folder of all module files, and each PLACE, where
# {release}, {layer} and {software} stand for the release, its compatibility layer, and the software of this CPU target.
# "list" prints the size of each file; "read" prints how many more have been read, and fails if one cannot be.

envkit_do=$1 envkit_repository=$2
shift 2

envkit_places() {
    env | sed -n 's/^EBROOT[A-Z0-9_]*=//p'
    printf '%s' "${_LMFILES_-}" | tr : '\n'
    printf '\n%s\n' "${EESSI_MODULEPATH-$EESSI_SOFTWARE_PATH/modules/all}"
    for envkit_place; do
        printf '%s\n' "$envkit_place" | sed -e "s|{release}|$EESSI_PREFIX|" -e "s|{layer}|$EESSI_EPREFIX|" \
            -e "s|{software}|$EESSI_SOFTWARE_PATH|"
    done
}

# Links are followed to what they name, of which only what is in the repository counts, once.
# shellcheck disable=SC2016
envkit_files() {
    envkit_places "$@" | while read -r envkit_place; do
        readlink -e -- "$envkit_place"
    done | grep "^$envkit_repository/" | sort -u | awk '!last || index($0, last) != 1 { last = $0 "/"; print }' |
        tr '\n' '\0' | xargs -0 -r sh -c 'find "$@" -type f -printf "$0"' "$envkit_form"
}

if [ "$envkit_do" = list ]; then
    envkit_form='%s\n'
    envkit_files "$@"
else
    envkit_form='%p\0'
    # shellcheck disable=SC2016
    envkit_files "$@" | xargs -0 -r -n 100 -P 8 sh -c 'cat -- "$@" >/dev/null && echo $#' sh
fi
