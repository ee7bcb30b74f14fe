/* SPDX-License-Identifier: Apache-2.0 */
/* dispatch - one opcode table: a client's 64-byte entry becomes an mm_request, a reply a cqe
 *
 * Model:      stateless but for the client's identity. The daemon calls it for each ring entry, the
 *             in-process pool for each call: one parser, one set of checks, one fuzz target.
 * Invariants: every byte of the entry and of the data area is hostile: the entry is already the
 *             caller's private copy; input is copied out of the data area once, into scratch, and
 *             only the copy is checked and used; a pool inside the process, whose data area nobody
 *             else writes, gives the input's own place as scratch. Output is bounded by out_bytes.
 * Ownership:  the caller keeps struct dispatch_pending from dispatch_submit to dispatch_reply (it
 *             is the cookie's meaning); scratch is the caller's, at least data_bytes long.
 * Context:    one thread; never blocks.
 * Errors:     a bad entry is answered at once in the cqe (dispatch_submit returns 1).
 * See:        ipc/kv_abi.h, tests/fuzz/dispatch_fuzz.c
 */
#ifndef DISPATCH_H
#define DISPATCH_H

#include <stdint.h>
#include "kv_abi.h"
#include "srv/exec.h"

struct dispatch_client {
	uint32_t engine, member;
	bool lead;
	void *data;			/* the shared data area */
	uint64_t data_bytes;
	void *scratch;			/* private, data_bytes; or where the input lies: no copy */
	uint32_t batch_pages;
};

/* What is needed to answer when the reply comes. */
struct dispatch_pending {
	uint64_t user_data;
	uint64_t out_off;
	uint32_t out_bytes;
	uint8_t op;
};

/* 0: submitted to mm, the reply carries cookie; 1: *cqe is the answer already; -EAGAIN: mm is
 * full, keep the entry and try later. */
int dispatch_submit(struct exec *, const struct dispatch_client *, const struct kv_sqe *,
		    uint64_t cookie, uint64_t now_ns, struct dispatch_pending *, struct kv_cqe *);

/* Turn mm's reply into a cqe, writing its arrays into the client's data area. */
void dispatch_reply(const struct dispatch_client *, const struct dispatch_pending *,
		    const struct mm_reply *, struct kv_cqe *);

/* One line for people: what was refused, the limit, the way out. Shared by daemon and embed. */
const char *dispatch_reason_text(uint32_t reason);
const char *dispatch_op_name(uint32_t op);	/* "ALLOC"; for logs and tests */

#endif
