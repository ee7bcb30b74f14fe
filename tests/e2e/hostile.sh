#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A malicious client against a real daemon, beside an engine that must not notice. SEED; ONLY=part
# of a check's name runs those.
. "$(dirname "$0")/lib.sh"
if [ "$(id -u)" = 0 ]; then
	chmod 755 "$dir"
	mkdir "$dir/own"
	chown 65534:65534 "$dir/own"
	mode=0666
else
	mkdir "$dir/own"
	mode=0600
	echo "skip attacks by another uid: needs root"
fi
export ASAN_OPTIONS=${ASAN_OPTIONS:-quarantine_size_mb=1}	# freed memory kept would look like a leak
start_kvd --device host:64M --check-every 2000 --set socket_mode=$mode --set hello_ms=1000 \
	--set data_bytes=4M --set max_sessions_per_uid=48
for part in hostile hostile_pages; do
	"$build/tests/e2e/$part" "$build/kvd" "$build/tests/e2e/churn" "$sock" "$dir/own" "${SEED:-1}" \
		${ONLY:+"$ONLY"} || bad=1
done
verdict "kvctl status" ctl status >/dev/null
verdict "kvctl check" ctl check >/dev/null
verdict "kvd survived and stops cleanly" stop_kvd
lines=$(wc -l <"$dir/kvd.log")
verdict "the log is not flooded ($lines lines)" [ "$lines" -lt 600 ]
exit $bad
