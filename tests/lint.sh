#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Proves the house rules that a compiler does not: layers, purity of mm, headers that stand alone,
# sizes. Prints "ok NAME" or "not ok NAME" with what is wrong above it.
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
cc=${CC:-gcc}
bad=0

verdict() {	# verdict NAME OUTPUT: empty output is good
	if [ -n "$2" ]; then
		printf '%s\nnot ok %s\n' "$2" "$1"
		bad=1
	else
		echo "ok $1"
	fi
}

# Who may include whom: folder, regex of allowed quoted or kv includes.
layer() {
	local dir=$1 allow=$2
	git ls-files --cached --others --exclude-standard "$dir" | grep '\.[ch]$' | while read -r f; do
		grep -nHE '^#include ("|<kv/)' "$f" | grep -vE "#include ($allow)" |
			grep -v '^libkv/embed\.c:'
	done
}
own() { git ls-files --cached --others --exclude-standard "$1" | grep '\.h$' | xargs -rn1 basename | paste -sd'|' | sed 's/\./\\./g'; }
verdict "layers: mm includes only itself" "$(layer kvd/mm "\"($(own kvd/mm))\"")"
verdict "layers: io never includes mm or srv" "$(layer kvd/io '"io/[a-z_]+\.h"')"
verdict "layers: srv uses mm.h, io, ipc" "$(layer kvd/srv '"(mm/mm\.h|io/[a-z_]+\.h|srv/[a-z_]+\.h|kv_[a-z]+\.h)"')"
verdict "layers: ipc stands alone" "$(layer ipc '"kv_[a-z]+\.h"')"
verdict "layers: kernels stand alone" "$(layer kernels '"[a-z_0-9/]+\.(h|inc)"' ; grep -rnE '#include "(kv_|mm|io/|srv/)' kernels)"
verdict "layers: libkv uses ipc and kernels" "$(layer libkv "<kv/[a-z]+\.h>|\"(kv_(abi|ring)\.h|kernels\.h|kern_plan\.h|$(own libkv | sed 's/kv\\.h|//'))\"")"
verdict "layers: tools use libkv, ipc and tools/common" "$(layer tools "<kv/[a-z]+\.h>|\"(kv_(abi|ring|admin)\.h|mm\.h|kern(els|_num|_plan)\.h|$(own tools))\"")"
verdict "layers: only kvbench, kvreplay and tests know mm outside kvd" \
	"$(grep -rnE '#include "(mm/)?mm\.h"' tools kernels ipc libkv | grep -vE '^(tools/kvbench/|tools/kvreplay/|libkv/embed\.c)')"

verdict "layers: only kvbench knows the kernels among the tools" \
	"$(grep -rnE '#include "kern(els|_num|_plan)\.h"' tools | grep -v '^tools/kvbench/')"

# mm calls nothing outside itself.
nm -u "$build"/obj/kvd/mm/*.o 2>/dev/null | awk '/ U /{print $2}' | sort -u > /tmp/lint.$$
nm --defined-only -g "$build"/obj/kvd/mm/*.o 2>/dev/null | awk 'NF==3{print $3}' | sort -u > /tmp/lint2.$$
verdict "mm is pure: no undefined symbols but the allowed" \
	"$(comm -23 /tmp/lint.$$ /tmp/lint2.$$ | grep -vxE 'mem(cpy|set|cmp|move)|mm_panic|__stack_chk_fail|_GLOBAL_OFFSET_TABLE_')"
[ -s /tmp/lint2.$$ ] || verdict "mm is pure: objects exist" "no objects in $build/obj/kvd/mm: run make first"
rm -f /tmp/lint.$$ /tmp/lint2.$$
verdict "mm is pure: no floating point" "$(grep -nE '\b(float|double)\b' kvd/mm/*.[ch] | grep -v '^\S*:\s*\*' | grep -vE ':[0-9]+:\s*(\*|/\*)')"

# Every header compiles alone.
alone() {
	local inc
	git ls-files --cached --others --exclude-standard kvd ipc kernels libkv tools | grep '\.h$' | while read -r h; do
		case $h in
		kvd/mm/*) inc=-Ikvd/mm ;;
		kvd/*) inc="-Ikvd -Iipc" ;;
		ipc/*) inc=-Iipc ;;
		kernels/*) inc=-Ikernels ;;
		tools/kvreplay/*) inc="-Itools/common -Itools/kvreplay -Ikvd/mm" ;;
		libkv/include/*) inc=-Ilibkv/include ;;
		libkv/*) inc="-Ilibkv -Ilibkv/include -Iipc -Ikernels" ;;
		tools/kvbench/*) inc="-Itools/common -Itools/kvbench -Ilibkv/include -Iipc -Ikvd/mm -Ikernels" ;;
		*) inc="-Itools/common -I$(dirname "$h") -Ilibkv/include -Iipc" ;;
		esac
		printf '#include "%s"\n' "$PWD/$h" |
			$cc -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror $inc -fsyntax-only -x c - 2>&1 | head -n 3
	done
}
verdict "every header compiles alone" "$(alone)"

files=$(git ls-files --cached --others --exclude-standard | grep -E '\.[ch]$')
verdict "files stay under 1000 lines" "$(wc -l $files | awk '$2!="total" && $1>1000')"
verdict "functions stay within 70 lines" "$(awk '
	FNR==1 {infn=0}
	/^[a-zA-Z_].*\)$/ || /^[a-zA-Z_\t ].*\)$/ {sig=FNR}
	/^\{/ {infn=1; start=FNR}
	/^\}/ {if (infn && FNR-start-1>70) printf "%s:%d: %d lines\n", FILENAME, start, FNR-start-1; infn=0}
	' $(echo "$files" | grep '\.c$' | grep -v '^tests/'))"
verdict "lines stay within 100 columns" "$(for f in $files; do expand -t8 "$f" | awk -v f="$f" 'length($0)>100 {print f":"NR": "length($0)" columns"}'; done | head -n 20)"
verdict "no trailing white space" "$(grep -nE '[ 	]+$' $files | head -n 20)"
verdict "SPDX line on every source" "$(for f in $files; do head -n 2 "$f" | grep -q SPDX-License-Identifier || echo "$f"; done)"
# Public symbols of the shared library are exactly the documented ones.
exported=$(nm -D --defined-only "$build/libkv.so" 2>/dev/null | awk '$2=="T"{sub(/@.*/, "", $3); print $3}' | sort)
documented=$(grep -hoE 'KV_API[^;]*' libkv/include/kv/*.h | grep -oE 'kv_[a-z_0-9]+ ?\(' | tr -d ' (' | sort -u)
verdict "libkv.so exports what its headers document" "$(diff <(echo "$documented") <(echo "$exported"))"
verdict "docs/knobs.md is the table of knobs" "$("$build/kvd" --print-knobs | grep -vxFf docs/knobs.md)"
exit $bad
