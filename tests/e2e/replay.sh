#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvreplay: a trace by hand, the table, the plot, the bar; and where the public traces are, the
# figures others have found on them.
. "$(dirname "$0")/lib.sh"
kvreplay=$build/kvreplay
trace=$dir/four.jsonl
rq() { printf '{"timestamp":%s,"input_length":%s,"output_length":1,"hash_ids":[%s]}\n' "$1" "$2" "$3"; }
{ rq 0 1024 1,2; rq 1000 1024 1,3; rq 2000 512 4; rq 3000 600 1,2; } >"$trace"

same() {	# same NAME WANT GOT
	if [ "$2" = "$3" ]; then ok "$1: $3"; else not_ok "$1: $3, not $2"; fi
}
column() {	# column NAME FILE: a column of the table, by its title
	awk -v t="$1" '/^POLICY/ {at = index($0, t) + length(t) - 1; on = 1; next}
		on && NF {s = substr($0, 1, at); sub(/.* /, "", s); print s} !NF {on = 0}' "$2" | paste -sd' '
}

"$kvreplay" -t "$trace" -c 1,3,4 -p lru --bound --plot "$dir/p.svg" >"$dir/out" 2>"$dir/err"
verdict "runs" [ $? = 0 ]
same "hits by hand" "0.1429 0.2857 0.4286" "$(column HITS "$dir/out")"
same "MIN by hand" "0.2857 0.4286 0.4286" "$(column MIN "$dir/out")"
same "evictions by hand" "2 2 0" "$(column EVICTED "$dir/out")"
verdict "no bar where there is no terminal" [ "$(wc -l <"$dir/err")" = 1 ]
verdict "no escape codes either" eval '! grep -q $'"'\\033'"' "$dir/err"'
if command -v script >/dev/null; then
	script -qec "$kvreplay -t $trace -c 3" /dev/null >"$dir/tty" 2>&1
	verdict "a bar on a terminal" grep -q '\] .* %' "$dir/tty"
else
	echo "skip a bar on a terminal: needs script(1)"
fi
verdict "plot is an SVG of its own" grep -q '</svg>' "$dir/p.svg"
verdict "plot fetches nothing" eval '! grep -qE "href|url\(|@import" "$dir/p.svg"'
same "plot has two lines of three points" "2 6" \
	"$(grep -c '<polyline' "$dir/p.svg") $(grep -c '<circle' "$dir/p.svg")"

conversation=$data/traces/mooncake_conversation_trace.jsonl
if [ -f $conversation ]; then
	"$kvreplay" -t $conversation -p lru --bound -c 1k,3k,5859,10k,30k,100k,unlimited >"$dir/out" 2>"$dir/err"
	same "LRU on the conversation trace" "0.0445 0.0653 0.1361 0.2116 0.3257 0.3637 0.3664" \
		"$(column HITS "$dir/out")"
	same "MIN on the conversation trace" "0.1907 0.2945 0.3532 0.3664 0.3664 0.3664 0.3664" \
		"$(column MIN "$dir/out")"
	"$kvreplay" -t $conversation -p all -c 1k,3k,5859,10k,30k,100k >"$dir/out" 2>"$dir/err"
	hits=$(column HITS "$dir/out")	# lru's six, then gittins's
	verdict "gittins over LRU on the conversation trace: $hits" awk -v h="$hits" 'BEGIN {
		if (split(h, r, " ") != 12)
			exit 1
		split("1.8 1.9 1.28 1.07 1 .998", least, " ")
		for (i = 1; i <= 6; i++)
			if (r[i + 6] < least[i] * r[i])
				exit 1
	}'
	"$kvreplay" -t $conversation -p lru -c 10k --engines 4 --private >"$dir/out" 2>"$dir/err"
	same "four engines apart" "0.0891" "$(column HITS "$dir/out")"
	"$kvreplay" -t $conversation -p lru -c 10k --engines 4 >"$dir/out" 2>"$dir/err"
	together=$(column HITS "$dir/out")
	verdict "four engines on one pool: $together" awk -v h="$together" 'BEGIN {exit !(h > .2)}'
else
	echo "skip figures of the conversation trace: no $conversation"
fi
code=$data/traces/azure2023_code.csv
if [ -f $code ]; then
	"$kvreplay" -t $code -c 40,unlimited --json >"$dir/out" 2>"$dir/err"
	same "all of the code trace is served where there is room" "8819" "$(field served "$dir/out")"
	same "nobody waits there" "0" "$(field waited "$dir/out")"
	same "nothing to hit" "null" "$(field hit_ratio_blocks "$dir/out")"
	verdict "a small pool makes them wait" \
		[ "$(sed -n 's/.*"waited": \([0-9]*\).*/\1/p' "$dir/out" | head -n 1)" -gt 1000 ]
else
	echo "skip figures of the code trace: no $code"
fi
exit $bad
