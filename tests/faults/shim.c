/* Faults of a file system, for whatever writes through libc: Python, pyarrow, safetensors, torch.

   cc -shared -fPIC -O2 -o shim.so shim.c -ldl;  LD_PRELOAD=./shim.so python ...

   Nothing happens in a process before it calls faults_arm. From then on every call that changes something below
   `below` is counted in a page that its children share, and the call number `nth` goes wrong as `mode` says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, ONCE, EVER, SHORT, SIGNAL };
#define MOST 65536

struct page {
    long seen, nth, hits;
    int mode, value; /* value: an errno, or a signal */
    char what[512];  /* the call that went wrong */
    char kinds[MOST]; /* of each call: o(pen) w(rite) s(ync) r(ename) l(ink) m(kdir) */
};

static struct page *page;
static char below[4096];

void faults_arm(struct page *shared, const char *folder) {
    snprintf(below, sizeof below, "%s/", folder);
    page = shared;
}

static int is_below(int folder, const char *path) {
    char full[8192], base[4096];
    if (path && path[0] == '/') return !strncmp(path, below, strlen(below));
    char link[64];
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, base, sizeof base - 1);
    if (size < 0) return 0;
    base[size] = 0;
    snprintf(full, sizeof full, "%s/%s", base, path ? path : "");
    return !strncmp(full, below, strlen(below));
}

/* 0: go on; 1: fail, errno is set; 2: do the half of it */
static int strike(char kind, int folder, const char *path) {
    int saved = errno;
    if (!page || !is_below(folder, path)) { errno = saved; return 0; }
    errno = saved;
    long number = __sync_add_and_fetch(&page->seen, 1);
    if (number <= MOST) page->kinds[number - 1] = kind;
    int now = number == page->nth || (page->mode == EVER && number > page->nth && kind != 's' && kind != 'r');
    if (page->mode == COUNT || !now) return 0;
    if (__sync_add_and_fetch(&page->hits, 1) == 1) {
        char link[64], name[400] = "";
        if (path) snprintf(name, sizeof name, "%s", path);
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t size = readlink(link, name, sizeof name - 1);
            name[size > 0 ? size : 0] = 0;
        }
        snprintf(page->what, sizeof page->what, "%c %s", kind, name);
    }
    errno = saved;
    if (page->mode == SHORT) return kind == 'w' ? 2 : 0;
    if (page->mode == SIGNAL) { kill(getpid(), page->value); return 0; }
    errno = page->value;
    return 1;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE(flags) mode_t mode = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) {
    REAL(open); MODE(flags);
    return WRITES(flags) && strike('o', AT_FDCWD, path) == 1 ? -1 : real(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    REAL(open64); MODE(flags);
    return WRITES(flags) && strike('o', AT_FDCWD, path) == 1 ? -1 : real(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    REAL(openat); MODE(flags);
    return WRITES(flags) && strike('o', folder, path) == 1 ? -1 : real(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    REAL(openat64); MODE(flags);
    return WRITES(flags) && strike('o', folder, path) == 1 ? -1 : real(folder, path, flags, mode);
}
FILE *fopen(const char *path, const char *how) {
    REAL(fopen);
    return strpbrk(how, "wa+") && strike('o', AT_FDCWD, path) == 1 ? NULL : real(path, how);
}
FILE *fopen64(const char *path, const char *how) {
    REAL(fopen64);
    return strpbrk(how, "wa+") && strike('o', AT_FDCWD, path) == 1 ? NULL : real(path, how);
}

#define HALF(count) (result == 2 && (count) > 1 ? (count) / 2 : (count))
ssize_t write(int file, const void *data, size_t count) {
    REAL(write);
    int result = strike('w', file, NULL);
    return result == 1 ? -1 : real(file, data, HALF(count));
}
ssize_t pwrite(int file, const void *data, size_t count, off_t at) {
    REAL(pwrite);
    int result = strike('w', file, NULL);
    return result == 1 ? -1 : real(file, data, HALF(count), at);
}
ssize_t pwrite64(int file, const void *data, size_t count, off64_t at) {
    REAL(pwrite64);
    int result = strike('w', file, NULL);
    return result == 1 ? -1 : real(file, data, HALF(count), at);
}
ssize_t writev(int file, const struct iovec *parts, int count) {
    REAL(writev);
    int result = strike('w', file, NULL);
    if (result == 2) return write(file, parts[0].iov_base, parts[0].iov_len > 1 ? parts[0].iov_len / 2 : parts[0].iov_len);
    return result == 1 ? -1 : real(file, parts, count);
}
ssize_t sendfile(int file, int from, off_t *at, size_t count) {
    REAL(sendfile);
    int result = strike('w', file, NULL);
    return result == 1 ? -1 : real(file, from, at, HALF(count));
}
ssize_t sendfile64(int file, int from, off64_t *at, size_t count) {
    REAL(sendfile64);
    int result = strike('w', file, NULL);
    return result == 1 ? -1 : real(file, from, at, HALF(count));
}
ssize_t copy_file_range(int from, off64_t *at, int file, off64_t *to, size_t count, unsigned flags) {
    REAL(copy_file_range);
    int result = strike('w', file, NULL);
    return result == 1 ? -1 : real(from, at, file, to, HALF(count), flags);
}

int fsync(int file) { REAL(fsync); return strike('s', file, NULL) == 1 ? -1 : real(file); }
int fdatasync(int file) { REAL(fdatasync); return strike('s', file, NULL) == 1 ? -1 : real(file); }
int rename(const char *old, const char *new) {
    REAL(rename);
    return strike('r', AT_FDCWD, new) == 1 ? -1 : real(old, new);
}
int renameat(int from, const char *old, int to, const char *new) {
    REAL(renameat);
    return strike('r', to, new) == 1 ? -1 : real(from, old, to, new);
}
int link(const char *old, const char *new) {
    REAL(link);
    return strike('l', AT_FDCWD, new) == 1 ? -1 : real(old, new);
}
int linkat(int from, const char *old, int to, const char *new, int flags) {
    REAL(linkat);
    return strike('l', to, new) == 1 ? -1 : real(from, old, to, new, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return strike('m', AT_FDCWD, path) == 1 ? -1 : real(path, mode);
}
