# SPDX-License-Identifier: Apache-2.0
"""A byte-level BPE vocabulary in the id layout of llama2.c's tokenizer.bin.

ids 0 <unk>, 1 BOS, 2 EOS, 3..258 the 256 bytes, 259.. merges in the order they were learnt;
a merge's score is minus its rank. Any byte string encodes, and decodes to itself.
"""

import collections
import re
import struct

BOS, BYTE0, MERGE0 = 1, 3, 259
CHUNK = re.compile(rb" ?[A-Za-z]+| ?[^A-Za-z\s]+|\s")


def learn(texts, vocab):
    """Pieces never cross a chunk, so text may be encoded chunk by chunk."""
    words = collections.Counter(c for t in texts for c in CHUNK.findall(t.encode()))
    split = {w: [bytes([b]) for b in w] for w in words}
    pieces = [b"<unk>", b"<s>", b"</s>"] + [bytes([b]) for b in range(256)]
    while len(pieces) < vocab:
        pairs = collections.Counter()
        for w, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[w]
        (a, b), _ = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))
        if a + b not in pieces:
            pieces.append(a + b)
        for w, parts in split.items():
            split[w] = join(parts, a + b)
    return Tokenizer(pieces)


def parse(data):
    """The inverse of Tokenizer.dump()."""
    pieces, at = [], 0
    while at < len(data):
        size = struct.unpack_from("<i", data, at + 4)[0]
        pieces.append(data[at + 8:at + 8 + size])
        at += 8 + size
    return Tokenizer(pieces)


def join(parts, piece):
    out, i = [], 0
    while i < len(parts):
        if i + 1 < len(parts) and parts[i] + parts[i + 1] == piece:
            out.append(piece)
            i += 2
        else:
            out.append(parts[i])
            i += 1
    return out


class Tokenizer:
    def __init__(self, pieces):
        self.pieces = pieces
        self.ids = {p: i for i, p in enumerate(pieces) if i >= BYTE0}
        self.cache = {}

    def encode_chunk(self, chunk):
        """Merge the adjacent pair with the best score, leftmost first, until none is left."""
        ids = [BYTE0 + b for b in chunk]
        while True:
            best = None
            for i in range(len(ids) - 1):
                m = self.ids.get(self.pieces[ids[i]] + self.pieces[ids[i + 1]])
                if m is not None and (best is None or m < best[0]):
                    best = (m, i)
            if best is None:
                return ids
            ids[best[1]:best[1] + 2] = [best[0]]

    def encode(self, text):
        out = [BOS]
        for chunk in CHUNK.findall(text.encode()):
            if chunk not in self.cache:
                self.cache[chunk] = self.encode_chunk(chunk)
            out += self.cache[chunk]
        return out

    def decode(self, ids):
        return b"".join(self.pieces[i] for i in ids if i >= BYTE0).decode(errors="replace")

    def dump(self):
        """The embedded form: per token float score, int32 length, bytes."""
        score = [0.0] * MERGE0 + [-float(i) for i in range(len(self.pieces) - MERGE0)]
        return b"".join(struct.pack("<fi", s, len(p)) + p for s, p in zip(score, self.pieces))
