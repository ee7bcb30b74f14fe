#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs parts of the tests and ends with one line: N passed, N failed, N skipped.
#
#	tests/run.sh BUILD PART...        parts: lint unit sim fuzz e2e san valgrind soak
#
# A program counts its cmocka tests, or its "ok NAME" / "not ok NAME" / "skip NAME: REASON" lines,
# or itself by exit status (77: skipped, the last line says why).
set -u
cd "$(dirname "$0")/.." || exit 1
build=$1
shift
passed=0 failed=0 skipped=0
log=$(mktemp -d)
trap 'rm -rf "$log"' EXIT
export KVD_BIN=${KVD_BIN:-$PWD/$build/kvd}
export BUILD_DIR=$build

# count FILE STATUS NAME: adds up what a program printed.
count() {
	local file=$1 rc=$2 name=$3 p f s
	# cmocka may say a line several times with groups: add them up.
	p=$(awk '/^\[  PASSED  \] [0-9]+ test/ {n+=$4} /^ok / {n++} END {print n+0}' "$file")
	f=$(awk '/^\[  FAILED  \] [0-9]+ test/ {n+=$4} /^not ok / {n++} END {print n+0}' "$file")
	s=$(awk '/^\[  SKIPPED \] [0-9]+ test/ {n+=$4} /^skip / {n++} END {print n+0}' "$file")
	if [ "$rc" = 77 ]; then
		s=$((s > 0 ? s : 1))
	elif [ "$rc" != 0 ] && [ "$f" = 0 ]; then
		f=1
	elif [ "$p" = 0 ] && [ "$f" = 0 ] && [ "$s" = 0 ]; then
		p=1
	fi
	passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
	if [ "$f" != 0 ]; then
		printf '  FAIL    %s (status %s)\n' "$name" "$rc"
		tail -n 60 "$file" | sed 's/^/          /'
	else
		printf '  ok      %-44s %4d passed' "$name" "$p"
		[ "$s" = 0 ] || printf ', %d skipped' "$s"
		printf '\n'
		grep -E '^(skip |# skipped|SKIP)' "$file" | sed 's/^/          /'
	fi
}

# run SECONDS NAME COMMAND...
run() {
	local limit=$1 name=$2 rc
	shift 2
	timeout -k 10 "$limit" "$@" >"$log/out" 2>&1 </dev/null
	rc=$?
	[ $rc != 124 ] || echo "timed out after $limit s" >>"$log/out"
	count "$log/out" $rc "$name"
}

units() {	# units BUILD NAME-PREFIX PATTERN LIMIT [WRAPPER...]
	local b=$1 prefix=$2 pattern=$3 limit=$4 t n
	shift 4
	for t in tests/unit/*/*_test.c; do
		n=${t#tests/unit/}
		n=${n%.c}
		[[ $n =~ $pattern ]] || continue
		KVD_BIN=$PWD/$b/kvd run "$limit" "$prefix$n" "$@" "$b/tests/$n"
	done
}

part_lint() { run 300 lint tests/lint.sh "$build"; }
part_unit() { units "$build" "" . 300; }

part_sim() {
	run 300 "sim canary" "$build/tests/mmsim" --canary
	run 300 "sim seeds" "$build/tests/mmsim" --seeds 1..40 --ops 5000
}

part_fuzz() {
	local f n=0
	for f in tests/fuzz/*_fuzz.c; do n=$((n + 1)); done
	for f in tests/fuzz/*_fuzz.c; do
		f=$(basename "$f" .c)
		[ ! -d "tests/fuzz/corpus/${f%_fuzz}" ] ||
			run 120 "fuzz corpus $f" "$build/tests/fuzz/$f" tests/fuzz/corpus/"${f%_fuzz}"/*
		run 200 "fuzz $f" "$build/tests/fuzz/$f" --seconds $((${FUZZ_SECONDS:-60} / n)) --seed "${SEED:-1}"
	done
}

part_e2e() {
	local t
	for t in tests/e2e/*.sh; do
		[ "$(basename "$t")" != lib.sh ] || continue
		run 600 "e2e $(basename "$t" .sh)" "$t" "$build"
	done
}

part_san() {
	local j
	j=$(nproc)
	make -s -j"$j" BUILD="$build/asan" SAN=address,undefined OPT=-O1 tests-unit \
		"$build/asan/tests/mmsim" >"$log/make" 2>&1 || { count "$log/make" 1 "asan build"; return; }
	export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
	units "$build/asan" "asan " . 600
	run 300 "asan sim" "$build/asan/tests/mmsim" --seeds 1..6 --ops 3000
	make -s -j"$j" BUILD="$build/tsan" SAN=thread OPT=-O1 tests-unit >"$log/make" 2>&1 ||
		{ count "$log/make" 1 "tsan build"; return; }
	export TSAN_OPTIONS=halt_on_error=1
	units "$build/tsan" "tsan " '^(ipc|srv|io)/' 600
}

part_valgrind() {
	command -v valgrind >/dev/null || { echo "skip valgrind: not installed"; skipped=$((skipped + 1)); return; }
	units "$build" "valgrind " '^(mm|libkv/(layout|key|page|seq_test))' 600 \
		valgrind -q --error-exitcode=9 --leak-check=full --show-leak-kinds=definite \
		--errors-for-leak-kinds=definite
}

part_soak() {
	run 7200 "soak sim" "$build/tests/mmsim" --seeds 1000..3000 --ops 20000
	FUZZ_SECONDS=1800 part_fuzz
	KILL_POINTS=all run 7200 "soak kill points" tests/e2e/kill.sh "$build"
}

for part in "$@"; do
	printf '== %s\n' "$part"
	SECONDS=0
	"part_$part"
	printf '   %s took %d s\n' "$part" $SECONDS
done
printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
[ $failed = 0 ]
