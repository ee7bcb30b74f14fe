#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The right text: reference model and our own, both attention paths, three cache types, embedded and
# through the daemon, cold and with a prefix hit.
. "$(dirname "$0")/lib.sh"
start_kvd --device host:256M

gen() { "$build/kvgen" --connect "$spec" "$@"; }
same() {	# same NAME WANT COMMAND...
	local name=$1 want=$2
	shift 2
	"$@" >"$dir/out" 2>"$dir/err"
	if cmp -s "$dir/out" "$want"; then ok "$name"; else
		head -c 300 "$dir/out" "$dir/err"
		not_ok "$name"
	fi
}

for spec in embedded:host:64M "unix:$sock"; do
	for attn in gqa mla; do
		for dtype in f32 f16 bf16; do
			what="$attn $dtype ${spec%%:*}"
			if [ -f $data/models/stories260K.bin ]; then
				same "stories260K $what" $data/models/ref_greedy_n200.txt gen -n 200 \
					--model $data/models/stories260K.bin \
					--tokenizer $data/models/tok512.bin --attn $attn --cache-dtype $dtype
			else
				echo "skip stories260K $what: ../shared/data is not here"
			fi
		done
	done
done

# A prompt that ends inside a page, found by the second run: same text, prefix reported.
prompt=tools/demo-prompt.txt
spec=embedded:host:64M
for m in $model $mla_model; do
	n=$(basename $m .kvm)
	gen --model $m --prompt-file $prompt -n 700 >"$dir/want"
	spec=unix:$sock
	same "$n cold, daemon" "$dir/want" gen --model $m --prompt-file $prompt -n 700 --stats
	cp "$dir/err" "$dir/cold"
	same "$n with a prefix hit, daemon" "$dir/want" gen --model $m --prompt-file $prompt -n 700 --stats
	hit=$(field prefix_hit_tokens "$dir/err") asked=$(field prompt_tokens "$dir/err")
	verdict "$n: the first run hit nothing" [ "$(field prefix_hit_tokens "$dir/cold")" = 0 ]
	verdict "$n: the second hit all of $asked prompt tokens but the last ($hit)" [ "$hit" = $((asked - 1)) ]
	for dtype in f8 i8; do	# scales of tokens: near enough that no word of these changes
		same "$n $dtype" "$dir/want" gen --model $m --prompt-file $prompt -n 700 --cache-dtype $dtype
	done
	for p in 1 7 16 61 128; do
		same "$n pages of $p tokens" "$dir/want" gen --model $m --prompt-file $prompt -n 700 --page-tokens $p
	done
	spec=embedded:host:64M
done

# Two engines compute the same prompt at the same moment: one node each page, both texts right.
spec=unix:$sock
gen --model $model --prompt-file $prompt -n 600 --page-tokens 32 >"$dir/a" &
a=$!
gen --model $model --prompt-file $prompt -n 600 --page-tokens 32 >"$dir/b" &
b=$!
wait $a && wait $b
verdict "two at the same moment: both right" cmp "$dir/a" "$dir/b"
gen --model $model --prompt-file $prompt -n 600 --page-tokens 32 >"$dir/c"
verdict "two at the same moment: as one alone" cmp "$dir/a" "$dir/c"
# One node a page: the cache of 32-token pages holds the 600 tokens once.
ctl caches --json >"$dir/caches"
once=$(awk '/"page_tokens": 32,/ {hit=1} hit && /"cached_tokens"/ {gsub(/[^0-9]/, ""); print; hit=0}' "$dir/caches")
verdict "three engines, 600 tokens: cached once ($once)" [ "$once" = 600 ]
verdict "self-check" eval "ctl check >/dev/null"
verdict "kvd stops cleanly" stop_kvd
exit $bad
