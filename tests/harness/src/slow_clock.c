/* A clock of a real server that goes slower than the machine's, so that what a test does takes next to no time by it. */
#include "clock.h"

/* The moment from which on it is slow, in microseconds since 1970, or 0 if it is not; and how many times slower it is. */
static const volatile int64_t *since;
static int64_t slowness;

__attribute__((constructor)) static void begin(void) {
  const char *times = getenv("LOCK_SLOWNESS");
  if (!times) abort();
  since = map("LOCK_SLOW_CLOCK", sizeof *since);
  slowness = atoll(times);
}

static int64_t now(clockid_t clock) {
  if (clock != CLOCK_REALTIME) return 0;
  struct timespec time;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &time);
  int64_t real = time.tv_sec * 1000000LL + time.tv_nsec / 1000, from = *since;
  return from && real > from ? from + (real - from) / slowness : real;
}
