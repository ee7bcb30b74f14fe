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
		grep -qP "$pattern" <<<"$n" || continue
		KVD_BIN=$PWD/$b/kvd run "$limit" "$prefix$n" "$@" "$b/tests/$n"
	done
}

part_lint() { run 300 lint tests/lint.sh "$build"; }
# The same attention by every implementation that runs here, not the best one alone. Of the reference
# the calls only: it neither shares nor splits. The layer's products take the most time and are the
# same for all: not again for the one that calls of bf16 took anyway where there is AMX.
units_by_cpu() {
	local cpu t
	for cpu in ref generic avx2 avx512 avx512bf16 amx; do
		if ! "$build/kvbench" attn --impl=$cpu --help >/dev/null 2>&1; then
			echo "  skip    KV_CPU=$cpu: this CPU does not run it"
			skipped=$((skipped + 1))
			continue
		fi
		for t in attn attn8 attn_reuse threads mla_layer; do
			[[ $cpu:$t != ref:@(attn_reuse|threads|mla_layer) ]] || continue
			[[ $cpu:$t != amx:mla_layer ]] || continue
			run 300 "$cpu libkv/${t}_test" env KV_CPU=$cpu "$build/tests/libkv/${t}_test"
		done
	done
}

part_unit() {
	units "$build" "" . 300
	units_by_cpu
}

part_sim() {
	run 300 "sim canary" "$build/tests/mmsim" --canary
	# 10 million operations, each done twice.
	run 900 "sim seeds" "$build/tests/mmsim" --seeds 1..2000 --ops 5000 --jobs "$(nproc)"
}

# libFuzzer with sanitizers where clang has both; else gcc's sanitizers and our own mutations.
fuzz_build() {	# fuzz_build: sets engine and fuzz_dir, builds the harnesses
	local -a opts=("SAN=address,undefined" OPT=-O1)
	engine=standalone fuzz_dir=$build/fuzz-gcc
	if printf 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p[0] && n > 9; }\n' |
		clang -x c - -fsanitize=fuzzer,address,undefined -o "$log/probe" 2>/dev/null; then
		engine=libfuzzer fuzz_dir=$build/fuzz
		opts+=(CC=clang FUZZ=1)
	fi
	make -s -j"$(nproc)" BUILD="$fuzz_dir" "${opts[@]}" fuzzers >"$log/make" 2>&1
}

# fuzz_one NAME SECONDS: an input that kills it stays as $build/fuzz-NAME-*.
fuzz_one() {
	local name=$1 secs=$2 max=1024 rc n kept=$build/fuzz-$1-
	local -a how=(--seconds "$secs" --seed "${SEED:-1}" --artifacts "$kept")
	[[ $name != dispatch && $name != mm ]] || max=8192
	rm -rf "$log/corpus" && mkdir "$log/corpus"
	cp tests/fuzz/corpus/"$name"/* "$log/corpus/" 2>/dev/null
	[ "$engine" = standalone ] || how=(-max_total_time="$secs" -seed="${SEED:-1}" -max_len="$max"
		-artifact_prefix="$kept" -timeout=60 -error_exitcode=1 -print_final_stats=1
		-verbosity=0)
	timeout -k 10 $((secs + 240)) "$fuzz_dir/tests/fuzz/${name}_fuzz" "${how[@]}" "$log/corpus" \
		>"$log/out" 2>&1 </dev/null
	rc=$?
	[ $rc != 124 ] || echo "timed out" >>"$log/out"
	n=$(sed -nE 's/^(stat::number_of_executed_units: +([0-9]+)|([0-9]+) inputs, seed.*)$/\2\3/p' "$log/out")
	if [ $rc = 0 ] && [ "${n:-0}" = 0 ]; then
		echo "it ran no input" >>"$log/out"
		rc=1
	fi
	[ $rc = 0 ] || sed -i '/^stat::/d; /recommended dictionary/d; /# Uses:/d' "$log/out"
	count "$log/out" $rc "fuzz $name${n:+: $n inputs} ($engine)"
}

part_fuzz() {
	local f name n=0 engine fuzz_dir total=${FUZZ_SECONDS:-60}
	export ASAN_OPTIONS=detect_leaks=1:handle_abort=0 UBSAN_OPTIONS=print_stacktrace=1
	fuzz_build || { count "$log/make" 1 "fuzz build"; return; }
	for f in tests/fuzz/*_fuzz.c; do n=$((n + 1)); done
	for f in tests/fuzz/*_fuzz.c; do
		name=$(basename "$f" _fuzz.c)
		if [ "$name" = dispatch ]; then
			fuzz_one "$name" $((total / 2))
		else
			fuzz_one "$name" $((total / 2 / (n - 1)))
		fi
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
	local j t
	j=$(nproc)
	make -s -j"$j" BUILD="$build/asan" SAN=address,undefined OPT=-O1 tests-unit \
		all "$build/asan/tests/mmsim" "$build"/asan/tests/e2e/{churn,churn-hooked,kill} >"$log/make" 2>&1 || { count "$log/make" 1 "asan build"; return; }
	export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1
	ATTN_CASES=200 units "$build/asan" "asan " . 600
	run 300 "asan sim" "$build/asan/tests/mmsim" --seeds 1..6 --ops 3000
	for t in text share kill demo; do
		KILL_POINTS=6 run 600 "asan e2e $t" "tests/e2e/$t.sh" "$build/asan"
	done
	make -s -j"$j" BUILD="$build/tsan" SAN=thread OPT=-O1 tests-unit >"$log/make" 2>&1 ||
		{ count "$log/make" 1 "tsan build"; return; }
	export TSAN_OPTIONS=halt_on_error=1
	units "$build/tsan" "tsan " '^(ipc|srv|io)/|^libkv/threads_test' 600
}

# Under valgrind these take minutes each; make soak runs them.
slow_under_valgrind='ipc/ring_test|kernels/(attn_random|attn_edge|attn_infinite|plan)_test|kvgen/(engine|forward)_test|mm/(random|wait|squeeze|fair|compact)_test|libkv/(queue|seq_model|seq_remote|attn_reuse)_test'
# valgrind takes io_uring_enter() for a call that does not block, and hangs: no test with a daemon.
no_valgrind=$(grep -l 'raw_client\.h' tests/unit/*/*_test.c |
	sed 's,^tests/unit/,,; s,\.c$,,' | paste -sd'|')
# oneDNN's generated AVX2 code reads a vector past its own packed block and throws it away.
no_valgrind+='|libkv/mla_layer_test'
# It has 1,024 threads, valgrind 500.
no_valgrind+='|libkv/threads_test'

valgrind_units() {	# valgrind_units PATTERN LIMIT
	local VALGRIND="valgrind -q --error-exitcode=9 --leak-check=full --show-leak-kinds=definite
		--errors-for-leak-kinds=definite"
	# shellcheck disable=SC2086
	units "$build" "valgrind " "$1" "$2" $VALGRIND
}

part_valgrind() {
	if ! command -v valgrind >/dev/null; then
		echo "  skip    valgrind: not installed"
		skipped=$((skipped + 1))
		return
	fi
	valgrind_units "^(?!$slow_under_valgrind|$no_valgrind)" 300
	echo "  skip    valgrind of the session tests: it does not let io_uring_enter() block (ASan and TSan run them)"
	echo "  skip    valgrind of the MLA layer: oneDNN's generated code reads past its own blocks (ASan runs it)"
	echo "  skip    valgrind of libkv's threads: there are more than it can have (TSan and ASan run them)"
	skipped=$((skipped + 3))
}

part_soak() {
	run 14400 "soak sim" "$build/tests/mmsim" --seeds 10000..14999 --ops 20000 --jobs "$(nproc)" \
		--resume "$build/soak-sim.txt"
	run 14400 "soak mutants" make -s mutate MUTANTS=1000 BUILD="$build"
	FUZZ_SECONDS=1800 part_fuzz
	ATTN_CASES=100000 ATTN_SEED=1000000 run 14400 "soak attention" "$build/tests/kernels/attn_random_test"
	KILL_POINTS=all run 7200 "soak kill points" tests/e2e/kill.sh "$build"
	ATTN_CASES=1000 valgrind_units "$slow_under_valgrind" 7200
}

for part in "$@"; do
	printf '== %s\n' "$part"
	SECONDS=0
	"part_$part"
	printf '   %s took %d s\n' "$part" $SECONDS
done
printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped
[ $failed = 0 ]
