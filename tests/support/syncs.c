/* Counts a program's calls of fsync and fdatasync without slowing it down, and slows them down or lets them fail where
 * that is asked for. Loaded in front of the C library; what it counts and what is asked for are the 64-bit numbers in
 * the file that SYNCS_FILE names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
  _Atomic uint64_t count;
  _Atomic uint64_t delay_us;
  _Atomic uint64_t error;
} *shared;
static int (*next_fsync)(int);
static int (*next_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
  next_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  next_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  int file = open(getenv("SYNCS_FILE"), O_RDWR);
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared == MAP_FAILED) {
    abort();
  }
}

static int sync_with(int (*next)(int), int file) {
  atomic_fetch_add(&shared->count, 1);
  uint64_t delay_us = atomic_load(&shared->delay_us);
  if (delay_us) {
    usleep(delay_us);
  }
  uint64_t error = atomic_load(&shared->error);
  if (error) {
    errno = (int)error;
    return -1;
  }
  return next(file);
}

int fsync(int file) { return sync_with(next_fsync, file); }

int fdatasync(int file) { return sync_with(next_fdatasync, file); }
