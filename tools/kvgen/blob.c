/* SPDX-License-Identifier: Apache-2.0 */
#include "blob.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int check_stat(const struct stat *st, const char *path, size_t max, struct fault *f)
{
	if (!S_ISREG(st->st_mode))
		return fault_set(f, -EINVAL, "%s: is not a regular file: name the file itself",
				 path);
	if (st->st_size == 0)
		return fault_set(f, -EINVAL, "%s: is empty: fetch or train it again", path);
	if ((uint64_t)st->st_size > max)
		return fault_set(f, -EINVAL,
				 "%s: has %lld bytes, more than the %zu that kvgen loads: "
				 "use a smaller model",
				 path, (long long)st->st_size, max);
	return 0;
}

/* The file may shrink while it is read: what arrives counts. */
static int read_all(int fd, struct blob *b, size_t size)
{
	while (b->len < size) {
		ssize_t n = read(fd, b->data + b->len, size - b->len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		b->len += (size_t)n;
	}
	return 0;
}

int blob_read(struct blob *b, const char *path, size_t max, struct fault *f)
{
	/* O_NONBLOCK: opening a FIFO must not wait for its writer. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	int err;

	memset(b, 0, sizeof(*b));
	if (fd < 0)
		return fault_set(f, -errno, "%s: cannot open: %s: check the path", path,
				 strerror(errno));
	err = fstat(fd, &st) ? fault_set(f, -errno, "%s: fstat: %s", path, strerror(errno))
			     : check_stat(&st, path, max, f);
	if (!err) {
		b->data = malloc((size_t)st.st_size);
		err = b->data ? read_all(fd, b, (size_t)st.st_size) : -ENOMEM;
		if (err)
			fault_set(f, err, "%s: cannot read: %s", path, strerror(-err));
	}
	close(fd);
	if (err)
		blob_free(b);
	return err;
}

void blob_free(struct blob *b)
{
	free(b->data);
	memset(b, 0, sizeof(*b));
}

const uint8_t *cut_take(struct cut *c, size_t n)
{
	const uint8_t *at = c->at;

	if (c->broken || n > c->left) {
		c->broken = 1;
		return NULL;
	}
	c->at += n;
	c->left -= n;
	return at;
}

uint32_t cut_u32(struct cut *c)
{
	const uint8_t *p = cut_take(c, 4);

	if (!p)
		return 0;
	return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

float cut_f32(struct cut *c)
{
	uint32_t bits = cut_u32(c);
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}
