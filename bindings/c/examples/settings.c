/* Does a program that replaces its settings lose them in a power failure? Tries it without fsync, and with it.
 *
 *     cc settings.c $(pkg-config --cflags --libs sluice) -o settings && ./settings
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sluice.h>

static long checked(long result, const char *call)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", call, strerror((int)-result));
        exit(1);
    }
    return result;
}

/* Writes `text` to a new file, and gives it the name of the old one. */
static void save(struct sluice_process *process, const char *text, int with_fsync)
{
    int fd = (int)checked(sluice_open(process, "/settings.new", O_WRONLY | O_CREAT | O_TRUNC, 0644), "open");
    checked(sluice_write(process, fd, text, strlen(text)), "write");
    if (with_fsync)
        checked(sluice_fsync(process, fd), "fsync");
    checked(sluice_close(process, fd), "close");
    checked(sluice_rename(process, "/settings.new", "/settings", 0), "rename");
}

/* Whether every one of a hundred possible power failures leaves the old or the new settings. */
static int survives(int with_fsync)
{
    struct sluice_fs *fs, *left;
    struct sluice_process *process, *reader;
    int whole = 1;

    checked(sluice_fs_new(NULL, &fs), "new");
    checked(sluice_fs_track_crashes(fs), "track_crashes");
    checked(sluice_process_new(fs, 0, 0, NULL, 0, &process), "process");
    save(process, "colour = blue\n", 1);
    checked(sluice_fs_sync(fs), "sync");
    save(process, "colour = red\n", with_fsync);
    for (unsigned seed = 0; seed < 100; seed++) {
        char found[64] = "";
        checked(sluice_fs_crash(fs, seed, &left), "crash");
        checked(sluice_process_new(left, 0, 0, NULL, 0, &reader), "process");
        int fd = sluice_open(reader, "/settings", O_RDONLY, 0);
        if (fd >= 0)
            checked(sluice_read(reader, fd, found, sizeof found - 1), "read");
        whole &= strcmp(found, "colour = blue\n") == 0 || strcmp(found, "colour = red\n") == 0;
        sluice_process_free(reader);
        sluice_fs_close(left);
    }
    sluice_process_free(process);
    sluice_fs_close(fs);
    return whole;
}

int main(void)
{
    printf("without fsync: %s\n", survives(0) ? "nothing is lost" : "a power failure loses the settings");
    printf("with fsync: %s\n", survives(1) ? "nothing is lost" : "a power failure loses the settings");
    return 0;
}
