/* mappings CASE FILE: maps FILE in the way that CASE names, checks what must hold, prints "CASE done". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define PAGES 64
#define SIZE (PAGE * PAGES)

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "line %d: %s (errno: %s)\n", __LINE__, #condition, strerror(errno)); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

static const char *path;

static int open_file(void) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    CHECK(fd >= 0);
    return fd;
}

/* The file, SIZE bytes long, filled with `fill`. */
static int new_file(int fill) {
    static char page[PAGE];
    int fd = open_file();
    memset(page, fill, PAGE);
    for (int i = 0; i < PAGES; i++)
        CHECK(pwrite(fd, page, PAGE, (off_t)i * PAGE) == PAGE);
    return fd;
}

static char *map(int fd, int how) {
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, how, fd, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static char byte_at(off_t at) {
    char byte = 0;
    int fd = open_file();
    CHECK(pread(fd, &byte, 1, at) == 1);
    close(fd);
    return byte;
}

/* Parent and child, each with its own descriptor and mapping, take turns in writing. */
static void shared(void) {
    enum { ROUNDS = 2000 };
    close(new_file(0));
    pid_t child = fork();
    CHECK(child >= 0);
    int parity = child == 0;
    char *memory = map(open_file(), MAP_SHARED);
    _Atomic int *turn = (_Atomic int *)memory;
    for (int round = parity; round < ROUNDS; round += 2) {
        while (atomic_load(turn) != round)
            sched_yield();
        /* A different page each time; the one before was written by the other process. */
        char *cell = memory + PAGE * (1 + round % (PAGES - 1)) + 8;
        if (round >= 1) {
            char *before = memory + PAGE * (1 + (round - 1) % (PAGES - 1)) + 8;
            CHECK(*before == (char)(round - 1));
        }
        *cell = (char)round;
        atomic_store(turn, round + 1);
    }
    CHECK(msync(memory, SIZE, MS_SYNC) == 0);
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(atomic_load(turn) == ROUNDS);
    CHECK(byte_at(PAGE * (1 + (ROUNDS - 1) % (PAGES - 1)) + 8) == (char)(ROUNDS - 1));
}

static void coherent(void) {
    int fd = new_file('a');
    char *memory = map(fd, MAP_SHARED);
    CHECK(memory[5000] == 'a');
    CHECK(pwrite(fd, "written", 7, 5000) == 7);
    CHECK(memcmp(memory + 5000, "written", 7) == 0);
    memcpy(memory + 9000, "mapped", 6);
    char read_back[6];
    int other = open_file();
    CHECK(pread(other, read_back, 6, 9000) == 6 && memcmp(read_back, "mapped", 6) == 0);
    /* Copied in the kernel or by the server: from what the mapping holds, not from what the server had. */
    int copy = open("copy", O_RDWR | O_CREAT, 0644);
    loff_t from = 8192, to = 0;
    CHECK(copy >= 0 && copy_file_range(fd, &from, copy, &to, PAGE, 0) == PAGE);
    CHECK(pread(copy, read_back, 6, 9000 - 8192) == 6 && memcmp(read_back, "mapped", 6) == 0);
    /* Past the page cache. */
    char *aligned = aligned_alloc(PAGE, PAGE);
    int direct = open(path, O_RDWR | O_DIRECT);
    CHECK(direct >= 0 && pread(direct, aligned, PAGE, 8192) == PAGE);
    CHECK(memcmp(aligned + 9000 - 8192, "mapped", 6) == 0);
    memset(aligned, 'd', PAGE);
    CHECK(pwrite(direct, aligned, PAGE, 8192) == PAGE);
    CHECK(memory[9000] == 'd');
}

static void private(void) {
    int fd = new_file('a');
    char *mine = map(fd, MAP_PRIVATE), *all = map(fd, MAP_SHARED);
    memcpy(mine + PAGE, "private", 7);
    CHECK(msync(mine, SIZE, MS_SYNC) == 0);
    CHECK(all[PAGE] == 'a' && byte_at(PAGE) == 'a');
    all[PAGE] = 'b';
    CHECK(mine[PAGE] == 'p' && byte_at(PAGE) == 'b');
    munmap(mine, SIZE);
    CHECK(byte_at(PAGE + 1) == 'a');
}

static sigjmp_buf out;

static void on_sigbus(int signal) {
    (void)signal;
    siglongjmp(out, 1);
}

/* 1 when reading the byte raises SIGBUS. */
static int beyond_the_end(volatile char *byte) {
    if (sigsetjmp(out, 1))
        return 1;
    (void)*byte;
    return 0;
}

static void truncated(void) {
    struct sigaction action = {.sa_handler = on_sigbus};
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    int fd = new_file('a');
    char *memory = map(fd, MAP_SHARED);
    memset(memory, 'm', SIZE);
    CHECK(ftruncate(fd, PAGE + 50) == 0);
    CHECK(memory[0] == 'm' && memory[PAGE + 49] == 'm' && memory[PAGE + 50] == 0);
    CHECK(beyond_the_end(memory + 2 * PAGE) && beyond_the_end(memory + SIZE - 1));
    /* Bytes stored past the end in its page stay there as it grows: the kernel's doing, on its tmpfs as well. */
    CHECK(ftruncate(fd, SIZE) == 0);
    CHECK(!beyond_the_end(memory + SIZE - 1));
    for (int i = PAGE + 50; i < SIZE; i++)
        CHECK(memory[i] == 0);
    CHECK(byte_at(PAGE + 49) == 'm' && byte_at(PAGE + 50) == 0 && byte_at(SIZE - 1) == 0);
    memory[SIZE - 1] = 'e';
    CHECK(byte_at(SIZE - 1) == 'e');
    /* Cut to nothing, by another process and by its name. */
    pid_t child = fork();
    if (child == 0)
        _exit(truncate(path, 0) != 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(beyond_the_end(memory));
    CHECK(pwrite(fd, "again", 5, 0) == 5 && memcmp(memory, "again", 5) == 0 && memory[5] == 0);
    int reopened = open(path, O_RDWR | O_TRUNC);
    CHECK(reopened >= 0 && beyond_the_end(memory));
}

static void unlinked(void) {
    int fd = new_file('a');
    char *memory = map(fd, MAP_SHARED);
    close(fd);
    CHECK(unlink(path) == 0);
    close(new_file('n'));
    for (int i = 0; i < SIZE; i++)
        CHECK(memory[i] == 'a');
    memset(memory, 'b', SIZE);
    CHECK(msync(memory, SIZE, MS_SYNC) == 0);
    /* Let the kernel forget what it may: it must be able to ask again. */
    CHECK(madvise(memory, SIZE, MADV_DONTNEED) == 0);
    CHECK(memory[0] == 'b' && memory[SIZE - 1] == 'b' && byte_at(0) == 'n');
}

static void synchronised(void) {
    int fd = new_file('a');
    char *memory = map(fd, MAP_SHARED);
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct stat attributes;
    CHECK(futimens(fd, old) == 0);
    memory[3 * PAGE] = 's';
    CHECK(msync(memory, SIZE, MS_SYNC) == 0);
    CHECK(stat(path, &attributes) == 0 && attributes.st_size == SIZE);
    CHECK(attributes.st_mtime > 1000);
    munmap(memory, SIZE);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    CHECK(byte_at(3 * PAGE) == 's' && byte_at(3 * PAGE + 1) == 'a');
    /* Unmapped without msync, written back by close or later: no less there for any reader. */
    memory = map(fd, MAP_SHARED);
    memory[4 * PAGE] = 't';
    munmap(memory, SIZE);
    close(fd);
    CHECK(byte_at(4 * PAGE) == 't');
}

static void punched(void) {
    int fd = new_file('a');
    char *memory = map(fd, MAP_SHARED);
    memset(memory, 'm', SIZE);
    CHECK(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE + 10, 2 * PAGE) == 0);
    CHECK(memory[PAGE + 9] == 'm' && memory[PAGE + 10] == 0 && memory[2 * PAGE] == 0);
    CHECK(memory[3 * PAGE + 9] == 0 && memory[3 * PAGE + 10] == 'm');
    memory[2 * PAGE] = 'n';
    CHECK(byte_at(2 * PAGE) == 'n' && byte_at(2 * PAGE + 1) == 0);
}

/* A file that no call changes: a kernel that asks nobody opens it, and the store is refused when it is written back. */
static void read_only(void) {
    char was = 0, is = 0;
    int reader = open(path, O_RDONLY), fd = open(path, O_RDWR);
    CHECK(pread(reader, &was, 1, 0) == 1);
    if (fd < 0) {
        CHECK(errno == EROFS);
        return;
    }
    char *memory = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    memory[0] = was + 1;
    CHECK(msync(memory, PAGE, MS_SYNC) != 0);
    munmap(memory, PAGE);
    do {
        CHECK(pread(reader, &is, 1, 0) == 1);
    } while (is != was && usleep(1000) == 0);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"shared", shared},       {"coherent", coherent}, {"private", private},           {"truncated", truncated},
        {"unlinked", unlinked},   {"punched", punched},   {"synchronised", synchronised},
        {"read-only", read_only},
    };
    if (argc != 3)
        return 2;
    path = argv[2];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            printf("%s done\n", argv[1]);
            return 0;
        }
    }
    return 2;
}
