#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tenants of a running kvd: sections of its configuration, kvctl tenant, limits that hold and move.
. "$(dirname "$0")/lib.sh"

me=$(id -u)
conf=$dir/kvd.conf
cat >"$conf" <<END
[kvd]
device = host:32M
[tenant batch]
uid = 4000000, $me
max = 2M
[tenant idle]
gid = 4000000-4000009
min = 4M
[tenant quiet]
uid = 4000100
END
refused() {	# refused NAME SED: kvd says why it does not start with the changed configuration
	sed "$2" "$conf" >"$dir/bad.conf"
	timeout 20 "$build/kvd" --socket "$sock" --config "$dir/bad.conf" >"$dir/out" 2>"$dir/err"
	verdict "kvd names $1: $(head -n 1 "$dir/err")" grep -q "$3" "$dir/err"
}
refused "a name used twice" 's/idle/batch/' "tenant 'batch' has two sections"
refused "a range that is none" 's/4000000-4000009/9-4/' "gid = 9-4 is no list"
refused "a min beyond the pool" 's/min = 4M/min = 64M/' "min 64.0 MiB does not fit"
refused "high above max" 's/max = 2M/max = 2M\nhigh = 4M/' 'high (4.0 MiB) is above max (2.0 MiB)'

refused "a section with nothing in it" 's/uid = 4000100//' "bad.conf:9: .*nothing in it"
refused "a limit beyond any device" 's/max = 2M/max = 65T/' 'max (65.0 TiB) is more than any device has'

start_kvd --config "$conf"
row() { ctl tenant list | awk -v t="$1" '$1==t'; }
verdict "all tenants are there from the start" [ "$(ctl tenant list | wc -l)" = 4 ]
verdict "one without limits too" eval "ctl tenant show quiet | grep -q '^MAX  *none'"
verdict "list is aligned" [ "$(ctl tenant list | awk '{print length($0)}' | sort -u | wc -l)" = 1 ]
prompt=tools/demo-prompt.txt
gen() {
	"$build/kvgen" --model $model --prompt-file $prompt --connect "unix:$sock" \
		--page-tokens 64 "$@"
}
"$build/kvgen" --model $model --prompt-file $prompt -n 800 --connect embedded:host:64M >"$dir/want"

gen -n 800 >"$dir/text" 2>"$dir/err"
verdict "an engine is refused at its tenant's max" [ $? = 1 ]
verdict "with the way out: $(head -n 1 "$dir/err")" \
	grep -q "tenant 'batch' is at max (2.0 MiB.*kvctl tenant set batch max=" "$dir/err"
verdict "the event is counted" [ "$(ctl tenant show batch --json | sed -n 's/.*"max_events": \([0-9]*\).*/\1/p')" -gt 0 ]
ctl tenant set batch max=8M high=6M oom_action=kill >"$dir/out"
verdict "set answers with the new state" grep -q '^MAX *8.0 MiB' "$dir/out"
gen -n 800 >"$dir/text" 2>"$dir/err"
verdict "with a higher max it is served" cmp "$dir/text" "$dir/want"
peak=$(ctl tenant show batch --json | sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p')
verdict "what it was charged is shown: peak $peak" [ "$peak" -ge 4194304 ]

ctl tenant show batch >"$dir/out"
verdict "what became of its pages is shown" [ "$(grep -cE '^(EVICTIONS|REFAULTS|REFAULT DISTANCE|REUSE GAP) ' "$dir/out")" = 4 ]
before=$(ctl tenant show batch --json)
verdict "in JSON with histograms" python3 -c '
import json, sys
d = json.loads(sys.argv[1])
assert d["tenant"]["refaults"] == sum(b["count"] for b in d["refault_distance"]), d
assert d["tenant"]["evictions"] >= d["tenant"]["refaults"], d
assert all(b["from_ns"] < b["to_ns"] and b["count"] for b in d["reuse_gap"]), d
' "$before"
ctl tenant set batch high=4M min=30M >/dev/null 2>"$dir/err"
refused=$?
verdict "a change that cannot be is refused: $(cat "$dir/err")" [ $refused = 1 ]
verdict "and leaves all as it was" [ "$(ctl tenant show batch --json)" = "$before" ]
ctl tenant set nobody max=1M >/dev/null 2>"$dir/err"
verdict "an unknown tenant is named: $(cat "$dir/err")" grep -q "no tenant 'nobody'" "$dir/err"
ctl tenant set batch max=1X 2>/dev/null
verdict "a size that is none is bad usage" [ $? = 2 ]
no_usage() {	# no_usage NAME SAYS ARG...: bad usage
	local name=$1 says=$2
	shift 2
	ctl "$@" >/dev/null 2>"$dir/err"
	verdict "$name is bad usage" [ $? = 2 ]
	verdict "which says: $(head -n 1 "$dir/err")" grep -q "$says" "$dir/err"
}
no_usage "one knob twice" "second one" tenant set batch max=1G max=2G
no_usage "oom_action twice" "second one" tenant set batch oom_action=none oom_action=kill
no_usage "a size no device has" "up to 64T" tenant set batch max=9999999T
no_usage "a device where there is no choice" "tenant set only" tenant list --device 0
ctl tenant set uid-04243 max=1M 2>"$dir/err"
verdict "uid-04243 is nobody: $(cat "$dir/err")" grep -q "04243 is no user id" "$dir/err"
ctl tenant set "uid-$me" max=1M 2>"$dir/err"
verdict "a user of a section has no tenant of its own: $(cat "$dir/err")" grep -q "belongs to tenant 'batch'" "$dir/err"
ctl tenant set uid-4242 max=1M --device 0 >/dev/null
verdict "a user without a section can have limits" [ "$(row uid-4242 | awk '{print $NF}')" = 0 ]
ctl tenant set uid-4242 max=none >/dev/null
verdict "and is gone without them" [ -z "$(row uid-4242)" ]
gen -n 800 --pace 5 >"$dir/text" 2>"$dir/err" &
one=$!
has_engine() { ctl engines | grep -q batch; }
verdict "engines shows the tenant" wait_for 20 has_engine
verdict "caches shows it" eval "ctl caches | grep -q batch"
verdict "top shows it" eval "ctl top --once | grep -q batch"
kill $one
verdict "self-check" eval "ctl check >/dev/null"
stop_kvd

start_kvd --device host:16M --device host:16M
ctl tenant set uid-4242 max=4M >/dev/null
ctl tenant list >"$dir/out"
verdict "two devices are two rows" [ "$(grep -c '^uid-4242' "$dir/out")" = 2 ]
verdict "meminfo tells the devices apart" \
	[ "$(ctl meminfo | awk 'NR > 1 {print $1}' | paste -sd' ')" = "host:0 host:1" ]
verdict "a check says what it found" eval "ctl check | grep -q '^All invariants hold'"
for tool in kvctl kvgen kvbench kvreplay; do
	verdict "$tool has a version" eval "'$build/$tool' --version | grep -q '^$tool [0-9]'"
done
verdict "events stand in the first" [ "$(awk '/^uid-4242/ {printf "%d ", NF}' "$dir/out")" = "20 13 " ]
ctl tenant list --json >"$dir/json"
verdict "in JSON with the tenant" python3 -c '
import json, sys
d = json.load(open(sys.argv[1]))
assert [t["max_events"] for t in d["tenants"]] == [0], d
assert [v["max_bytes"] for v in d["devices"]] == [4 << 20] * 2 and "max_events" not in d["devices"][0], d
' "$dir/json"
stop_kvd
exit $bad
