#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bad input of every kind: one line on stderr that names the thing, a non-zero exit, nothing on
# stdout, never a signal.
. "$(dirname "$0")/lib.sh"

refused() {	# refused NAME PATTERN COMMAND...
	local name=$1 pattern=$2 rc lines
	shift 2
	timeout 60 "$@" >"$dir/out" 2>"$dir/err"
	rc=$?
	# argp adds a "Try ... --help" line of its own.
	lines=$(grep -vc "^Try \`" "$dir/err")
	if [ $rc -gt 0 ] && [ $rc -lt 124 ] && [ "$lines" = 1 ] && [ ! -s "$dir/out" ] &&
		grep -qiE "$pattern" "$dir/err"; then
		ok "$name: $(head -n 1 "$dir/err" | cut -c1-110)"
	else
		head -n 5 "$dir/err"
		not_ok "$name (status $rc, $lines lines)"
	fi
}

kvgen=$build/kvgen
refused "kvgen: unknown option" "unrecognized option" "$kvgen" --frobnicate
refused "kvgen: no model" "model" "$kvgen"
refused "kvgen: missing model" "nowhere.kvm" "$kvgen" --model nowhere.kvm
refused "kvgen: a directory" "/tmp" "$kvgen" --model /tmp
head -c 5000 $model >"$dir/cut.kvm"
refused "kvgen: truncated model" "cut.kvm" "$kvgen" --model "$dir/cut.kvm"
echo "not a model at all, just words" >"$dir/words"
refused "kvgen: not a model" "words" "$kvgen" --model "$dir/words"
: >"$dir/empty"
refused "kvgen: empty model" "empty" "$kvgen" --model "$dir/empty"
refused "kvgen: bad attention" "gqa or mla" "$kvgen" --model $model --attn mha
refused "kvgen: bad dtype" "f32, f16, bf16, f8, i8 or f8_ds" "$kvgen" --model $model --cache-dtype f9
refused "kvgen: bad number" "number" "$kvgen" --model $model -n twelve
refused "kvgen: zero page" "page" "$kvgen" --model $model --page-tokens 0
refused "kvgen: bad spec" "nonsense" "$kvgen" --model $model --connect nonsense
refused "kvgen: bad size" "lots" "$kvgen" --model $model --connect embedded:host:lots
refused "kvgen: pool too small" "pool" "$kvgen" --model $model --connect embedded:host:4K
refused "kvgen: socket absent" "absent.sock" "$kvgen" --model $model --connect "unix:$dir/absent.sock"
refused "kvgen: prompt file without end" "more than 65536" "$kvgen" --model $model --prompt-file /dev/zero
refused "kvgen: prompt file a directory" "is it a file" "$kvgen" --model $model --prompt-file /tmp
refused "kvgen: prompt file absent" "no.txt" "$kvgen" --model $model --prompt-file "$dir/no.txt"
yes 'One day' | head -c 30000 >"$dir/long.txt"
refused "kvgen: prompt longer than the model" "prompt has [0-9]+ tokens" "$kvgen" --model $model --prompt-file "$dir/long.txt"
refused "kvgen: full disk" "output" bash -c "$kvgen --model $model -n 9 >/dev/full"
refused "kvgen: closed output" "output" bash -c "$kvgen --model $model -n 9 >&-"
refused "kvgen: unknown KV_CPU" "KV_CPU" env KV_CPU=nonsense "$kvgen" --model $model
if [ -f $data/models/stories260K.bin ]; then
	ref=$data/models
	refused "kvgen: wrong vocabulary" "tok" "$kvgen" --model $ref/stories260K.bin --tokenizer $model
	refused "kvgen: no tokenizer" "tokenizer" "$kvgen" --model $ref/stories260K.bin
	head -c 300000 $ref/stories260K.bin >"$dir/cut.bin"
	refused "kvgen: truncated checkpoint" "cut.bin" "$kvgen" --model "$dir/cut.bin" --tokenizer $ref/tok512.bin
fi

kvd=$build/kvd
refused "kvd: unknown option" "unrecognized option" "$kvd" --frobnicate
refused "kvd: bad device" "gpu7" "$kvd" --device gpu7:1G --socket "$dir/x"
refused "kvd: bad size" "lots" "$kvd" --device host:lots --socket "$dir/x"
refused "kvd: pool too small" "host" "$kvd" --device host:1K --socket "$dir/x"
refused "kvd: no such directory" "nodir" "$kvd" --device host:64M --socket "$dir/nodir/x"
refused "kvd: extents too small" "extent_bytes" "$kvd" --device host:64M --set extent_bytes=4K --socket "$dir/x"
refused "kvd: socket path too long" "108|107|long" "$kvd" --device host:64M --socket "$dir/$(printf 'x%.0s' $(seq 200))"
refused "kvd: config absent" "no.conf" "$kvd" --config "$dir/no.conf" --socket "$dir/x"
refused "kvd: config that never ends" "more than 100000 lines" "$kvd" --config /dev/zero --socket "$dir/x"
printf '[kvd]\nfrobnicate = 3\n' >"$dir/bad.conf"
refused "kvd: unknown knob" "frobnicate" "$kvd" --config "$dir/bad.conf" --socket "$dir/x"
refused "kvd: bad knob" "spin_us" "$kvd" --set spin_us=abc --socket "$dir/x"

start_kvd --device host:64M
refused "kvd: already running" "already listens" "$kvd" --device host:64M --socket "$sock"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	chmod 755 "$dir"
	cp "$kvgen" "$build/libkv.so.0" $model "$dir/"
	refused "kvgen: no permission" "permission.*kvd.sock" setpriv --reuid 65534 --regid 65534 --clear-groups \
		env LD_LIBRARY_PATH="$dir" "$dir/kvgen" --model "$dir/$(basename $model)" --connect "unix:$sock"
	cp "$build/kvctl" "$dir/"
	refused "kvctl: no permission" "admin.*(permission|denied)" setpriv --reuid 65534 --regid 65534 --clear-groups \
		env LD_LIBRARY_PATH="$dir" "$dir/kvctl" --socket "$sock" status
else
	echo "skip no permission: needs root and setpriv"
fi
refused "kvctl: unknown command" "frobnicate" "$build/kvctl" --socket "$sock" frobnicate
refused "kvctl: full disk" "output" bash -c "$build/kvctl --socket $sock meminfo >/dev/full"
refused "kvctl: no command" "command" "$build/kvctl" --socket "$sock"
refused "kvctl: socket absent" "absent" "$build/kvctl" --socket "$dir/absent" status
refused "kvbench: unknown benchmark" "frobnicate" "$build/kvbench" --connect "unix:$sock" frobnicate
refused "kvbench: no daemon" "unix:PATH" "$build/kvbench" --connect embedded:host:64M ring
refused "kvbench: no kvd to start" "did not start" "$build/kvbench" --kvd /nonexistent ring
refused "kvbench: socket absent" "absent" "$build/kvbench" --connect "unix:$dir/absent" ring
verdict "kvd stops cleanly" stop_kvd

kvreplay=$build/kvreplay
printf '{"timestamp":0,"input_length":512,"output_length":1,"hash_ids":[1]}\n{"timestamp":"x"}\n' >"$dir/t.jsonl"
refused "kvreplay: no trace" "which trace" "$kvreplay" -c 10
refused "kvreplay: no capacity" "how large" "$kvreplay" -t "$dir/t.jsonl"
refused "kvreplay: trace absent" "no.jsonl" "$kvreplay" -t "$dir/no.jsonl" -c 10
refused "kvreplay: malformed line" "t.jsonl:2: .*timestamp" "$kvreplay" -t "$dir/t.jsonl" -c 10
refused "kvreplay: empty trace" "no request" "$kvreplay" -t /dev/null -c 10
refused "kvreplay: trace without end" "longer than" "$kvreplay" -t /dev/zero -c 10
refused "kvreplay: neither format" "format" "$kvreplay" -t "$dir/words" -c 10
refused "kvreplay: the other format" "azure" "$kvreplay" -t "$dir/t.jsonl" -c 10 --format azure
refused "kvreplay: no such format" "mooncake or azure" "$kvreplay" -t "$dir/t.jsonl" -c 10 --format xml
refused "kvreplay: no such policy" "lru, gittins or all" "$kvreplay" -t "$dir/t.jsonl" -c 10 -p arc
refused "kvreplay: bad capacity" "'lots'" "$kvreplay" -t "$dir/t.jsonl" -c 10,lots
refused "kvreplay: less than a page" "63M" "$kvreplay" -t "$dir/t.jsonl" -c 63MB
refused "kvreplay: bad engines" "engines" "$kvreplay" -t "$dir/t.jsonl" -c 10 -n 0
head -n 1 "$dir/t.jsonl" >"$dir/good.jsonl"
refused "kvreplay: private of whom" "engines" "$kvreplay" -t "$dir/good.jsonl" -c 10 --private
refused "kvreplay: less than a page each" "3 pages" "$kvreplay" -t "$dir/good.jsonl" -c 3 -n 4 --private
refused "kvreplay: plot cannot be written" "nodir" "$kvreplay" -t "$dir/good.jsonl" -c 3 --plot "$dir/nodir/x.svg"
refused "kvreplay: full disk" "output" bash -c "$kvreplay -t $dir/good.jsonl -c 3 >/dev/full"

"$kvd" --frobnicate 2>/dev/null
verdict "kvd: bad usage is status 2" [ $? = 2 ]
for t in kvd kvctl kvgen kvbench kvreplay; do
	"$build/$t" --help >"$dir/out" 2>&1
	verdict "$t --help has examples" grep -qi "example" "$dir/out"
done
exit $bad
