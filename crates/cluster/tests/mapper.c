/* Mapper: a program that stores into a shared mapping of a file, while programs of other nodes use it.
 *
 *   mapper count FILE SLOT SECONDS COUNT  counts up the number SLOT of the first page until the time is over, or up to COUNT;
 *                                         opens the file again when the mapping is refused. Prints the number, or what is wrong.
 *   mapper follow FILE PAGES              maps the file at the size that fstat tells, and reads its last page, until it has so many.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    return 1;
}

static int count(const char *path, int slot, int seconds, uint64_t most) {
    uint64_t mine = 0;
    time_t end = time(NULL) + seconds;
    while (seconds ? time(NULL) < end : mine < most) {
        int fd = open(path, O_RDWR);
        if (fd < 0) return fail("open");
        volatile uint64_t *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED && errno != ENODEV) return fail("mmap");
        for (int i = 0; page != MAP_FAILED && i < 16; i++) {
            if (page[slot] != mine) {
                printf("slot %d has %llu instead of %llu\n", slot, (unsigned long long)page[slot], (unsigned long long)mine);
                return 1;
            }
            page[slot] = ++mine;
            if (i % 4 == 0 && msync((void *)page, PAGE, MS_SYNC)) return fail("msync");
        }
        if (page != MAP_FAILED && munmap((void *)page, PAGE)) return fail("munmap");
        if (close(fd)) return fail("close");
        usleep(1000);
    }
    printf("%llu\n", (unsigned long long)mine);
    return 0;
}

static int follow(const char *path, long pages) {
    long had = 0;
    int fd = open(path, O_RDWR);
    if (fd < 0) return fail("open");
    while (had < pages) {
        struct stat stat;
        if (fstat(fd, &stat)) return fail("fstat");
        had = stat.st_size / PAGE;
        if (had == 0) continue;
        volatile char *all = mmap(NULL, stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (all == MAP_FAILED) return fail("mmap");
        if (all[(had - 1) * PAGE] != 'x') {
            printf("page %ld of %ld has %d\n", had - 1, had, all[(had - 1) * PAGE]);
            return 1;
        }
        if (munmap((void *)all, stat.st_size)) return fail("munmap");
    }
    printf("%ld\n", had);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 6 && !strcmp(argv[1], "count")) return count(argv[2], atoi(argv[3]), atoi(argv[4]), atoll(argv[5]));
    if (argc == 4 && !strcmp(argv[1], "follow")) return follow(argv[2], atol(argv[3]));
    return 2;
}
