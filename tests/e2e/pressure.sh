#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A pool too small for what is asked: kvctl oom says why and what to do, kvctl pressure who waited.
. "$(dirname "$0")/lib.sh"

start_kvd --device host:4M
ctl oom >"$dir/out"
verdict "nothing was refused yet" grep -q 'No allocation' "$dir/out"
verdict "no pressure yet" [ "$(ctl pressure --json | grep -c '"some_total_ns": 0')" = 1 ]
gen() {
	"$build/kvgen" --model $model --prompt-file tools/demo-prompt.txt --connect "unix:$sock" \
		--page-tokens 64 -n 800 "$@"
}
gen --name slow --pace 500 >/dev/null 2>&1 &	# has the pool, and goes on
holds_all() { [ "$(ctl meminfo --json | sed -n 's/.*"free_bytes": \([0-9]*\).*/\1/p')" = 0 ]; }
verdict "an engine takes the pool" wait_for 60 holds_all
gen --name late >"$dir/text" 2>"$dir/err"
verdict "another is refused" [ $? = 1 ]
verdict "it says why: $(head -n 1 "$dir/err")" [ -s "$dir/err" ]

ctl oom >"$dir/out"
verdict "the report names who asked" grep -q "^Report 1, .*was refused [0-9]* page" "$dir/out"
verdict "and who has it, by name" grep -q "slow" "$dir/out"
verdict "and why" grep -q '^  Why: ' "$dir/out"
verdict "and the pool" grep -q '^  host .*pool 4.0 MiB = extents ' "$dir/out"
verdict "in a table" grep -q '^ENGINE *NAME' "$dir/out"
verdict "and what to do: $(grep 'What to do' "$dir/out")" grep -q 'What to do: [a-z]' "$dir/out"
ctl oom --last 1 --json >"$dir/json"
verdict "as JSON" python3 -c '
import json, sys
d = json.load(open(sys.argv[1]))
r = d["reports"][0]
assert len(d["reports"]) == 1 and r["result"] == "ENOMEM" and r["bytes"] > 0, r
assert r["extent_bytes"] + r["reserved_bytes"] + r["free_bytes"] == r["pool_bytes"] == 4 << 20, r
assert d["holders"][0]["seq"] == r["seq"] and d["holders"][0]["held_bytes"] > 0, d
' "$dir/json"
verdict "the log has a line of it" grep -q 'was refused .*kvctl oom' "$dir/kvd.log"
verdict "the counter too" [ "$(ctl vmstat | awk '$1=="oom"{print $2}')" -ge 1 ]
ctl pressure >"$dir/out"
verdict "pressure is a table" [ "$(awk '{print $1}' "$dir/out" | head -n 2 | paste -sd' ')" = "TENANT (all)" ]
verdict "with the time that was waited" [ "$(total pressure some_total_ns)" -ge 40000000 ]

ctl engines --json >"$dir/engines"
kill "$(field pid "$dir/engines")"	# the program itself, not the shell around it

gone_holder() { ctl oom --last 1 | grep -qE '^[0-9]+ +- +- +uid-'; }
verdict "a holder that is gone has neither name nor PID" wait_for 60 gone_holder
me=uid-$(id -u)
nobody_left() { [ "$(ctl engines | wc -l)" = 1 ]; }
verdict "the slow engine is gone" wait_for 60 nobody_left
ctl tenant set "$me" max=2M >/dev/null
gen --name capped >"$dir/text" 2>"$dir/err"
verdict "an engine is refused by its tenant's max" [ $? = 1 ]
ctl oom --last 1 >"$dir/out"
verdict "the report says so" grep -q "^  Why:      tenant '$me' is at its max: .* of 2.0 MiB on host" "$dir/out"
verdict "and to raise it" grep -q "What to do: kvctl tenant set $me max=" "$dir/out"
ctl oom --last 1 --json >"$dir/json"
verdict "as JSON too" [ "$(field result "$dir/json") $(field reason "$dir/json")" = "EDQUOT tenant_max" ]
ctl oom --last 0 2>/dev/null
verdict "--last 0 is bad usage" [ $? = 2 ]
exit $bad
