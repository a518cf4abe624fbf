#!/usr/bin/env bash
# Build what is released of the commit that is checked out: sdist and wheel, with their SHA-256 and what they were built
# from. Each is built twice, in folders and under umasks of their own, and has to come out the same byte by byte.
#   scripts/release.sh [FOLDER]      FOLDER: dist, if it is left out
# PYTHON names a Python with what requirements/build.txt locks; without it one is made with just that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=${1-dist}
if ! git rev-parse --verify --quiet HEAD >/dev/null 2>&1; then
    echo "This is no clone of the repository: what is released is a commit of it." >&2
    exit 2
fi
if [ -n "$(git status --porcelain)" ]; then
    echo "There are changes that are not committed: what is released is a commit." >&2
    exit 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=${PYTHON-}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv"
    python=$work/venv/bin/python
    "$python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
for umask in 022 077; do
    mkdir -p "$work/$umask/source" "$work/$umask/dist"
    (
        umask "$umask"
        git archive HEAD | tar -x -C "$work/$umask/source"
        cd "$work/$umask/source"
        "$python" -m hatchling build -d "$work/$umask/dist" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 5; }
    )
done
if ! diff -r "$work/022/dist" "$work/077/dist" >&2; then
    echo "Two builds of one commit differ." >&2
    exit 5
fi
mkdir -p "$folder"
cp "$work/022/dist"/* "$folder/"
(cd "$work/022/dist" && sha256sum -- *) | tee "$folder/SHA256SUMS"
"$python" -I - "$folder" "$(git rev-parse HEAD)" "$(sha256sum requirements/build.txt | cut -d ' ' -f 1)" <<'PROGRAM'
# what was built from what, as an in-toto statement with SLSA's provenance; who publishes it signs it
import importlib.metadata, json, os, pathlib, platform, sys
folder, commit, lock = sys.argv[1:]
lines = (line.split() for line in pathlib.Path(folder, "SHA256SUMS").read_text().splitlines())
made = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": name, "digest": {"sha256": digest}} for digest, name in lines],
    "predicateType": "https://slsa.dev/provenance/v1",
    "predicate": {
        "buildDefinition": {
            "buildType": "scripts/release.sh",
            "externalParameters": {"SOURCE_DATE_EPOCH": os.environ["SOURCE_DATE_EPOCH"]},
            "internalParameters": {"hatchling": importlib.metadata.version("hatchling"), "python": platform.python_version()},
            "resolvedDependencies": [
                {"name": "envkit", "digest": {"gitCommit": commit}},
                {"name": "requirements/build.txt", "digest": {"sha256": lock}},
            ],
        },
        "runDetails": {"builder": {"id": "scripts/release.sh"}},
    },
}
pathlib.Path(folder, "provenance.json").write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
PROGRAM
