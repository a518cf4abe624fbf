#!/usr/bin/env bash
# Give a user a range of subordinate ids, uids and gids, that nobody has; nothing where there is one. Needs root.
#   scripts/subids.sh USER [ETC]
set -euo pipefail
user=$1 etc=${2:-/etc}
files=("$etc/subuid" "$etc/subgid")
touch "${files[@]}"
known=("${files[@]}")
for file in "$etc/passwd" "$etc/group"; do [ ! -r "$file" ] || known+=("$file"); done
# behind every range of both files, one without a count taken as a whole one, and every id of a user or group
first=$(awk -F: '
    BEGIN { first = 100000 }
    $2 ~ /^ *[0-9]+ *$/ && $2 < 4294967295 {
        end = $2 + ($3 ~ /^ *[0-9]+ *$/ ? $3 : 65536)
        if (end > first) first = end
    }
    $2 !~ /^ *[0-9]/ { for (i = 3; i <= 4; i++) if ($i ~ /^[0-9]+$/ && $i >= first && $i < 4000000000) first = $i + 1 }
    END { printf "%.0f", first }' "${known[@]}")
if [ "$((first + 65536))" -gt 4294967295 ]; then
    echo "No range of subordinate ids is free: see ${files[*]}." >&2
    exit 1
fi
for file in "${files[@]}"; do
    if ! grep -q "^$user:" "$file"; then
        if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then # its last line has no end
            echo >>"$file"
        fi
        echo "$user:$first:65536" >>"$file"
    fi
done
