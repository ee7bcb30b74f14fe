// SPDX-License-Identifier: Apache-2.0
/* standalone - a main for fuzz targets where there is no libFuzzer
 *
 *	TARGET [--seconds N] [--seed S] [--artifacts PREFIX] [FILE|FOLDER...]
 *
 * Model:      runs the files given, then, for N seconds, mutations of them and fresh bytes. The
 *             input that kills it is written to PREFIXcrash-SEED-N (PREFIXcrash-file: a given one).
 * Errors:     as the target: it aborts, or a sanitizer ends it.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_BYTES	16384
#define KEPT		256

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(SANITIZED)
void __sanitizer_set_death_callback(void (*)(void));
#else
#define NO_SANITIZER 1
#endif

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static uint8_t input[MAX_BYTES], kept[KEPT][MAX_BYTES];
static size_t input_len, kept_len[KEPT];
static unsigned int nr_files;
static const char *prefix = "";
static char crash_name[512];
static uint64_t rng, inputs;

static uint64_t next(void)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15ull;	/* splitmix64 */

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static void keep_crash(void)
{
	int fd = open(crash_name, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	if (fd >= 0 && write(fd, input, input_len) == (ssize_t)input_len)
		dprintf(2, "input written to %s\n", crash_name);
}

static void on_crash(int sig)
{
	dprintf(2, "signal %d\n", sig);
	keep_crash();
	signal(sig, SIG_DFL);
	raise(sig);
}

/* A sanitizer has handlers of its own for all but abort(), with better reports. */
static void catch_crashes(void)
{
	signal(SIGABRT, on_crash);
#ifdef NO_SANITIZER
	signal(SIGSEGV, on_crash);
	signal(SIGBUS, on_crash);
	signal(SIGFPE, on_crash);
#else
	__sanitizer_set_death_callback(keep_crash);
#endif
}

static void run_input(void)
{
	inputs++;
	LLVMFuzzerTestOneInput(input, input_len);
}

static int run_path(const char *name)
{
	struct dirent *entry;
	DIR *dir = opendir(name);
	char path[4096];
	FILE *file;
	int rc = 0;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.') {
			snprintf(path, sizeof(path), "%s/%s", name, entry->d_name);
			rc |= run_path(path);
		}
	if (dir) {
		closedir(dir);
		return rc;
	}
	file = fopen(name, "rb");
	if (!file) {
		perror(name);
		return 1;
	}
	input_len = fread(input, 1, sizeof(input), file);
	fclose(file);
	if (nr_files < KEPT) {
		memcpy(kept[nr_files], input, input_len);
		kept_len[nr_files++] = input_len;
	}
	run_input();
	return 0;
}

static void make_input(void)
{
	uint32_t k = (uint32_t)next() % KEPT;

	if (nr_files && next() % 4)
		k %= nr_files;
	if (next() % 8 == 0 || !kept_len[k]) {
		input_len = 64 + next() % (MAX_BYTES - 64);
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
	/* What was given stays. */
	if (next() % 4 == 0 && k >= nr_files) {
		memcpy(kept[k], input, input_len);
		kept_len[k] = input_len;
	}
}

static void run_random(uint64_t seed, long seconds)
{
	time_t end = time(NULL) + seconds;

	rng = seed;
	while (time(NULL) < end) {
		make_input();
		snprintf(crash_name, sizeof(crash_name), "%scrash-%" PRIu64 "-%" PRIu64, prefix,
			 seed, inputs);
		run_input();
	}
}

static int usage(const char *name, int rc)
{
	fprintf(rc ? stderr : stdout,
		"usage: %s [--seconds N] [--seed S] [--artifacts PREFIX] [FILE|FOLDER...]\n", name);
	return rc;
}

int main(int argc, char **argv)
{
	uint64_t seed = 1;
	long seconds = 0;
	int rc = 0, i;

	for (i = 1; i < argc && argv[i][0] == '-'; i += 2) {
		if (!strcmp(argv[i], "--help"))
			return usage(argv[0], 0);
		if (i + 1 == argc)
			return usage(argv[0], 2);
		if (!strcmp(argv[i], "--seconds"))
			seconds = strtol(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--seed"))
			seed = strtoull(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--artifacts"))
			prefix = argv[i + 1];
		else
			return usage(argv[0], 2);
	}
	catch_crashes();
	snprintf(crash_name, sizeof(crash_name), "%scrash-file", prefix);
	for (; i < argc; i++)
		rc |= run_path(argv[i]);
	if (seconds)
		run_random(seed, seconds);
	printf("%" PRIu64 " inputs, seed %" PRIu64 "\n", inputs, seed);
	return rc;
}
