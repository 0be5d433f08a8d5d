/* Makes system calls of a process fail, or does something to a file in the middle of them; loaded with LD_PRELOAD.

   Nothing happens before `fault_arm`. Then the calls of the kinds in `kinds` on files at or below `place` (where it ends in
   *, on paths that begin so) are counted, and those from number `first` on, `count` of them, fail with `error`, or are
   preceded by `action`. Reads of mapped memory are no calls: a disk that fails there ends the process with SIGBUS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ = 1, WRITE = 2, SYNC = 4, OPEN_TO_READ = 8, OPEN_TO_WRITE = 16, RENAME = 32 };

static char armed_place[PATH_MAX], action_from[PATH_MAX], action_to[PATH_MAX], unsynced[PATH_MAX];
static int armed_kinds, armed_error, action, action_mode;
static long armed_first, armed_count;
static atomic_long seen, fired;
static atomic_int renamed_unsynced;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void fault_arm(const char *place, int kinds, int error, long first, long count, int what, const char *from, const char *to,
               int mode) {
    snprintf(armed_place, sizeof armed_place, "%s", place);
    snprintf(action_from, sizeof action_from, "%s", from);
    snprintf(action_to, sizeof action_to, "%s", to);
    armed_error = error, armed_first = first, armed_count = count, action = what, action_mode = mode;
    seen = fired = 0;
    armed_kinds = kinds;
}
long fault_seen(void) { return seen; }
long fault_fired(void) { return fired; }
int fault_renamed_unsynced(void) { return renamed_unsynced; }

/* Write the bytes of one file over those of another, which keeps its times. */
static void overwrite(void) {
    char bytes[1 << 16];
    struct stat facts;
    int from = REAL(open)(action_from, O_RDONLY), to = REAL(open)(action_to, O_WRONLY);
    ssize_t length;
    fstat(to, &facts);
    while ((length = REAL(read)(from, bytes, sizeof bytes)) > 0)
        if (REAL(write)(to, bytes, length) != length) break;
    struct timespec times[2] = {facts.st_atim, facts.st_mtim};
    futimens(to, times);
    close(from), close(to);
}

static void act(void) {
    if (action == 'r') REAL(rename)(action_from, action_to);
    if (action == 'u') unlink(action_to);
    if (action == 't' && truncate(action_to, action_mode)) perror("truncate");
    if (action == 'c') chmod(action_to, action_mode);
    if (action == 'o') overwrite();
}

static int below(const char *path) {
    size_t length = strlen(armed_place);
    if (length && armed_place[length - 1] == '*') return !strncmp(path, armed_place, length - 1);
    return !strncmp(path, armed_place, length) && (path[length] == 0 || path[length] == '/');
}

/* Whether this call fails; errno is set then. */
static int fails(int kind, const char *path) {
    if (!below(path)) return 0;
    long number = ++seen;
    if (number < armed_first || number - armed_first >= armed_count) return 0;
    ++fired;
    if (action) {
        act();
        return 0;
    }
    if (kind == SYNC) snprintf(unsynced, sizeof unsynced, "%s", path);
    errno = armed_error;
    return 1;
}

static int fails_at(int kind, int descriptor) {
    if (!(armed_kinds & kind)) return 0;
    char link[32], path[PATH_MAX];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = before;
    if (length <= 0) return 0;
    path[length] = 0;
    return fails(kind, path);
}

static int fails_to_open(const char *path, int flags) {
    int kind = (flags & O_ACCMODE) == O_RDONLY ? OPEN_TO_READ : OPEN_TO_WRITE;
    return path[0] == '/' && (armed_kinds & kind) && fails(kind, path);
}

#define WRAP(result, name, kind, declared, given)            \
    result name declared {                                   \
        if (fails_at(kind, descriptor)) return -1;           \
        return REAL(name) given;                             \
    }
WRAP(ssize_t, read, READ, (int descriptor, void *at, size_t size), (descriptor, at, size))
WRAP(ssize_t, pread, READ, (int descriptor, void *at, size_t size, off_t where), (descriptor, at, size, where))
WRAP(ssize_t, pread64, READ, (int descriptor, void *at, size_t size, off64_t where), (descriptor, at, size, where))
WRAP(ssize_t, readv, READ, (int descriptor, const struct iovec *at, int count), (descriptor, at, count))
WRAP(ssize_t, write, WRITE, (int descriptor, const void *at, size_t size), (descriptor, at, size))
WRAP(ssize_t, pwrite, WRITE, (int descriptor, const void *at, size_t size, off_t where), (descriptor, at, size, where))
WRAP(ssize_t, pwrite64, WRITE, (int descriptor, const void *at, size_t size, off64_t where), (descriptor, at, size, where))
WRAP(ssize_t, writev, WRITE, (int descriptor, const struct iovec *at, int count), (descriptor, at, count))
WRAP(int, fsync, SYNC, (int descriptor), (descriptor))
WRAP(int, fdatasync, SYNC, (int descriptor), (descriptor))

#define WRAP_OPEN(name, declared, given)                     \
    int name declared {                                      \
        mode_t mode = 0;                                     \
        if (flags & (O_CREAT | O_TMPFILE)) {                 \
            va_list more;                                    \
            va_start(more, flags);                           \
            mode = va_arg(more, mode_t);                     \
            va_end(more);                                    \
        }                                                    \
        if (fails_to_open(path, flags)) return -1;           \
        return REAL(name) given;                             \
    }
WRAP_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
WRAP_OPEN(openat, (int directory, const char *path, int flags, ...), (directory, path, flags, mode))
WRAP_OPEN(openat64, (int directory, const char *path, int flags, ...), (directory, path, flags, mode))

int rename(const char *from, const char *to) {
    if (unsynced[0] && !strcmp(from, unsynced)) renamed_unsynced = 1;
    if ((armed_kinds & RENAME) && fails(RENAME, from)) return -1;
    return REAL(rename)(from, to);
}
