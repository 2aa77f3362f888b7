/* Does every call that changes bytes, size or owner of a file, with every kind of set-ID bits, with and without a file
 * capability, as root, as the owner, as a member of the group and as somebody else, and prints what stat and getxattr say
 * at once. Run on two file systems it must print the same.
 *
 *   privileges DIR     as root
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { OWNER = 1000, GROUP = 2000, SIZE = 16384 };
static const char *file = "file", *source = "source";
static const unsigned char capability[20] = { 1, 0, 0, 2, 0, 4 };
static char page[4096] __attribute__((aligned(4096)));

static long on(int flags, long (*call)(int)) {
    int fd = open(file, flags);
    if (fd < 0)
        return -1;
    long result = call(fd);
    int error = errno;
    close(fd);
    errno = error;
    return result;
}
static long of_source(int fd, long (*copy)(int, int)) {
    int from = open(source, O_RDONLY);
    long result = copy(from, fd);
    int error = errno;
    close(from);
    errno = error;
    return result;
}
static long do_write(int fd) { return write(fd, "x", 1); }
static long do_extend(int fd) { return pwrite(fd, "x", 1, SIZE + 10); }
static long do_writev(int fd) { struct iovec parts[2] = { { "x", 1 }, { "y", 1 } }; return writev(fd, parts, 2); }
static long do_direct(int fd) { return pwrite(fd, page, sizeof page, 0); }
static long do_shrink(int fd) { return ftruncate(fd, 5); }
static long do_grow(int fd) { return ftruncate(fd, SIZE + 5); }
static long do_nothing(int fd) { return fd < 0; }
static long do_allocate(int fd) { return fallocate(fd, 0, 0, 2 * SIZE); }
static long do_keep(int fd) { return fallocate(fd, FALLOC_FL_KEEP_SIZE, SIZE, SIZE); }
static long do_punch(int fd) { return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096); }
static long copy_range(int from, int fd) { return copy_file_range(from, NULL, fd, NULL, 100, 0); }
static long send(int from, int fd) { return sendfile(fd, from, NULL, 100); }
static long do_copy(int fd) { return of_source(fd, copy_range); }
static long do_send(int fd) { return of_source(fd, send); }
static long do_splice(int fd) {
    int ends[2];
    loff_t at = 0;
    if (pipe(ends) < 0 || write(ends[1], "hello", 5) != 5)
        return -1;
    return splice(ends[0], NULL, fd, &at, 5, 0);
}
static long do_store(int fd) {
    char *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return -1;
    map[5000] = 'm';
    return msync(map, SIZE, MS_SYNC) || munmap(map, SIZE);
}
static long do_fchown(int fd) { return fchown(fd, -1, -1); }
static long do_chown_group(int fd) { return fchown(fd, -1, GROUP); }

static long call(int number) {
    switch (number) {
    case 0: return on(O_WRONLY, do_write);
    case 1: return on(O_WRONLY, do_extend);
    case 2: return on(O_WRONLY | O_APPEND, do_writev);
    case 3: return on(O_RDWR | O_DIRECT, do_direct);
    case 4: return on(O_WRONLY, do_shrink);
    case 5: return on(O_WRONLY, do_grow);
    case 6: return truncate(file, 5);
    case 7: return on(O_WRONLY | O_TRUNC, do_nothing);
    case 8: return on(O_WRONLY, do_allocate);
    case 9: return on(O_WRONLY, do_keep);
    case 10: return on(O_WRONLY, do_punch);
    case 11: return on(O_WRONLY, do_copy);
    case 12: return on(O_WRONLY, do_send);
    case 13: return on(O_WRONLY, do_splice);
    case 14: return on(O_RDWR, do_store);
    case 15: return chown(file, -1, -1);
    case 16: return on(O_RDONLY, do_fchown);
    case 17: return chown(file, OWNER, -1);
    case 18: return on(O_RDONLY, do_chown_group);
    case 19: return chown(file, 1234, 5678);
    /* Knowledge from the first call must not mislead the kernel in the second. */
    case 20: return on(O_WRONLY, do_write) < 0 ? -1 : on(O_WRONLY, do_copy) < 0 ? -1 : on(O_WRONLY, do_punch);
    case 21: return truncate(file, SIZE) < 0 ? -1 : on(O_WRONLY, do_write);
    default: return -2;
    }
}
static const char *names[] = { "write", "write past the end", "append", "direct write", "ftruncate", "ftruncate to more",
    "truncate", "O_TRUNC", "fallocate", "fallocate, size kept", "punch", "copy_file_range", "sendfile", "splice",
    "mmap store", "chown(-1, -1)", "fchown(-1, -1)", "chown(owner, -1)", "fchown(-1, group)", "chown", "three calls",
    "truncate and write" };

static int has_capability(void) { return getxattr(file, "security.capability", NULL, 0) > 0; }

static void must(int succeeded, const char *what) {
    if (!succeeded) {
        printf("failed: %s: %s\n", what, strerrorname_np(errno));
        exit(1);
    }
}

int main(int argc, char **argv) {
    static const struct { const char *name; uid_t uid; gid_t gid; gid_t other; } callers[] = {
        { "root", 0, 0, 0 }, { "owner", OWNER, OWNER, OWNER }, { "owner in the group", OWNER, GROUP, GROUP },
        { "member", 1001, 1001, GROUP }, { "member by login", 1001, GROUP, GROUP }, { "stranger", 1002, 1002, 1002 } };
    static const mode_t modes[] = { 0777, 04777, 02777, 06777, 02767, 06767, 06666, 02766, 02755, 02745, 04755 };
    must(argc == 2 && chdir(argv[1]) == 0, "chdir");
    umask(0);
    int fd = open(source, O_CREAT | O_RDWR, 0666);
    must(fd >= 0 && write(fd, page, sizeof page) == sizeof page, "source");
    close(fd);
    for (int number = 0; number < (int)(sizeof names / sizeof *names); number++)
        for (size_t mode = 0; mode < sizeof modes / sizeof *modes; mode++)
            for (int with = 0; with < 2; with++)
                for (size_t who = 0; who < sizeof callers / sizeof *callers; who++) {
                    struct stat stat_before, after;
                    unlink(file);
                    fd = open(file, O_CREAT | O_RDWR, 0666);
                    must(fd >= 0 && ftruncate(fd, SIZE) == 0 && pwrite(fd, "0123456789", 10, 0) == 10, "file");
                    must(fchown(fd, OWNER, GROUP) == 0 && fchmod(fd, modes[mode]) == 0, "fchown, fchmod");
                    close(fd);
                    must(!with || setxattr(file, "security.capability", capability, sizeof capability, 0) == 0, "setxattr");
                    must(stat(file, &stat_before) == 0, "stat");
                    printf("%s of a %04o file%s by %s: ", names[number], modes[mode], with ? " with a capability" : "", callers[who].name);
                    fflush(stdout);
                    pid_t child = fork();
                    if (child == 0) {
                        must(setgroups(1, &callers[who].other) == 0 && setresgid(callers[who].gid, callers[who].gid, callers[who].gid) == 0, "setgid");
                        must(setresuid(callers[who].uid, callers[who].uid, callers[who].uid) == 0, "setuid");
                        long result = call(number);
                        const char *error = result < 0 ? strerrorname_np(errno) : "ok";
                        must(stat(file, &after) == 0, "stat");
                        printf("%s, %04o", error, after.st_mode & 07777);
                        fflush(stdout);
                        _exit(0);
                    }
                    int status;
                    must(waitpid(child, &status, 0) == child && status == 0, "the child");
                    must(stat(file, &after) == 0, "stat");
                    printf(", then %04o, %d:%d, capability %s\n", after.st_mode & 07777, after.st_uid, after.st_gid, has_capability() ? "kept" : "none");
                    fflush(stdout);
                }
    unlink(file);
    unlink(source);
    return 0;
}
