#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two engines with half the pool each, a third that is told why not, and is served later. The
# death of the daemon.
. "$(dirname "$0")/lib.sh"

# An engine keeps 4 KiB of KV a token: 256 KiB a page of 64, eight pages an extent of 2 MiB. 800 tokens
# are two extents, half of this pool.
start_kvd --device host:8M
prompt=tools/demo-prompt.txt
gen() {
	local name=$1
	shift
	"$build/kvgen" --model $model --prompt-file $prompt --connect "unix:$sock" --name "$name" "$@"
}
"$build/kvgen" --model $model --prompt-file $prompt -n 800 --connect embedded:host:64M >"$dir/want"

# Private page sizes make private caches: no sharing, so each engine needs extents of its own.
gen one -n 800 --page-tokens 64 --pace 8 >"$dir/one" &
one=$!
gen two -n 800 --page-tokens 32 --pace 8 >"$dir/two" &
two=$!
full() { [ "$(total meminfo free_bytes)" = 0 ]; }
verdict "two engines take half the pool each" wait_for 20 full
gen three -n 800 --page-tokens 16 >"$dir/three" 2>"$dir/err"
verdict "a third engine is refused" [ $? -ne 0 ]
verdict "with the reason: $(head -n 1 "$dir/err")" grep -q 'kvd pool is full: .* wanted, .* free' "$dir/err"
verdict "in one line" [ "$(wc -l <"$dir/err")" = 1 ]
wait $one && wait $two
verdict "the first engine's text is right" cmp "$dir/one" "$dir/want"
verdict "the second engine's text is right" cmp "$dir/two" "$dir/want"
gen three -n 800 --page-tokens 16 >"$dir/three" 2>"$dir/err"
verdict "the third is served after one ends" cmp "$dir/three" "$dir/want"
verdict "self-check" eval "ctl check >/dev/null"

# The daemon dies: its clients get an error from their next call.
gen four -n 900 --pace 5 >"$dir/four" 2>"$dir/err" &
four=$!
started() { [ "$(wc -c <"$dir/four")" -gt 1700 ]; }
wait_for 20 started
disown $kvd_pid
kill -9 $kvd_pid
wait_for 20 eval "! kill -0 $four 2>/dev/null"
verdict "a client of a killed kvd ends" [ $? = 0 ]
wait $four
verdict "with an error, no signal" [ $? = 1 ]
verdict "and one line: $(head -n 1 "$dir/err")" [ "$(wc -l <"$dir/err")" = 1 ]
exit $bad
