/* SPDX-License-Identifier: Apache-2.0 */
/* sock - listening on a path, and who is at the other end
 *
 * Model:      sock_listen makes a SOCK_SEQPACKET socket at a path; sock_peer says who connected.
 * Invariants: a socket file that a live daemon answers on is never replaced; one that nobody
 *             answers on is (two daemons that start at once are told apart by a lock on the
 *             directory). Anything that is not a socket is left alone.
 * Ownership:  the caller closes fd and pidfd, and removes the path with sock_unlink.
 * Context:    startup, accept and stop; never blocks on a peer, and at most a second or so on who
 *             holds the directory's lock, which anybody can who may read it.
 * Errors:     -errno, with one line in err that names the path and the way out.
 * See:        tests/unit/io/sock_test.c
 */
#ifndef SOCK_H
#define SOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct sock_place {
	const char *path;
	mode_t mode;
	const char *group;	/* NULL or "": leave the group alone */
};

struct sock_peer {
	pid_t pid;		/* 0: the kernel cannot say (another pid namespace) */
	uid_t uid;
	gid_t gid;
	bool nobody;		/* uid is the overflow uid: some user our namespace does not map */
	int pidfd;		/* -1 only when pid is 0 and the kernel has no SO_PEERPIDFD */
};

int sock_listen(const struct sock_place *, char *err, size_t err_len);
/* Only if path is still fd's own socket and nobody holds the lock: a stale file does no harm. */
void sock_unlink(const char *path, int fd);

/* -ESRCH: the process that connected is gone, or its pid may have a new owner. */
int sock_peer(int fd, struct sock_peer *);

/* Start time of a process in clock ticks since boot; 0: no such process. */
uint64_t sock_start_time(pid_t pid);

#endif
