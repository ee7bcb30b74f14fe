#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two engines, one pool: what kvd is for, in a minute. Ends 0 only if everything it says is true.
#
#	tools/demo.sh [BUILD]
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
model=tools/kvgen/models/stories-mha.kvm
prompt=tools/demo-prompt.txt
tokens=${DEMO_TOKENS:-900}
dir=$(mktemp -d)
sock=$dir/kvd.sock
daemon=0
trap 'kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$dir"' EXIT

bold="" plain=""
[ ! -t 1 ] || bold=$(tput bold 2>/dev/null) plain=$(tput sgr0 2>/dev/null)
step() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
die() {
	printf 'demo: %s\n' "$*" >&2
	exit 1
}
ctl() { "$build/kvctl" --socket "$sock" "$@"; }
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$2" | tail -n 1; }
# Sum of a field over all records of a kvctl command.
total() { ctl "$1" --json | sed -n "s/^ *\"$2\": \([0-9]*\),\{0,1\}$/\1/p" | awk '{n+=$1} END {print n+0}'; }
engine() {	# engine NAME [OPTION...]
	local name=$1
	shift
	exec "$build/kvgen" --model "$model" --prompt-file "$prompt" -n "$tokens" \
		--connect "unix:$sock" --name "$name" --stats "$@"
}
# Show what comes after the prompt, a line at a time, as it comes; keep the whole text in a file.
follow() {	# follow LABEL FILE
	local word line="" shown="" seen=0 prompt_bytes
	prompt_bytes=$(wc -c <"$prompt")
	: >"$2"
	while IFS= read -r -d ' ' word || [ -n "$word" ]; do
		printf '%s ' "$word" >>"$2"
		seen=$((seen + ${#word} + 1))
		[ $seen -gt $((prompt_bytes + 1)) ] || continue
		[ -n "$line$shown" ] || word=${word##*$'\n'}	# the prompt's last word stands before it
		shown=yes
		line+="${word//$'\n'/ } "
		[ ${#line} -lt 70 ] || { printf '  %-9s %s\n' "$1" "$line"; line=""; }
	done
	printf '  %-9s %s\n' "$1" "$line"
	truncate -s -1 "$2"	# the space after the last word
}

step "kvd owns the pool"
"$build/kvd" --device host:256M --socket "$sock" >"$dir/kvd.log" 2>&1 &
daemon=$!
for _ in $(seq 200); do
	[ -S "$sock" ] && ctl status >/dev/null 2>&1 && break
	kill -0 $daemon 2>/dev/null || die "kvd did not start: $(cat "$dir/kvd.log")"
	sleep 0.05
done
ctl status || die "kvd does not answer"

step "What the text must be: an engine alone, with a pool of its own"
"$build/kvgen" --model "$model" --prompt-file "$prompt" -n "$tokens" >"$dir/want" || die "kvgen failed"
printf '  %s characters\n' "$(wc -c <"$dir/want")"

printf '\nThe prompt, %s characters:\n\n' "$(wc -c <"$prompt")"
fold -s -w 76 "$prompt" | sed 's/^/    /'
echo

step "Engine 1 computes a long prompt and goes on from there"
(engine one 2>"$dir/one.json") | follow "engine 1" "$dir/one"
cmp -s "$dir/one" "$dir/want" || die "engine 1's text differs"

step "Engine 2, same prompt: its prefix comes from engine 1's pages"
(engine two 2>"$dir/two.json") | follow "engine 2" "$dir/two"
cmp -s "$dir/two" "$dir/want" || die "engine 2's text differs"
asked=$(field prompt_tokens "$dir/two.json")
hit=$(field prefix_hit_tokens "$dir/two.json")
printf '\n  engine 1 found %s of %s prompt tokens in the pool, engine 2 found %s: %s pages of 64 and %s tokens more\n' \
	"$(field prefix_hit_tokens "$dir/one.json")" "$asked" "$hit" $((hit / 64)) $((hit % 64))
[ "$(field prefix_hit_tokens "$dir/one.json")" = 0 ] || die "engine 1 cannot have found anything"
[ "$hit" -ge $((asked - 1)) ] || die "engine 2 should have found all but the last prompt token"
ctl caches

step "Both at once; engine 3 is killed with SIGKILL in the middle"
(engine three --pace 4 2>/dev/null) > >(follow "engine 3" "$dir/three") &
victim=$!
disown $victim	# its death is no news to this shell
(engine four --pace 4 2>"$dir/four.json") > >(follow "engine 4" "$dir/four") &
four=$!
for _ in $(seq 400); do	# well into the new text
	[ "$(wc -c <"$dir/three" 2>/dev/null || echo 0)" -gt "$(($(wc -c <"$prompt") + 300))" ] && break
	sleep 0.02
done
ctl engines
kill -9 "$victim" || die "engine 3 was gone already"
killed=$(date +%s%N)
printf '\n  killed engine 3 (process %s)\n' "$victim"
for _ in $(seq 100); do
	ctl engines --json >"$dir/engines"
	grep -q '"name": "three"' "$dir/engines" || break
	sleep 0.01
done
back=$((($(date +%s%N) - killed) / 1000000))
grep -q '"name": "three"' "$dir/engines" && die "engine 3's pages are still held after $back ms"
[ "$back" -lt 1000 ] || die "engine 3's pages came back only after $back ms"
[ "$(total engines quarantined_pages)" = 0 ] || die "pages are still quarantined"
printf '  its pages are back after %s ms:\n' "$back"
ctl engines
wait $four || die "engine 4 did not finish"
sleep 0.2	# its last sentence is still being written by the label printer
cmp -s "$dir/four" "$dir/want" || die "engine 4's text differs"

step "Nothing leaked"
for _ in $(seq 100); do
	[ "$(total engines held_pages)" = 0 ] && break
	sleep 0.02
done
ctl check >/dev/null || die "the daemon's self-check failed"
ctl meminfo
[ "$(total meminfo held_bytes)" = 0 ] || die "pages are still held"
[ "$(total meminfo quarantined_bytes)" = 0 ] || die "pages are still quarantined"
kill $daemon
wait $daemon || die "kvd ended with an error: $(tail -n 3 "$dir/kvd.log")"
daemon=0
step "Done: two engines, one pool, one prefix, one death, no leak."
