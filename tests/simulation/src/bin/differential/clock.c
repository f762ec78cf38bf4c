/* The clock of a real server: it reads its time out of a file, so that a test decides when it goes on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* In microseconds: the time since 1970, and the one that only goes forward, or 0 for the machine's own. */
static volatile int64_t *now;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("LOCK_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  void *at = file < 0 ? MAP_FAILED : mmap(0, 2 * sizeof *now, PROT_READ, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) abort();
  now = at;
  /* The server ends with the test, however that ends. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  (void)zone;
  int64_t at = now[0];
  time->tv_sec = at / 1000000;
  time->tv_usec = at % 1000000;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  int64_t at = clock == CLOCK_MONOTONIC ? now[1] : 0;
  if (!at) return (int)syscall(SYS_clock_gettime, clock, time);
  time->tv_sec = at / 1000000;
  time->tv_nsec = at % 1000000 * 1000;
  return 0;
}

/* Valkey counts the processor's ticks if it can read how many there are in a second. */
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
