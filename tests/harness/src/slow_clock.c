/* A clock of a real server that goes slower than the machine's, so that what a test does takes next to no time by it. */
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

/* The moment from which on it is slow, in microseconds since 1970, or 0 if it is not; and how many times slower it is. */
static const volatile int64_t *since;
static int64_t slowness;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("LOCK_SLOW_CLOCK"), *times = getenv("LOCK_SLOWNESS");
  int file = path && times ? open(path, O_RDONLY) : -1;
  void *at = file < 0 ? MAP_FAILED : mmap(0, sizeof *since, PROT_READ, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) abort();
  since = at;
  slowness = atoll(times);
}

/* Returns the time since 1970, in microseconds. */
static int64_t now(void) {
  struct timespec time;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &time);
  int64_t real = time.tv_sec * 1000000LL + time.tv_nsec / 1000, from = *since;
  return from && real > from ? from + (real - from) / slowness : real;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  int64_t at = now();
  time->tv_sec = at / 1000000;
  time->tv_usec = at % 1000000;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  if (clock != CLOCK_REALTIME) return (int)syscall(SYS_clock_gettime, clock, time);
  int64_t at = now();
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
