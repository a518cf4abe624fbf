# shellcheck shell=sh
# Print the GPU target of the release that was entered, and those of the paths that are there:
#   sh injected.sh PATH...

printf '%s\n' "${EESSI_ACCELERATOR_TARGET-}"
for envkit_path; do
    if [ -e "$envkit_path" ]; then
        printf '%s\n' "$envkit_path"
    fi
done
