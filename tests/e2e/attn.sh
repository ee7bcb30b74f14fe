#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kvbench attn on tiny shapes: it runs, its numbers are the shape's, its JSON is whole. How fast
# anything is decides nothing here: a void run (3) is as good as one that counts.
. "$(dirname "$0")/lib.sh"
bench=$build/kvbench
out=$dir/out

attn() {	# attn NAME OPTION...: a tiny run into $out; ok if it ran
	local name=$1 rc
	shift
	"$bench" attn --seconds 0.01 --pool-mib 4 "$@" >"$out" 2>"$dir/err"
	rc=$?
	if [ $rc = 0 ] || [ $rc = 3 ]; then
		ok "$name runs"
	elif [ $rc = 1 ] && grep -q 'not supported' "$dir/err"; then
		echo "skip $name: no kernel takes it"
		return 1
	else
		not_ok "$name: status $rc: $(tail -n 1 "$dir/err")"
	fi
}
same() {	# same NAME FIELD WANT
	local got
	got=$(sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\).*/\1/p" "$out" | head -n 1)
	if [ "$got" = "$3" ]; then ok "$1: $3"; else not_ok "$1: $got, not $3"; fi
}
whole() {	# whole NAME: what it printed is one JSON document
	if command -v python3 >/dev/null; then
		verdict "$1" python3 -m json.tool "$out" /dev/null
	else
		echo "skip $1: needs python3"
	fi
}
near() {	# near NAME: the comparison with the reference
	local err
	err=$(sed -n 's/^ *"relative_error": \([^,]*\).*/\1/p' "$out")
	verdict "$1: off by $err" awk -v e="$err" 'BEGIN {exit !(e != "" && e + 0 < .005)}'
}

attn "gqa" --heads 4 --kv-heads 2 --dim 64 --ctx 200 --page 16 --check --json
whole "gqa: JSON"
near "gqa"
same "gqa: flop of a position" flop_per_position 1024
same "gqa: bytes of a position" bytes_per_position 512
same "gqa: flop of a call" flop 204800
same "gqa: bytes of a call" bytes 102400
same "gqa: kind" kind gqa
same "gqa: cache" dtype bf16

attn "mla" --kind mla --heads 8 --ctx 100 --check --json
whole "mla: JSON"
near "mla"
same "mla: a row is read once" bytes_per_position 1152
same "mla: flop of a position" flop_per_position 17408
same "mla: intensity" flop_per_byte 15.1111111111

attn "shared prefix" --heads 2 --kv-heads 1 --dim 32 --batch 4 --ctx 100 --shared-prefix 70 \
	--page 32 --dtype f32 --check --json
near "shared prefix"
same "shared prefix: pages count once" bytes 53248
same "shared prefix: every query counts" flop 102400

attn "two threads" --heads 2 --kv-heads 2 --dim 8 --batch 3 --ctx 9 --threads 2 --dtype f16 \
	--q-len 3 --contiguous --impl generic --check --json
near "two threads"
same "two threads: causal" flop 4608
same "two threads: as asked" impl generic

attn "pages of one token" --heads 1 --kv-heads 1 --dim 8 --ctx 7 --page 1 --check --json
near "pages of one token"

for dtype in f8 i8; do
	attn "$dtype" --heads 4 --kv-heads 2 --dim 32 --ctx 50 --page 16 --dtype $dtype --check \
		--json || continue
	near "$dtype"
	same "$dtype: a scale for each token" bytes_per_position 144
	attn "$dtype by head" --heads 4 --kv-heads 2 --dim 32 --ctx 50 --dtype $dtype --scale head \
		--check --json
	near "$dtype by head"
	same "$dtype by head: no scales in the pages" bytes_per_position 128
done
attn "fp8 is f8" --heads 4 --kv-heads 2 --dim 32 --ctx 50 --dtype fp8 --json &&
	same "fp8 is f8" dtype f8
if attn "f8_ds" --kind mla --heads 4 --ctx 50 --dtype f8_ds --check --json; then
	near "f8_ds"
	same "f8_ds: the row of 656 bytes" bytes_per_position 656
fi

# without oneDNN the step is refused and says so
step() {	# step NAME OPTION...: a layer of small size into $out
	local name=$1 rc
	shift
	"$bench" attn --seconds 0.01 --pool-mib 4 --json "$@" >"$out" 2>"$dir/err"
	rc=$?
	if [ $rc = 0 ] || [ $rc = 3 ]; then
		ok "$name runs"
	elif [ $rc = 1 ] && grep -q -i 'dnnl\|oneDNN' "$dir/err"; then
		echo "skip $name: $(tail -n 1 "$dir/err")"
		return 1
	else
		not_ok "$name: status $rc: $(tail -n 1 "$dir/err")"
	fi
}
if step "layer step" --layer-step=v2-lite --heads 2 --ctx 70 --batch 3 --q-len 2 --page 16; then
	whole "layer step: JSON"
	same "layer step: model" model v2-lite
	# a row: 2 (2048 * 576 + 2048 * 2 * 192 + 2 * 128 * 512 * 2 + 2 * 128 * 2048)
	same "layer step: flop of the products" products_flop 33030144
	verdict "layer step: time is split" grep -q '"attention_share"' "$out"
	step "layer step, f8" --layer-step=v2-lite --heads 2 --ctx 70 --dtype f8 --scale head
	step "layer step, fp32" --layer-step=v2-lite --heads 1 --ctx 9 --q-dtype f32 --dtype f32
	same "layer step, fp32: queries" q_dtype f32
fi

# So short that there is one sample: each figure is one, none was made of nothing.
attn "one sample" --ctx 1 --seconds 1e-9 --json
verdict "one sample: it has a time of planning" grep -q '"plan_ns": [0-9]\{1,9\},' "$out"

attn "a table" --heads 4 --kv-heads 2 --dim 64 --ctx 200
verdict "a table has the ratios" grep -q '^touch_ratio  *1  *[0-9]*\.[0-9]' "$out"
verdict "no progress where there is no terminal" [ ! -s "$dir/err" ]

# A line of one word is what is left of one that was too long.
for what in "" attn; do
	# shellcheck disable=SC2086
	"$bench" $what --help >"$out"
	if awk 'length > 79 || (NF == 1 && !/^ / && !/:$/ && prev) {bad = 1} {prev = NF}
		END {exit bad}' "$out"; then
		ok "kvbench $what --help fills its lines"
	else
		not_ok "kvbench $what --help has lines too long, or rests of them"
	fi
done

bad_line() {	# bad_line WORD OPTION...: status 2 and a line that has the word
	local word=$1
	shift
	"$bench" attn "$@" >"$out" 2>"$dir/err"
	if [ $? = 2 ] && grep -q -- "$word" "$dir/err"; then ok "refused: $*"; else
		not_ok "refused: $*: $(tail -n 1 "$dir/err")"
	fi
}
bad_line --kind --kind mha
bad_line --heads --heads 30
bad_line --ctx --ctx 0
bad_line --ctx --ctx 12x
bad_line --batch --batch -1
bad_line 'ctx is 99999999999, must be at most' --ctx 99999999999
bad_line --dtype --dtype fp7
bad_line f8_ds --dtype f8_ds
bad_line --q-dtype --q-dtype f8
bad_line --scale --scale head
bad_line implementation --impl cray
bad_line --suite --suite --ctx 5
bad_line v2-lite --layer-step=v9
bad_line --layer-step --layer-step --suite
bad_line --layer-step --layer-step --dim 320 --dim-v 256
bad_line KV_CPU --layer-step --impl ref
bad_line --shared-prefix --layer-step --batch 2 --ctx 64 --shared-prefix 64
bad_line --seconds --seconds x
bad_line --seconds --seconds 0
bad_line --seconds --seconds -1
bad_line "'x'" x

failed() {	# failed WORD OPTION...: status 1 and one line that says of what
	local word=$1
	shift
	"$bench" attn "$@" >"$out" 2>"$dir/err"
	if [ $? = 1 ] && [ "$(wc -l <"$dir/err")" = 1 ] && grep -q -- "$word" "$dir/err"; then
		ok "failed, of $word: $*"
	else
		not_ok "failed: $*: $(tail -n 1 "$dir/err")"
	fi
}
export KV_CPU=cray
failed KV_CPU=cray
failed KV_CPU=cray --suite
failed KV_CPU=cray --layer-step
unset KV_CPU
failed 'pool of [0-9]\{10\} MiB' --pool-mib 4294967295
failed 'pool of [0-9]\{10\} MiB' --layer-step --pool-mib 4294967295
exit $bad
