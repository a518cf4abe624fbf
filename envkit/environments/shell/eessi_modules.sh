# shellcheck shell=sh
# Print where the software of a release that was entered lies, and the files of its modules, relative to their folder:
#   sh eessi_modules.sh
# Folders of MODULEPATH that are not there are left out.

printf '%s\n' "$EESSI_SOFTWARE_PATH"
printf '%s' "$MODULEPATH" | tr : '\n' | while read -r envkit_folder || [ -n "$envkit_folder" ]; do
    if [ -d "$envkit_folder" ]; then
        find "$envkit_folder" -name '*.lua' -printf '%P\n'
    fi
done
