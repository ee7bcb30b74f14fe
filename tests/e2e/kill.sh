#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kill -9 of an engine at sampled points: KILL_POINTS (20; all = 200), SEED.
. "$(dirname "$0")/lib.sh"
points=${KILL_POINTS:-20}
[ "$points" != all ] || points=200
start_kvd --device host:64M --check-every 50
setsid --wait "$build/tests/e2e/kill" "$sock" "$build/tests/e2e/churn" "$build/tests/e2e/churn-hooked" \
	"$points" "${SEED:-1}" || bad=1
verdict "kvd survived and stops cleanly" stop_kvd
exit $bad
