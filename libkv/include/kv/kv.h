/* SPDX-License-Identifier: Apache-2.0 */
/* kv.h - all of libkv; an engine developer includes this one
 *
 *	pool.h    connect, errors, events        layout.h  what a page holds, its bytes
 *	cache.h   one model's KV                 page.h    raw pages, for own block tables
 *	seq.h     sequences: match, append, fork attn.h    decode attention on the pages
 *	rope.h    rotary embedding, YaRN         mla.h     a whole MLA layer from its weights
 */
#ifndef KV_KV_H
#define KV_KV_H

#include <kv/pool.h>
#include <kv/layout.h>
#include <kv/cache.h>
#include <kv/page.h>
#include <kv/seq.h>
#include <kv/attn.h>
#include <kv/rope.h>
#include <kv/mla.h>

#endif
