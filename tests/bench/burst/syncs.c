/* Counts a program's calls of fsync and fdatasync without slowing it down. Loaded in front of the C library; the
 * count is the 64-bit number at the beginning of the file that SYNCS_FILE names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

static _Atomic uint64_t *count;
static int (*next_fsync)(int);
static int (*next_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
  next_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  next_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  int file = open(getenv("SYNCS_FILE"), O_RDWR);
  count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (count == MAP_FAILED) {
    abort();
  }
}

int fsync(int file) {
  atomic_fetch_add(count, 1);
  return next_fsync(file);
}

int fdatasync(int file) {
  atomic_fetch_add(count, 1);
  return next_fdatasync(file);
}
