/* What the clocks of real servers in tests have in common. A server loads one of them before the C library, and gets its time from `now`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Returns the time by a clock in microseconds, or 0 for the machine's own. CLOCK_REALTIME counts from 1970. */
static int64_t now(clockid_t clock);

/* Maps so many bytes of the file whose path is in this variable of the environment. */
static void *map(const char *variable, size_t size) {
  const char *path = getenv(variable);
  int file = path ? open(path, O_RDONLY) : -1;
  void *at = file < 0 ? MAP_FAILED : mmap(0, size, PROT_READ, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) abort();
  return at;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  int64_t at = now(CLOCK_REALTIME);
  time->tv_sec = at / 1000000;
  time->tv_usec = at % 1000000;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int64_t at = now(clock);
  if (!at) return (int)syscall(SYS_clock_gettime, clock, time);
  time->tv_sec = at / 1000000;
  time->tv_nsec = at % 1000000 * 1000;
  return 0;
}

/* Valkey adds the processor's ticks to the time, if it can read how many there are in a second. */
FILE *fopen(const char *restrict path, const char *restrict mode) {
  static FILE *(*real)(const char *, const char *);
  if (strcmp(path, "/proc/cpuinfo") == 0) {
    errno = ENOENT;
    return 0;
  }
  if (!real) real = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
  return real(path, mode);
}

FILE *fopen64(const char *restrict path, const char *restrict mode) { return fopen(path, mode); }
