#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the demo models of kvgen on stories from grammar.py and write a .kvm file.

    train.py --kind mha --out ../models/stories-mha.kvm
    train.py --kind mla --out ../models/stories-mla.kvm

mha is a Llama-style model (RMSNorm, RoPE on adjacent pairs, SwiGLU, tied embeddings, no biases).
mla is its twin with DeepSeek's attention: a normed latent and one roped key shared by all heads.
The same options give the same data and the same batches. ../models/README.md has the file format.
"""

import argparse
import math
import random
import struct
import time
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import grammar
import tokenizer

DIM, HIDDEN, LAYERS, HEADS, HEAD_DIM = 96, 256, 4, 4, 32
RANK, ROPE, NOPE, V_DIM = 48, 16, 32, 32
VOCAB, MAX_POS, THETA, EPS = 512, 1024, 10000.0, 1e-5
GQA, MLA, BF16 = 1, 2, 1


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.weight


def rope_table(width):
    freq = THETA ** (-torch.arange(0, width, 2).float() / width)
    angle = torch.outer(torch.arange(MAX_POS).float(), freq)
    return angle.cos(), angle.sin()


def rope(x, table):
    """Rotate the pairs (0,1), (2,3), ... of the last axis of x[batch, head, pos, width]."""
    cos, sin = (t[:x.shape[2]] for t in table)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def linear(n_in, n_out):
    return nn.Linear(n_in, n_out, bias=False)


class MHA(nn.Module):
    def __init__(self, kv_heads=HEADS):
        super().__init__()
        self.kv_heads = kv_heads
        self.wq = linear(DIM, HEADS * HEAD_DIM)
        self.wk = linear(DIM, kv_heads * HEAD_DIM)
        self.wv = linear(DIM, kv_heads * HEAD_DIM)
        self.wo = linear(HEADS * HEAD_DIM, DIM)
        self.table = rope_table(HEAD_DIM)

    def forward(self, x):
        b, t, _ = x.shape
        q = rope(self.wq(x).view(b, t, HEADS, HEAD_DIM).transpose(1, 2), self.table)
        k = rope(self.wk(x).view(b, t, self.kv_heads, HEAD_DIM).transpose(1, 2), self.table)
        v = self.wv(x).view(b, t, self.kv_heads, HEAD_DIM).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                             enable_gqa=self.kv_heads != HEADS)
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))


class MLAttention(nn.Module):
    """Unabsorbed, as trained; kvgen absorbs w_uk into the query and w_uv into the output."""

    def __init__(self):
        super().__init__()
        self.wq = linear(DIM, HEADS * (NOPE + ROPE))
        self.w_dkv = linear(DIM, RANK + ROPE)
        self.kv_norm = RMSNorm(RANK)
        self.w_uk = linear(RANK, HEADS * NOPE)
        self.w_uv = linear(RANK, HEADS * V_DIM)
        self.wo = linear(HEADS * V_DIM, DIM)
        self.table = rope_table(ROPE)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, HEADS, NOPE + ROPE).transpose(1, 2)
        q = torch.cat((q[..., :NOPE], rope(q[..., NOPE:], self.table)), -1)
        c, k_pe = self.w_dkv(x).split((RANK, ROPE), -1)
        c = self.kv_norm(c)
        k_pe = rope(k_pe.unsqueeze(1), self.table).expand(-1, HEADS, -1, -1)
        k = torch.cat((self.w_uk(c).view(b, t, HEADS, NOPE).transpose(1, 2), k_pe), -1)
        v = self.w_uv(c).view(b, t, HEADS, V_DIM).transpose(1, 2)
        v = F.pad(v, (0, NOPE + ROPE - V_DIM))  # the fast attention wants equal widths
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)[..., :V_DIM]
        return self.wo(out.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.attn_norm = RMSNorm(DIM)
        self.attn = MHA() if kind == "mha" else MLAttention()
        self.ffn_norm = RMSNorm(DIM)
        self.w1, self.w2, self.w3 = linear(DIM, HIDDEN), linear(HIDDEN, DIM), linear(DIM, HIDDEN)

    def forward(self, x):
        x = x + self.attn(self.attn_norm(x))
        h = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(kind) for _ in range(LAYERS))
        self.norm = RMSNorm(DIM)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                last = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(p, std=0.07 / math.sqrt(2 * LAYERS) if last else 0.07)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)

    def loss(self, ids):
        return F.cross_entropy(self(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def make_data(docs, seed, tok):
    """The tokenizer (learnt unless given), the token stream, and where each document begins."""
    rng = random.Random(seed)
    texts = [grammar.document(rng) for _ in range(docs)]
    tok = tok or tokenizer.learn(texts[:2000], VOCAB)
    ids = [tok.encode(t) for t in texts]
    starts = np.cumsum([0] + [len(i) for i in ids[:-1]])
    return tok, torch.tensor(np.concatenate(ids).astype(np.int64)), starts


def batch(stream, starts, rng, width, rows):
    """Windows that begin at a BOS, as generation does; documents follow each other in them."""
    usable = starts[:np.searchsorted(starts, len(stream) - width - 1)]
    return torch.stack([stream[s:s + width + 1] for s in rng.choice(usable, rows)])


def train(model, stream, starts, args):
    rng = np.random.default_rng(args.seed)
    decay = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1},
                             {"params": plain, "weight_decay": 0.0}],
                            lr=args.lr, betas=(0.9, 0.98), fused=True)
    loss_of = torch.compile(model.loss, dynamic=False) if args.compile else model.loss
    begin, mean = time.monotonic(), None
    for step in range(args.steps):
        spent = (time.monotonic() - begin) / 60
        done = max(step / args.steps, spent / args.minutes if args.minutes else 0)
        if done >= 1:
            break
        for group in opt.param_groups:
            group["lr"] = args.lr * min(1, (step + 1) / 100) * (1 - done)
        width = MAX_POS if step % 4 == 3 else 256
        loss = loss_of(batch(stream, starts, rng, width, args.tokens // width))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        if step % 50 == 0 or step + 1 == args.steps:
            print(f"step {step} loss {mean:.4f} minutes {spent:.1f}", flush=True)


@torch.no_grad()
def evaluate(model, args):
    """Loss per token on documents that the training never saw."""
    rng = random.Random(args.seed + 1)
    rows = [[i for _ in range(12) for i in args.tok.encode(grammar.document(rng))][:MAX_POS + 1]
            for _ in range(16)]
    return model.loss(torch.tensor(rows)).item()


@torch.no_grad()
def generate(model, tok, prompt, limit):
    ids = tok.encode(prompt)
    while len(ids) < limit:
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == tokenizer.BOS:
            break
    return tok.decode(ids)


def tensors(model):
    """The order of the file: embedding, then layer by layer, then the last norm."""
    yield model.embed.weight
    for b in model.blocks:
        a = b.attn
        yield b.attn_norm.weight
        if isinstance(a, MHA):
            yield from (a.wq.weight, a.wk.weight, a.wv.weight, a.wo.weight)
        else:
            yield from (a.wq.weight, a.w_dkv.weight, a.kv_norm.weight, a.w_uk.weight,
                        a.w_uv.weight, a.wo.weight)
        yield from (b.ffn_norm.weight, b.w1.weight, b.w2.weight, b.w3.weight)
    yield model.norm.weight


@torch.no_grad()
def round_weights(model):
    for p in model.parameters():
        p.copy_(p.bfloat16().float())


def header(kind):
    """The first 72 bytes of the file."""
    gqa = (HEADS, HEAD_DIM, 0, 0, 0, 0)
    mla = (0, 0, RANK, ROPE, NOPE, V_DIM)
    return struct.pack("<4s14I2fI", b"KVM1", 1, GQA if kind == "mha" else MLA, BF16,
                       DIM, HIDDEN, LAYERS, HEADS, *(gqa if kind == "mha" else mla),
                       VOCAB, THETA, EPS, MAX_POS)


@torch.no_grad()
def load(path, model, kind):
    """Weights into model; returns the tokenizer."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:72] != header(kind) or struct.pack("<I", zlib.crc32(data[:-4])) != data[-4:]:
        raise SystemExit(f"{path}: is damaged, or no {kind} model of this script's dimensions")
    at = 128 + struct.unpack_from("<I", data, 72)[0]
    tok = tokenizer.parse(data[128:at])
    at += -at % 64
    for t in tensors(model):
        raw = bytearray(data[at:at + 2 * t.numel()])
        t.copy_(torch.frombuffer(raw, dtype=torch.bfloat16).view(t.shape))
        at += len(raw)
    return tok


def export(path, model, kind, tok):
    words = tok.dump()
    data = header(kind) + struct.pack("<I", len(words))
    data = data.ljust(128, b"\0") + words
    data += b"\0" * (-len(data) % 64)
    for t in tensors(model):
        data += t.detach().bfloat16().contiguous().view(torch.int16).numpy().tobytes()
    with open(path, "wb") as f:
        f.write(data + struct.pack("<I", zlib.crc32(data)))


def options():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kind", choices=("mha", "mla"), required=True)
    p.add_argument("--out", required=True, help="the .kvm file to write")
    p.add_argument("--init", help="a .kvm file to go on from (weights and tokenizer)")
    p.add_argument("--steps", type=int, default=5000, help="optimizer steps (default 5000)")
    p.add_argument("--minutes", type=float, default=0,
                   help="stop after this long, with the learning rate already at 0; the result "
                        "then depends on the machine's speed (default: no limit)")
    p.add_argument("--tokens", type=int, default=4096, help="tokens a step (default 4096)")
    p.add_argument("--docs", type=int, default=40000, help="training documents (default 40000)")
    p.add_argument("--lr", type=float, default=3e-3, help="peak learning rate (default 3e-3)")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--compile", action="store_true", help="use torch.compile (about 1.5x)")
    p.add_argument("--threads", type=int, default=2)
    return p.parse_args()


def main():
    args = options()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = Model(args.kind)
    tok = load(args.init, model, args.kind) if args.init else None
    args.tok, stream, starts = make_data(args.docs, args.seed, tok)
    nr = sum(p.numel() for p in model.parameters())
    print(f"{args.kind}: {nr} parameters, {len(stream)} tokens in {len(starts)} documents",
          flush=True)
    train(model, stream, starts, args)
    round_weights(model)
    print(f"final loss {evaluate(model, args):.4f} (unseen documents, bf16 weights)")
    export(args.out, model, args.kind, args.tok)
    for prompt in ("", "Once upon a time, there was a brave girl named"):
        print(generate(model, args.tok, prompt, 300) + "\n---")


if __name__ == "__main__":
    main()
