/* SPDX-License-Identifier: Apache-2.0 */
/* digest - numbers into a SHA-256, little-endian on any host: engines compare digests */
#ifndef DIGEST_H
#define DIGEST_H

#include <sha2.h>
#include <stdint.h>

/* The low bytes of value, 8 at most. */
static inline void digest_le(SHA2_CTX *sha, uint64_t value, unsigned int bytes)
{
	uint8_t le[8];
	unsigned int i;

	for (i = 0; i < bytes; i++)
		le[i] = (uint8_t)(value >> 8 * i);
	SHA256Update(sha, le, bytes);
}

#endif
