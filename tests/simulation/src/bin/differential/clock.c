/* The clock of a real server: it reads its time out of a file, so that a test decides when it goes on. */
#include "../../../../harness/src/clock.h"

#include <signal.h>
#include <sys/prctl.h>

/* In microseconds: the time since 1970, and the one that only goes forward, or 0 for the machine's own. */
static const volatile int64_t *times;

__attribute__((constructor)) static void begin(void) {
  times = map("LOCK_CLOCK", 2 * sizeof *times);
  /* The server ends with the test, however that ends. */
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static int64_t now(clockid_t clock) {
  return clock == CLOCK_REALTIME ? times[0] : clock == CLOCK_MONOTONIC ? times[1] : 0;
}
