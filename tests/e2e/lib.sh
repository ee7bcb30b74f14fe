# SPDX-License-Identifier: Apache-2.0
# Shared by the end-to-end tests: a private daemon, verdict lines, fields of JSON.
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=${1:-build}
dir=$(mktemp -d)
sock=$dir/kvd.sock
data=../shared/data
model=tools/kvgen/models/stories-mha.kvm
mla_model=tools/kvgen/models/stories-mla.kvm
bad=0
kvd_pid=0

cleanup() {
	kill $(jobs -p) 2>/dev/null
	wait 2>/dev/null
	rm -rf "$dir"
}
trap cleanup EXIT

ok() { echo "ok $*"; }
not_ok() {
	echo "not ok $*"
	bad=1
}
verdict() {	# verdict NAME COMMAND...: ok if the command succeeds
	local name=$1
	shift
	if "$@"; then ok "$name"; else not_ok "$name"; fi
}
ctl() { "$build/kvctl" --socket "$sock" "$@"; }
start_kvd() {	# start_kvd [OPTION...]
	"$build/kvd" --socket "$sock" "$@" >"$dir/kvd.log" 2>&1 &
	kvd_pid=$!
	for _ in $(seq 400); do
		ctl status >/dev/null 2>&1 && return 0
		kill -0 $kvd_pid 2>/dev/null || break
		sleep 0.05
	done
	not_ok "kvd starts: $(tail -n 3 "$dir/kvd.log")"
	exit 1
}
stop_kvd() {
	kill $kvd_pid 2>/dev/null
	wait $kvd_pid
}
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$2" | tail -n 1; }
total() { ctl "$1" --json | sed -n "s/^ *\"$2\": \([0-9]*\),\{0,1\}$/\1/p" | awk '{n+=$1} END {print n+0}'; }
wait_for() {	# wait_for SECONDS COMMAND...
	local n=$(($1 * 50))
	shift
	for _ in $(seq $n); do
		"$@" && return 0
		sleep 0.02
	done
	return 1
}
