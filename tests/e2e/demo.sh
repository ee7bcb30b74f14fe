#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The demo is a test: it ends 0 only if everything it says is true.
. "$(dirname "$0")/lib.sh"
tools/demo.sh "$build" >"$dir/demo" 2>&1
rc=$?
[ $rc = 0 ] || tail -n 20 "$dir/demo"
verdict "demo" [ $rc = 0 ]
exit $bad
