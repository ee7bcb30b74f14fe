// SPDX-License-Identifier: Apache-2.0
/* standalone - a main for fuzz targets where there is no libFuzzer
 *
 * Model:      runs the files given, or random inputs for a while: fresh bytes, or an earlier input
 *             with some bytes changed. The input that kills it is written to crash-SEED-N.
 * Errors:     as the target: it aborts.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_INPUT	16384
#define KEPT		64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static uint8_t input[MAX_INPUT];
static size_t input_len;
static char crash_name[64];
static uint64_t rng;

static uint64_t next(void)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15ull;	/* splitmix64 */

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static void on_crash(int sig)
{
	int fd = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd >= 0 && write(fd, input, input_len) == (ssize_t)input_len)
		fprintf(stderr, "signal %d: input written to %s\n", sig, crash_name);
	signal(sig, SIG_DFL);
	raise(sig);
}

static int run_file(const char *name)
{
	FILE *file = fopen(name, "rb");

	if (!file) {
		perror(name);
		return 1;
	}
	input_len = fread(input, 1, sizeof(input), file);
	fclose(file);
	LLVMFuzzerTestOneInput(input, input_len);
	return 0;
}

static void make_input(uint8_t kept[KEPT][MAX_INPUT], size_t *kept_len)
{
	uint32_t k = (uint32_t)next() % KEPT;

	if (next() % 4 == 0 || !kept_len[k]) {
		input_len = 64 + next() % (MAX_INPUT - 64);
		for (size_t i = 0; i < input_len; i++)
			input[i] = (uint8_t)(next() >> 32);
	} else {
		input_len = kept_len[k];
		memcpy(input, kept[k], input_len);
		for (uint64_t n = 1 + next() % 16; n > 0; n--)
			input[next() % input_len] = (uint8_t)(next() >> 32);
		if (next() % 4 == 0)
			input_len = 1 + next() % input_len;
	}
	if (next() % 4 == 0) {
		memcpy(kept[k], input, input_len);
		kept_len[k] = input_len;
	}
}

static void run_random(uint64_t seed, long seconds)
{
	static uint8_t kept[KEPT][MAX_INPUT];
	static size_t kept_len[KEPT];
	time_t end = time(NULL) + seconds;
	uint64_t n = 0;

	rng = seed;
	while (time(NULL) < end) {
		make_input(kept, kept_len);
		snprintf(crash_name, sizeof(crash_name), "crash-%" PRIu64 "-%" PRIu64, seed, n++);
		LLVMFuzzerTestOneInput(input, input_len);
	}
	printf("%" PRIu64 " inputs in %ld s, seed %" PRIu64 ": no failure\n", n, seconds, seed);
}

int main(int argc, char **argv)
{
	uint64_t seed = 1;
	long seconds = 0;
	int rc = 0;

	signal(SIGABRT, on_crash);
	signal(SIGSEGV, on_crash);
	signal(SIGBUS, on_crash);
	signal(SIGFPE, on_crash);
	snprintf(crash_name, sizeof(crash_name), "crash-file");
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--seconds") && i + 1 < argc) {
			seconds = strtol(argv[++i], NULL, 0);
		} else if (!strcmp(argv[i], "--seed") && i + 1 < argc) {
			seed = strtoull(argv[++i], NULL, 0);
		} else if (argv[i][0] == '-') {
			printf("usage: %s [--seconds N] [--seed S] [FILE...]\n", argv[0]);
			return strcmp(argv[i], "--help") != 0 ? 2 : 0;
		} else {
			rc |= run_file(argv[i]);
		}
	}
	if (seconds)
		run_random(seed, seconds);
	return rc;
}
