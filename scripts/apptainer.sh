#!/usr/bin/env bash
# Put Apptainer into a folder of its own on a Debian or Ubuntu machine, for the tests, and link it into a bin folder.
#   scripts/apptainer.sh FOLDER BIN
# A package of the machine's own release is installed where there is one. Otherwise that of Debian's next release is
# unpacked, with its own C library beside it, so that nothing of the machine's is replaced. Needs root, for the helpers.
set -euo pipefail
folder=$1 bin=$2
export DEBIAN_FRONTEND=noninteractive
install=(apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends)

# builds by root ask for these where root lacks a capability, as in a virtual machine
"$(dirname "$0")/subids.sh" root
if command -v apptainer >/dev/null || { apt-cache show apptainer >/dev/null 2>&1 && "${install[@]}" apptainer >/dev/null; }; then
    exit
fi
"${install[@]}" patchelf squashfs-tools squashfuse fuse2fs fuse3 fuse-overlayfs uidmap debootstrap e2fsprogs \
    libseccomp2 libsqlite3-0 util-linux >/dev/null
sources=(/etc/apt/sources.list /etc/apt/sources.list.d/*)
mirror=$(cat "${sources[@]}" 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 | tr -d ' ' || true)
if [ -z "$mirror" ]; then
    echo "No mirror of Debian is configured, so Apptainer is not to be had here." >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work"/{lists/partial,packages,tree}
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/sources.list"
apt=(apt-get -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=
    -o APT::Sandbox::User=root -o Acquire::Languages=none)
"${apt[@]}" update -qq
(cd "$work/packages" && "${apt[@]}" -qq download apptainer libc6)
for package in "$work"/packages/*.deb; do dpkg -x "$package" "$work/tree"; done

triplet=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || gcc -print-multiarch)
lib=$work/tree/usr/lib/$triplet
rm -rf "$folder"
mkdir -p "$folder"/{libc,"lib/$triplet",var/lib/apptainer/mnt/session}
cp -a "$work/tree/usr/bin" "$work/tree/etc" "$folder/"
cp -a "$lib/apptainer" "$folder/lib/$triplet/apptainer"
cp -a "$lib"/ld-linux-*.so.* "$lib"/lib{c,m,resolv,pthread,dl,nss_files,nss_dns}.so.* "$folder/libc/"
for name in bin etc var; do # its starter takes the folder above lib/TRIPLET for its prefix
    ln -s "../$name" "$folder/lib/$name"
done
loader=$(basename "$(find "$folder/libc" -name 'ld-linux-*')")
for program in "$folder/bin/apptainer" "$folder/lib/$triplet/apptainer/bin/starter"; do
    patchelf --set-interpreter "$folder/libc/$loader" --force-rpath --set-rpath "$folder/libc" "$program"
done
ln -sf "$folder/bin/apptainer" "$bin/apptainer"
"$bin/apptainer" version >/dev/null
