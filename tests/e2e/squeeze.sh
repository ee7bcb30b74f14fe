#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Three engines of two tenants in a pool that is too small for them. The protected one reads the
# same prompts again and again and must keep finding them, while the other two always want more and
# have their limit moved under them, both ways. Every byte that any of them reads is checked, held
# pages are moved meanwhile, and nobody dies.
. "$(dirname "$0")/lib.sh"

if [ "$(id -u)" != 0 ]; then
	echo "skip squeeze: two tenants are two users, and only root can run engines as them"
	exit 0
fi
mib=1048576
keeper=61001 taker=61002
# A page is 8 KiB, an extent 2 MiB: 256 pages. The working set is 64 prompts of 30 pages, 15 MiB, each
# read about once a second: the coldest content of the pool, which is always short of free memory.
# Without min it loses much of it to the others, as the last part shows.
prompts=64 pages=30 protect=18 high=32 low=8 chats=48 most=40
chmod 711 "$dir"
# start_daemon KNOB: min or low protects, max does not.
start_daemon() {
	cat >"$dir/kvd.conf" <<-EOF
		[kvd]
		socket_mode = 0666
		check_every = 2000
		wmark_low = 100
		wmark_high = 150
		[tenant kept]
		uid = $keeper
		$1 = $2M
		[tenant taken]
		uid = $taker
	EOF
	start_kvd --config "$dir/kvd.conf" --device host:48M
}

start() {	# start NAME UID KIND COUNT PAGES: sets pid
	: >"$dir/$1"	# an engine before it may have had the name
	"$build/tests/e2e/squeeze" "unix:$sock" "$2" "$1" "$3" "$4" "$5" >"$dir/$1" 2>"$dir/$1.err" &
	pid=$!
}
# in_line LINE WHAT: a figure of a line of counters. count ENGINE WHAT: of the latest.
in_line() { tr ' ' '\n' <<<"$1" | grep -A1 "^$2\$" | tail -n 1; }
count() { in_line "$(tail -n 1 "$dir/$1")" "$2"; }
at_least() { [ "$(count "$1" "$2")" -ge "$3" ] 2>/dev/null; }
within() {	# within SECONDS COMMAND...
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}
current() { ctl tenant show "$1" --json | sed -n 's/^ *"current_bytes": *\([0-9]*\).*/\1/p' | head -n 1; }
set_max() { ctl tenant set taken max="$1M" >/dev/null; }
charged_below() { [ "$(current taken)" -le $(($1 * mib)) ]; }
charged_above() { [ "$(current taken)" -gt $(($1 * mib)) ]; }
alive() { kill -0 $kept 2>/dev/null && kill -0 $one 2>/dev/null && kill -0 $two 2>/dev/null; }

# rounds N: the protected engine reads its prompts N times more; sets share, in parts of 1000.
rounds() {
	local was now
	was=$(tail -n 1 "$dir/kept")
	within 60 at_least kept steps $(($(in_line "$was" steps) + $1 * prompts)) || return 1
	now=$(tail -n 1 "$dir/kept")
	share=$((1000 * ($(in_line "$now" hit) - $(in_line "$was" hit)) /
		($(in_line "$now" asked) - $(in_line "$was" asked))))
}
keeps() {	# keeps WHEN
	rounds 2 || share=0
	verdict "the protected engine finds its prompts $1: $((share / 10)).$((share % 10)) % of its tokens" \
		[ "$share" -ge 990 ]
}

start_three() {	# start_three MIB: what the others take at least
	start kept $keeper keep $prompts $pages
	kept=$pid
	verdict "the first engine fills its cache" within 60 at_least kept steps $((2 * prompts))
	keeps "alone"
	start one $taker take $chats $most
	one=$pid
	start two $taker take $chats $most
	two=$pid
	verdict "the others take what is left" within 60 charged_above "$1"
}
end_three() {
	local e

	verdict "all three are alive" alive
	verdict "self-check" eval "ctl check >/dev/null"
	for e in kept one two; do
		kill "${!e}"
		wait "${!e}"
		verdict "engine $e ends well: $(tail -n 1 "$dir/$e" | cut -c 1-160) $(head -n 1 "$dir/$e.err")" [ $? = 0 ]
	done
}

left=$((48 - protect - 8))
start_daemon min $protect
start_three $left
keeps "next to them"

for i in 1 2; do
	verdict "their max goes down to $low MiB" set_max $low
	verdict "and their charge below it, in use as they are" within 60 charged_below $low
	keeps "meanwhile"
	verdict "their max goes up to $high MiB" set_max $high
	verdict "and they take it" within 60 charged_above $((high - 10))
	keeps "after that"
done
# Less than they use: now the engines themselves are asked, and park.
pressed() { [ $(($(count one pressed) + $(count two pressed))) -gt "$1" ]; }
asked=$(($(count one pressed) + $(count two pressed)))
verdict "their max goes down to 2 MiB, less than they use" set_max 2
verdict "they are asked for room" within 60 pressed "$asked"
keeps "meanwhile"
verdict "their max goes up to $high MiB" set_max $high
verdict "and they take it" within 60 charged_above $((high - 10))
keeps "at the end"
end_three
verdict "pages in use were moved meanwhile" [ $(($(count one moved) + $(count two moved))) -gt 0 ]
gone() { [ "$(total engines held_pages)" = 0 ] && [ "$(total meminfo held_bytes)" = 0 ]; }
verdict "nothing is held at the end" within 20 gone
verdict "kvd stops cleanly" stop_kvd

# The same without the wall: low protects as long as the others have something above theirs, be it
# mixed with what they use.
start_daemon low $protect
start_three $left
keeps "next to them"
keeps "and still"
verdict "their max goes down to $low MiB" set_max $low
verdict "and their charge below it" within 60 charged_below $low
verdict "their max goes up to $high MiB" set_max $high
verdict "and they take it" within 60 charged_above $((high - 10))
keeps "after that"
end_three
verdict "kvd stops cleanly" stop_kvd

# And without protection: what kept the prompts above was the knob. The others want the whole pool.
high=48 chats=64 most=60
start_daemon max $high
start_three 36
loses() { rounds 1 && [ "$share" -lt 900 ]; }
verdict "and it loses its prompts" within 60 loses
end_three
verdict "kvd stops cleanly" stop_kvd
exit $bad
