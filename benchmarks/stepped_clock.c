// Loaded before libc: the wall clock is off by as many seconds as the file WATTDOCK_SOAK_STEP holds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
static volatile long *step_s;
__attribute__((constructor)) static void map(void) {
  int file = open(getenv("WATTDOCK_SOAK_STEP"), O_RDONLY);
  step_s = mmap(0, sizeof *step_s, PROT_READ, MAP_SHARED, file, 0);
}
int clock_gettime(clockid_t id, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int failed = real(id, at);
  if (id == CLOCK_REALTIME && step_s != MAP_FAILED) at->tv_sec += *step_s;
  return failed;
}
