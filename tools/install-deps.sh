#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what the build and the tests need and is missing (Debian 12, Ubuntu 24.04 and later).
# Silent and without network when everything is there.
set -eu

packages="gcc g++ clang make git pkg-config liburing-dev libinih-dev libjansson-dev libmd-dev libcmocka-dev libdnnl-dev
	binutils valgrind"
missing=""
for p in $packages; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
# libFuzzer and the clang sanitizers come in a package of clang's version; optional.
rt=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p')
if [ -n "$rt" ] && ! dpkg-query -W "$rt" >/dev/null 2>&1; then
	missing="$missing $rt"
fi
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
	echo "missing:$missing - install them with your package manager and run make again" >&2
	exit 1
fi
sudo=""
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || {
		echo "missing:$missing - run 'apt-get install$missing' as root" >&2
		exit 1
	}
	sudo=sudo
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq
# shellcheck disable=SC2086
$sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
