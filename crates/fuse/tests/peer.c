/* A helper process for the tests: does with plain system calls what it is told, and prints what happened.
 *
 *   peer posix|ofd|flock FILE sh|ex try|wait [START LEN]   "asking", then "held" or "error NAME"; holds until
 *                                                          its standard input ends
 *   peer getlk FILE START LEN                              "free", or "held TYPE START LEN PID"
 *   peer rules FILE                                        checks the close rules of the three kinds of locks
 *   peer deadlock FILE                                     checks that a deadlock of two processes is refused
 *   peer crosswise FILE                                    checks that OFD locks asked for crosswise are no deadlock
 *   peer handover FILE                                     checks that what a closed file had locked is free at once
 *   peer goes posix|ofd|flock WAY FILE                     "blocked" when a thread waits for a lock; after a byte of input
 *                                                          its owner goes by WAY; then "held" or "error NAME"
 *   peer mmap FILE | direct FILE                           checks mappings | O_DIRECT
 *   peer aio FILE                                          checks asynchronous direct writes beside buffered readers
 *   peer map FILE                                          maps it and obeys: "s AT BYTE" stores, "l AT" loads,
 *                                                          "y" writes back; each is answered by the byte there
 *   peer hammer DIR                                        makes and removes files until it is killed
 *   peer handle DIR NAME                                   "handle"; then for each line of its input what the handle of
 *                                                          DIR/NAME leads to now, in the mount on the directory that the
 *                                                          line names, if it does: contents, a path, or "error NAME"
 *   peer fsxattr FILE                                      checks FS_IOC_FSGETXATTR and FS_IOC_FSSETXATTR
 *   peer chown|make|list FILE UID                          as user UID: changes neither owner nor group | creates it |
 *                                                          lists its extended attributes
 *   peer idmap DIR TARGET FROM TO COUNT                    mounts DIR a second time on TARGET, where user and group FROM
 *                                                          are TO, and so on; "mapped", or "error NAME"
 */
#define _GNU_SOURCE
#include <errno.h>
#include <grp.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("failed at line %d: %s (%s)\n", __LINE__, #what, strerrorname_np(errno)); exit(1); } } while (0)

static void on_signal(int signal) { (void)signal; }

static void until_input_ends(void) {
    char byte;
    while (read(0, &byte, 1) < 0 && errno == EINTR) { }
}

static int ranged(int fd, int command, short type, long start, long len) {
    struct flock lock = { .l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = len };
    return fcntl(fd, command, &lock);
}

static int lock(int argc, char **argv) {
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGUSR1, &action, NULL); /* without SA_RESTART */
    int fd = open(argv[2], O_RDWR), wait = !strcmp(argv[4], "wait"), exclusive = !strcmp(argv[3], "ex"), result;
    CHECK(fd >= 0);
    long start = argc > 6 ? atol(argv[5]) : 0, len = argc > 6 ? atol(argv[6]) : 0;
    short type = exclusive ? F_WRLCK : F_RDLCK;
    puts("asking");
    fflush(stdout);
    if (!strcmp(argv[1], "flock"))
        result = flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB));
    else if (!strcmp(argv[1], "posix"))
        result = ranged(fd, wait ? F_SETLKW : F_SETLK, type, start, len);
    else
        result = ranged(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, type, start, len);
    if (result < 0) {
        printf("error %s\n", strerrorname_np(errno));
        return 0;
    }
    puts("held");
    fflush(stdout);
    until_input_ends();
    return 0;
}

static int getlk(char **argv) {
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = atol(argv[3]), .l_len = atol(argv[4]) };
    int fd = open(argv[2], O_RDWR);
    CHECK(fd >= 0 && fcntl(fd, F_GETLK, &lock) == 0);
    if (lock.l_type == F_UNLCK)
        puts("free");
    else
        printf("held %s %ld %ld %d\n", lock.l_type == F_RDLCK ? "READ" : "WRITE", (long)lock.l_start, (long)lock.l_len, lock.l_pid);
    return 0;
}

/* True if another process could lock byte `at` of `path` now. */
static int is_free(const char *path, long at) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = open(path, O_RDWR);
        _exit(ranged(fd, F_SETLK, F_WRLCK, at, 1) == 0 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status) == 0;
}

static int is_unflocked(const char *path) {
    int fd = open(path, O_RDWR), result = flock(fd, LOCK_EX | LOCK_NB);
    close(fd);
    return result == 0;
}

static int rules(const char *path) {
    /* POSIX: closing any descriptor of the file drops all of the process. */
    int one = open(path, O_RDWR), two = open(path, O_RDWR);
    CHECK(one >= 0 && two >= 0);
    CHECK(ranged(one, F_SETLK, F_WRLCK, 0, 10) == 0 && ranged(two, F_SETLK, F_WRLCK, 20, 10) == 0);
    CHECK(!is_free(path, 5) && !is_free(path, 25) && is_free(path, 15));
    close(two);
    CHECK(is_free(path, 5) && is_free(path, 25));
    /* A part is unlocked; the rest stays. */
    CHECK(ranged(one, F_SETLK, F_WRLCK, 0, 30) == 0 && ranged(one, F_SETLK, F_UNLCK, 10, 10) == 0);
    CHECK(!is_free(path, 5) && is_free(path, 15) && !is_free(path, 25));
    /* OFD: closing another description drops nothing; a duplicate keeps it until the last close. */
    CHECK(ranged(one, F_SETLK, F_UNLCK, 0, 0) == 0);
    CHECK(ranged(one, F_OFD_SETLK, F_WRLCK, 0, 10) == 0);
    two = open(path, O_RDWR);
    CHECK(ranged(two, F_OFD_SETLK, F_WRLCK, 5, 1) < 0 && errno == EAGAIN);
    close(two);
    CHECK(!is_free(path, 5));
    int copy = dup(one);
    close(one);
    CHECK(!is_free(path, 5));
    close(copy);
    CHECK(is_free(path, 5));
    /* flock: owned by the description, shared by duplicates and children, apart from ranges. */
    one = open(path, O_RDWR);
    CHECK(flock(one, LOCK_EX) == 0 && !is_unflocked(path) && is_free(path, 5));
    copy = dup(one);
    close(one);
    CHECK(!is_unflocked(path));
    CHECK(flock(copy, LOCK_SH) == 0 && !is_unflocked(path));
    close(copy);
    CHECK(is_unflocked(path));
    /* A process that ends lets go of everything. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        one = open(path, O_RDWR);
        _exit(ranged(one, F_SETLK, F_WRLCK, 0, 0) == 0 && flock(one, LOCK_EX) == 0 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(is_free(path, 5) && is_unflocked(path));
    /* A handle that a child shares may outlive its parent's lock on another handle, and not end it. */
    one = open(path, O_RDWR);
    CHECK(ranged(one, F_SETLK, F_WRLCK, 0, 1) == 0);
    int ready[2];
    CHECK(pipe(ready) == 0);
    child = fork();
    if (child == 0) {
        char byte;
        close(ready[1]);
        while (read(ready[0], &byte, 1) > 0) { }
        _exit(0);
    }
    close(one);
    two = open(path, O_RDWR);
    CHECK(ranged(two, F_SETLK, F_WRLCK, 0, 1) == 0);
    close(ready[0]);
    close(ready[1]);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(!is_free(path, 0));
    close(two);
    puts("ok");
    return 0;
}

/* Two processes hold one byte each and wait for the other's: whoever asks second is refused. */
static int deadlock(const char *path) {
    int ready[2][2], status, refused;
    CHECK(pipe(ready[0]) == 0 && pipe(ready[1]) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    int me = child == 0, fd = open(path, O_RDWR);
    char byte = 'x';
    CHECK(fd >= 0 && ranged(fd, F_SETLK, F_WRLCK, me, 1) == 0);
    CHECK(write(ready[me][1], &byte, 1) == 1 && read(ready[!me][0], &byte, 1) == 1);
    refused = ranged(fd, F_SETLKW, F_WRLCK, !me, 1) < 0;
    CHECK(!refused || errno == EDEADLK);
    if (me)
        _exit(refused);
    close(fd);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) + refused == 1);
    puts("ok");
    return 0;
}

/* The lock that a thread asks for, and the result. */
struct asking {
    const char *kind;
    int fd;
    long start, len;
    volatile pid_t thread;
    volatile int result; /* 0 or an error */
    pthread_t handle;
};

static void *ask(void *argument) {
    struct asking *asking = argument;
    asking->thread = (pid_t)syscall(SYS_gettid);
    int result = !strcmp(asking->kind, "flock") ? flock(asking->fd, LOCK_EX)
        : ranged(asking->fd, !strcmp(asking->kind, "ofd") ? F_OFD_SETLKW : F_SETLKW, F_WRLCK, asking->start, asking->len);
    asking->result = result < 0 ? errno : 0;
    return NULL;
}

/* Starts a thread that asks, and returns when it is blocked in that call. */
static void ask_by_thread(struct asking *asking) {
    char path[64], text[256] = "";
    asking->thread = 0;
    asking->result = -1;
    CHECK(pthread_create(&asking->handle, NULL, ask, asking) == 0);
    while (asking->thread == 0)
        sched_yield();
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", asking->thread);
    long wanted = strcmp(asking->kind, "flock") ? SYS_fcntl : SYS_flock;
    while (asking->result < 0 && (*text == 'r' || atol(text) != wanted)) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t len = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
        text[len < 0 ? 0 : len] = 0;
        close(fd);
        sched_yield();
    }
}

static void report(const struct asking *asking) {
    if (asking->result)
        printf("error %s\n", strerrorname_np(asking->result));
    else
        puts("held");
    fflush(stdout);
}

/* Two open files of one process hold a range each, and a thread waits for the other's range through each. */
static int crosswise(const char *path) {
    int one = open(path, O_RDWR), two = open(path, O_RDWR);
    struct asking first = { "ofd", one, 10, 10 }, second = { "ofd", two, 0, 10 };
    CHECK(one >= 0 && two >= 0);
    CHECK(ranged(one, F_OFD_SETLK, F_WRLCK, 0, 10) == 0 && ranged(two, F_OFD_SETLK, F_WRLCK, 10, 10) == 0);
    ask_by_thread(&first);
    ask_by_thread(&second);
    CHECK(ranged(one, F_OFD_SETLK, F_UNLCK, 0, 10) == 0);
    CHECK(pthread_join(second.handle, NULL) == 0 && second.result == 0);
    CHECK(ranged(two, F_OFD_SETLK, F_UNLCK, 10, 10) == 0);
    CHECK(pthread_join(first.handle, NULL) == 0 && first.result == 0);
    puts("ok");
    return 0;
}

/* Nothing but the close of the one that holds the lock lies before the request of another. */
static int handover(const char *path) {
    int mine = open(path, O_RDWR), refused = 0, to[2], from[2];
    CHECK(mine >= 0 && pipe(to) == 0 && pipe(from) == 0);
    pid_t child = fork();
    char byte = 'x';
    if (child == 0) {
        close(to[1]);
        while (read(to[0], &byte, 1) == 1) {
            int fd = open(path, O_RDWR);
            if (ranged(fd, F_OFD_SETLK, F_WRLCK, 0, 0) < 0 || flock(fd, LOCK_EX) < 0)
                _exit(1);
            close(fd);
            if (write(from[1], &byte, 1) != 1)
                _exit(1);
        }
        _exit(0);
    }
    for (int i = 0; i < 1000; i++) {
        int other = open(path, O_RDWR);
        CHECK(other >= 0 && ranged(other, F_OFD_SETLK, F_WRLCK, 0, 0) == 0 && flock(other, LOCK_EX) == 0);
        close(other);
        refused += ranged(mine, i % 2 ? F_OFD_SETLK : F_SETLK, F_WRLCK, 0, 0) < 0;
        refused += flock(mine, LOCK_EX | LOCK_NB) < 0;
        ranged(mine, i % 2 ? F_OFD_SETLK : F_SETLK, F_UNLCK, 0, 0);
        flock(mine, LOCK_UN);
        CHECK(write(to[1], &byte, 1) == 1 && read(from[0], &byte, 1) == 1);
        struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
        CHECK(fcntl(mine, F_OFD_GETLK, &lock) == 0);
        refused += lock.l_type != F_UNLCK;
        refused += flock(mine, LOCK_EX | LOCK_NB) < 0;
        flock(mine, LOCK_UN);
    }
    close(to[1]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    if (refused)
        printf("refused %d times\n", refused);
    else
        puts("ok");
    return 0;
}

static char *program;
static struct asking going;

static void *go_by_thread(void *way) {
    if (!strcmp(way, "unshare")) {
        CHECK(unshare(CLONE_FILES) == 0);
        close(going.fd);
    } else if (!strcmp(way, "exec")) {
        execl(program, "peer", "nothing", NULL);
    } else if (!strcmp(way, "exit")) {
        _exit(0);
    }
    return NULL;
}

/* The owner of a lock goes while a thread waits for it. */
static int goes(char **argv) {
    char *kind = argv[2], *way = argv[3], byte;
    pthread_t thread;
    going = (struct asking){ kind, open(argv[4], O_RDWR | O_CLOEXEC), 0, 0 };
    int copy = !strcmp(way, "copy") ? dup(going.fd) : -1, other = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(going.fd >= 0 && other >= 0);
    ask_by_thread(&going);
    puts("blocked");
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 1);
    if (!strcmp(way, "close"))
        CHECK(close(going.fd) == 0);
    else if (!strcmp(way, "dup2"))
        CHECK(dup2(other, going.fd) == going.fd);
    else if (!strcmp(way, "copy"))
        CHECK(close(copy) == 0);
    else
        CHECK(pthread_create(&thread, NULL, go_by_thread, way) == 0 && pthread_join(thread, NULL) == 0);
    puts("gone");
    fflush(stdout);
    CHECK(pthread_join(going.handle, NULL) == 0);
    report(&going);
    until_input_ends();
    return 0;
}

static int map(const char *path) {
    long page = sysconf(_SC_PAGESIZE);
    char byte;
    int fd = open(path, O_RDWR | O_CREAT, 0644), other = open(path, O_RDWR);
    CHECK(fd >= 0 && other >= 0 && ftruncate(fd, 4 * page) == 0);
    char *shared = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *again = mmap(NULL, 4 * page, PROT_READ, MAP_SHARED, other, 0);
    char *own = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(shared != MAP_FAILED && again != MAP_FAILED && own != MAP_FAILED);
    shared[2 * page + 7] = 's';
    CHECK(pread(other, &byte, 1, 2 * page + 7) == 1 && byte == 's');
    CHECK(again[2 * page + 7] == 's');
    CHECK(pwrite(other, "w", 1, page + 3) == 1 && shared[page + 3] == 'w');
    own[page + 3] = 'p';
    CHECK(shared[page + 3] == 'w' && pread(fd, &byte, 1, page + 3) == 1 && byte == 'w');
    close(fd); /* the mapping outlives the descriptor */
    shared[3 * page] = 'l';
    CHECK(msync(shared, 4 * page, MS_SYNC) == 0);
    CHECK(pread(other, &byte, 1, 3 * page) == 1 && byte == 'l');
    CHECK(munmap(shared, 4 * page) == 0);
    puts("ok");
    return 0;
}

static int direct(const char *path) {
    long size = 1 << 20;
    char *out, *in;
    CHECK(!posix_memalign((void **)&out, 4096, size) && !posix_memalign((void **)&in, 4096, size));
    for (long i = 0; i < size; i++)
        out[i] = (char)(i * 31 >> 3);
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0644), cached = open(path, O_RDWR);
    CHECK(fd >= 0 && cached >= 0);
    CHECK(pwrite(fd, out, size, 0) == size);
    CHECK(pread(fd, in, size, 0) == size && !memcmp(in, out, size));
    CHECK(pread(cached, in, 100, 4000) == 100 && !memcmp(in, out + 4000, 100));
    CHECK(pwrite(cached, "cached", 6, 8192) == 6);
    CHECK(pread(fd, in, 4096, 8192) == 4096 && !memcmp(in, "cached", 6));
    CHECK(pwrite(fd, out, 4096, 8192) == 4096); /* must be seen through the page cache */
    CHECK(pread(cached, in, 6, 8192) == 6 && !memcmp(in, out, 6));
    CHECK(pread(fd, in, 4096, size) == 0);
    puts("ok");
    return 0;
}

enum { AIO_PAGES = 8, AIO_ROUNDS = 4000 };
static atomic_int aio_done;

static void *read_buffered(void *path) {
    static _Thread_local char page[4096];
    int fd = open(path, O_RDONLY);
    for (unsigned i = 0; !aio_done; i++)
        CHECK(pread(fd, page, sizeof page, (long)(i % AIO_PAGES) * 4096) == sizeof page);
    close(fd);
    return NULL;
}

/* After a direct write has ended, a buffered read returns what it wrote, whatever others read meanwhile. */
static int aio(char *path) {
    char *out, in[4096];
    aio_context_t context = 0;
    pthread_t readers[2];
    CHECK(!posix_memalign((void **)&out, 4096, 4096));
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT, 0644), cached = open(path, O_RDONLY), stale = 0;
    CHECK(fd >= 0 && cached >= 0 && syscall(SYS_io_setup, 1, &context) == 0);
    for (int page = 0; page < AIO_PAGES; page++)
        CHECK(pwrite(fd, out, 4096, page * 4096L) == 4096);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&readers[i], NULL, read_buffered, path) == 0);
    for (int round = 0; round < AIO_ROUNDS; round++) {
        long at = (round % AIO_PAGES) * 4096L;
        struct iocb request = { .aio_fildes = (unsigned)fd, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = (unsigned long)out, .aio_nbytes = 4096, .aio_offset = at };
        struct iocb *requests[] = { &request };
        struct io_event event;
        memset(out, round * 7 + 1, 4096);
        CHECK(syscall(SYS_io_submit, context, 1, requests) == 1);
        CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL) == 1 && event.res == 4096);
        CHECK(pread(cached, in, 4096, at) == 4096);
        stale += memcmp(in, out, 4096) != 0;
    }
    aio_done = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    CHECK(stale == 0);
    puts("ok");
    return 0;
}

static int mapped(const char *path) {
    struct stat stat;
    char line[64], byte;
    long at;
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0 && fstat(fd, &stat) == 0);
    char *map = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    close(fd); /* a close would write the pages back */
    puts("mapped");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        at = 0;
        if (sscanf(line, "s %ld %c", &at, &byte) == 2)
            map[at] = byte;
        else if (line[0] == 'y')
            CHECK(msync(map, stat.st_size, MS_SYNC) == 0);
        else
            CHECK(sscanf(line, "l %ld", &at) == 1);
        printf("%c\n", map[at] ? map[at] : '0');
        fflush(stdout);
    }
    return 0;
}

static int hammer(const char *dir) {
    char a[4096], b[4096], data[5000] = "data";
    puts("asking");
    fflush(stdout);
    for (unsigned i = 0;; i++) {
        snprintf(a, sizeof a, "%s/h%u", dir, i % 16);
        snprintf(b, sizeof b, "%s/k%u", dir, (i * 7) % 16);
        int fd = open(a, O_RDWR | O_CREAT, 0644);
        if (fd >= 0) {
            if (write(fd, data, sizeof data) != (ssize_t)sizeof data) return 1;
            flock(fd, LOCK_EX);
            ranged(fd, F_SETLK, F_WRLCK, 0, 5);
        }
        if (i % 3 == 0) rename(a, b);
        if (i % 3 == 1) link(a, b);
        if (i % 5 == 0) unlink(b);
        close(fd);
    }
}

static int handle(const char *dir, const char *name) {
    struct { struct file_handle handle; unsigned char bytes[MAX_HANDLE_SZ]; } of = { .handle.handle_bytes = MAX_HANDLE_SZ };
    char line[4096], text[4096], self[32];
    int at = open(dir, O_RDONLY | O_DIRECTORY), mount;
    CHECK(at >= 0 && name_to_handle_at(at, name, &of.handle, &mount, 0) == 0);
    puts("handle");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        struct stat stat;
        ssize_t len;
        line[strcspn(line, "\n")] = 0;
        if (*line) CHECK(close(at) == 0 && (at = open(line, O_RDONLY | O_DIRECTORY)) >= 0);
        int fd = open_by_handle_at(at, &of.handle, O_RDONLY);
        if (fd < 0) {
            printf("error %s\n", strerrorname_np(errno));
        } else {
            snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
            CHECK(fstat(fd, &stat) == 0);
            len = S_ISDIR(stat.st_mode) ? readlink(self, text, sizeof text) : read(fd, text, sizeof text);
            CHECK(len >= 0);
            printf("%.*s\n", (int)len, text);
            close(fd);
        }
        fflush(stdout);
    }
    return 0;
}

static int fsxattr(const char *path) {
    struct fsxattr attr;
    int fd = open(path, O_RDONLY);
    memset(&attr, 0xff, sizeof attr);
    CHECK(fd >= 0 && !ioctl(fd, FS_IOC_FSGETXATTR, &attr));
    printf("%s, ", attr.fsx_xflags || attr.fsx_projid ? "something" : "none");
    attr.fsx_xflags = FS_XFLAG_NODUMP;
    CHECK(!ioctl(fd, FS_IOC_FSSETXATTR, &attr));
    printf("set, ");
    CHECK(!ioctl(fd, FS_IOC_FSGETXATTR, &attr));
    printf("%s, ", attr.fsx_xflags == FS_XFLAG_NODUMP ? "NODUMP" : "other");
    attr.fsx_projid = 5;
    printf("project: %s\n", ioctl(fd, FS_IOC_FSSETXATTR, &attr) ? strerrorname_np(errno) : "set");
    return 0;
}

/* Does `what` to `path` as user `uid`, who is in the group of that number alone. */
static int as_user(const char *what, const char *path, uid_t uid) {
    char names[256];
    CHECK(!setgroups(0, NULL) && !setgid(uid) && !setuid(uid));
    if (!strcmp(what, "list")) {
        printf("%s\n", listxattr(path, names, sizeof(names)) > 0 ? names : "");
        return 0;
    }
    if (!strcmp(what, "chown") ? chown(path, -1, -1) : open(path, O_CREAT | O_EXCL | O_WRONLY, 0644) < 0)
        printf("error %s\n", strerrorname_np(errno));
    else
        puts("done");
    return 0;
}

/* The kernel's: headers of the C library may lack it. */
struct mapping {
    uint64_t set, clear, propagation, userns;
};

static int idmap(char **argv) {
    char path[64], line[64];
    int go[2], in_namespace[2];
    char byte = 0;
    CHECK(!pipe(go) && !pipe(in_namespace));
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER) || write(in_namespace[1], &byte, 1) != 1) _exit(1);
        close(go[1]);
        (void)!read(go[0], &byte, 1);
        _exit(0);
    }
    close(in_namespace[1]);
    CHECK(read(in_namespace[0], &byte, 1) == 1);
    snprintf(line, sizeof(line), "%s %s %s", argv[4], argv[5], argv[6]);
    for (const char *map = "ug"; *map; map++) {
        snprintf(path, sizeof(path), "/proc/%d/%cid_map", child, *map);
        int fd = open(path, O_WRONLY);
        CHECK(fd >= 0 && write(fd, line, strlen(line)) > 0);
        close(fd);
    }
    snprintf(path, sizeof(path), "/proc/%d/ns/user", child);
    int userns = open(path, O_RDONLY | O_CLOEXEC);
    int tree = syscall(428 /* open_tree */, AT_FDCWD, argv[2], 1 /* OPEN_TREE_CLONE */ | O_CLOEXEC);
    struct mapping mapping = {0x00100000 /* MOUNT_ATTR_IDMAP */, 0, 0, userns};
    if (tree < 0 || syscall(442 /* mount_setattr */, tree, "", AT_EMPTY_PATH, &mapping, sizeof(mapping)) ||
        syscall(429 /* move_mount */, tree, "", AT_FDCWD, argv[3], 4 /* MOVE_MOUNT_F_EMPTY_PATH */))
        printf("error %s\n", strerrorname_np(errno));
    else
        puts("mapped");
    close(go[1]);
    waitpid(child, NULL, 0);
    return 0;
}

int main(int argc, char **argv) {
    program = argv[0];
    if (argc >= 5 && (!strcmp(argv[1], "posix") || !strcmp(argv[1], "ofd") || !strcmp(argv[1], "flock"))) return lock(argc, argv);
    if (argc == 5 && !strcmp(argv[1], "getlk")) return getlk(argv);
    if (argc == 3 && !strcmp(argv[1], "rules")) return rules(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "deadlock")) return deadlock(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "crosswise")) return crosswise(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "handover")) return handover(argv[2]);
    if (argc == 5 && !strcmp(argv[1], "goes")) return goes(argv);
    if (argc == 2 && !strcmp(argv[1], "nothing")) return 0;
    if (argc == 3 && !strcmp(argv[1], "mmap")) return map(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "direct")) return direct(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "aio")) return aio(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "map")) return mapped(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "hammer")) return hammer(argv[2]);
    if (argc == 4 && !strcmp(argv[1], "handle")) return handle(argv[2], argv[3]);
    if (argc == 3 && !strcmp(argv[1], "fsxattr")) return fsxattr(argv[2]);
    if (argc == 4 && (!strcmp(argv[1], "chown") || !strcmp(argv[1], "make") || !strcmp(argv[1], "list")))
        return as_user(argv[1], argv[2], atoi(argv[3]));
    if (argc == 7 && !strcmp(argv[1], "idmap")) return idmap(argv);
    puts("bad usage");
    return 2;
}
