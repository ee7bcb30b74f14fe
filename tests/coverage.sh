#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Line coverage of kvd/mm by its unit tests and the simulator, from a build with COV=1 in BUILD.
set -eu
cd "$(dirname "$0")/.."
build=$1
find "$build" -name '*.gcda' -delete
for t in "$build"/tests/mm/*_test; do "$t" >/dev/null 2>&1 || echo "failed: $t"; done
"$build/tests/mmsim" --seeds 1..20 --ops 3000 >/dev/null
for f in kvd/mm/*.c; do
	gcov -n -o "$build/obj/kvd/mm" "$build/obj/kvd/mm/$(basename "$f" .c).gcda" 2>/dev/null |
		awk -v f="$f" '$0 ~ "File .*" f {hit=1} hit && /Lines executed/ {
			split($0, a, /[:% ]+/); print f, a[3], a[5]; exit}'
done | awk '{printf "%-28s %6.1f %%\n", $1, $2; n+=$3; c+=$2*$3/100} END {printf "%-28s %6.1f %% of %d lines\n", "kvd/mm", 100*c/n, n}'
