/* Every function of sluice.h: a result that is right, and an error. Run by programs.rs in an empty directory of the host. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>
#include <sluice.h>

#define IS(call, wanted)                                                                          \
    do {                                                                                          \
        long gave_ = (long)(call), want_ = (long)(wanted);                                          \
        if (gave_ != want_) {                                                                      \
            fprintf(stderr, "line %d: %s gave %ld, not %ld\n", __LINE__, #call, gave_, want_);    \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static struct sluice_process *user(struct sluice_fs *fs, uint32_t uid)
{
    struct sluice_process *process;
    uint32_t groups[2] = {7, 8};
    IS(sluice_process_new(fs, uid, uid, groups, 2, &process), 0);
    return process;
}

static void files(struct sluice_process *p)
{
    char buffer[16] = "";
    struct sluice_stat stat;
    int64_t from = 0, to = 4;
    int fd = sluice_open(p, "/f", O_RDWR | O_CREAT | O_EXCL, 0640);

    IS(fd, 0);
    IS(sluice_open(p, "/f", O_RDWR | O_CREAT | O_EXCL, 0640), -EEXIST);
    IS(sluice_open(p, "/none", O_RDONLY, 0), -ENOENT);
    IS(sluice_open(p, NULL, O_RDONLY, 0), -EFAULT);
    IS(sluice_open(NULL, "/f", O_RDONLY, 0), -EFAULT);
    IS(sluice_write(p, fd, "hello", 5), 5);
    IS(sluice_write(p, fd, NULL, 5), -EFAULT);
    IS(sluice_write(p, fd, NULL, 0), 0);
    IS(sluice_write(p, fd, "", SIZE_MAX), -EINVAL);
    IS(sluice_write(p, 99, "hello", 5), -EBADF);
    IS(sluice_pwrite(p, fd, "J", 1, 0), 1);
    IS(sluice_pwrite(p, fd, "J", 1, -1), -EINVAL);
    IS(sluice_lseek(p, fd, 1, SEEK_SET), 1);
    IS(sluice_lseek(p, fd, 0, 77), -EINVAL);
    IS(sluice_read(p, fd, buffer, sizeof buffer), 4);
    IS(memcmp(buffer, "ello", 4), 0);
    IS(sluice_read(p, fd, buffer, sizeof buffer), 0);
    IS(sluice_pread(p, fd, buffer, 1, 0), 1);
    IS(buffer[0], 'J');
    IS(sluice_copy_file_range(p, fd, &from, fd, &to, 5), -EINVAL);
    to = 8;
    IS(sluice_copy_file_range(p, fd, &from, fd, &to, 4), 4);
    IS(from, 4);
    IS(to, 12);
    IS(sluice_ftruncate(p, fd, 5), 0);
    IS(sluice_ftruncate(p, fd, -1), -EINVAL);
    IS(sluice_fallocate(p, fd, 0, 0, 8192), 0);
    IS(sluice_fallocate(p, fd, 0x4000, 0, 8192), -EOPNOTSUPP);
    IS(sluice_fchmod(p, fd, 0600), 0);
    IS(sluice_fchown(p, fd, 5, (uint32_t)-1), 0);
    IS(sluice_fstat(p, fd, &stat), 0);
    IS(sluice_fstat(p, fd, NULL), -EFAULT);
    IS(stat.size, 8192);
    IS(stat.mode, S_IFREG | 0600);
    IS(stat.uid, 5);
    IS(stat.gid, 0);
    IS(stat.nlink, 1);
    IS(sluice_fsync(p, fd), 0);
    IS(sluice_fdatasync(p, fd), 0);
    IS(sluice_dup(p, fd), 1);
    IS(sluice_close(p, 1), 0);
    IS(sluice_close(p, 1), -EBADF);
    IS(sluice_close(p, fd), 0);
}

static void names(struct sluice_process *p, struct sluice_process *other)
{
    char buffer[16];
    struct sluice_stat stat;
    struct sluice_statfs statfs;
    struct sluice_time then = {1000, 5}, now = {0, UTIME_NOW}, wrong = {0, -1};

    IS(sluice_umask(p, 022), 022);
    IS(sluice_mkdir(p, "/d", 0777), 0);
    IS(sluice_mkdir(p, "/d", 0777), -EEXIST);
    IS(sluice_chdir(p, "/d"), 0);
    IS(sluice_chdir(p, "/f"), -ENOTDIR);
    IS(sluice_getcwd(p, buffer, sizeof buffer), 2);
    IS(strcmp(buffer, "/d"), 0);
    IS(sluice_getcwd(p, buffer, 2), -ERANGE);
    IS(sluice_mknod(p, "fifo", S_IFIFO | 0600, 0), 0);
    IS(sluice_mknod(p, "odd", 0770000, 0), -EINVAL);
    IS(sluice_link(p, "/f", "g"), 0);
    IS(sluice_symlink(p, "g", "s"), 0);
    IS(sluice_readlink(p, "s", buffer, sizeof buffer), 1);
    IS(sluice_readlink(p, "g", buffer, sizeof buffer), -EINVAL);
    IS(sluice_readlink(p, "s", buffer, 0), -EINVAL);
    IS(sluice_stat(p, "s", &stat), 0);
    IS(stat.nlink, 2);
    IS(sluice_lstat(p, "s", &stat), 0);
    IS(S_ISLNK(stat.mode), 1);
    IS(sluice_truncate(p, "g", 3), 0);
    IS(sluice_chmod(p, "g", 0604), 0);
    IS(sluice_chown(p, "g", 6, 6), 0);
    IS(sluice_lchown(p, "s", 6, 6), 0);
    IS(sluice_access(p, "g", R_OK | W_OK), 0);
    IS(sluice_access(p, "g", 64), -EINVAL);
    IS(sluice_access(other, "/f", W_OK), -EACCES);
    IS(sluice_chmod(other, "/f", 0777), -EPERM);
    IS(sluice_utimens(p, "g", &then, &now, 0), 0);
    IS(sluice_utimens(p, "g", NULL, &wrong, 0), -EINVAL);
    IS(sluice_stat(p, "g", &stat), 0);
    IS(stat.atime.sec, 1000);
    IS(stat.atime.nsec, 5);
    IS(stat.mtime.sec > 1000, 1);
    IS(sluice_rename(p, "g", "h", 1), 0);
    IS(sluice_rename(p, "h", "s", 1), -EEXIST);
    IS(sluice_rename(p, "h", "s", 64), -EINVAL);
    IS(sluice_unlink(p, "h"), 0);
    IS(sluice_unlink(p, "/d"), -EISDIR);
    IS(sluice_unlink(p, "s"), 0);
    IS(sluice_rmdir(p, "/d"), -ENOTEMPTY);
    IS(sluice_clone_tree(p, "/d", "/copy"), 0);
    IS(sluice_lstat(p, "/copy/fifo", &stat), 0);
    IS(S_ISFIFO(stat.mode), 1);
    IS(sluice_set_quota(p, "/copy", 1 << 20), 0);
    IS(sluice_statfs(p, "/copy", &statfs), 0);
    IS(statfs.blocks * statfs.block_size, 1 << 20);
    IS(sluice_set_quota(p, "/copy", 0), 0);
    IS(sluice_setxattr(p, "/f", "user.a", "value", 5, 0), 0);
    IS(sluice_setxattr(p, "/f", "user.a", "value", 5, XATTR_CREATE), -EEXIST);
    IS(sluice_getxattr(p, "/f", "user.a", NULL, 0), 5);
    IS(sluice_getxattr(p, "/f", "user.a", buffer, 4), -ERANGE);
    IS(sluice_getxattr(p, "/f", "user.a", buffer, sizeof buffer), 5);
    IS(memcmp(buffer, "value", 5), 0);
    IS(sluice_listxattr(p, "/f", buffer, sizeof buffer), 7);
    IS(strcmp(buffer, "user.a"), 0);
    IS(sluice_removexattr(p, "/f", "user.a"), 0);
    IS(sluice_removexattr(p, "/f", "user.a"), -ENODATA);
}

static void directories(struct sluice_process *p)
{
    struct sluice_dirent entries[2];
    int dir = sluice_open(p, "/d", O_RDONLY | O_DIRECTORY, 0), seen = 0, dots = 0;
    long count;

    IS(sluice_openat(p, dir, "fifo", O_PATH, 0), dir + 1);
    IS(sluice_close(p, dir + 1), 0);
    IS(sluice_readdir(p, dir, NULL, 2), -EFAULT);
    while ((count = sluice_readdir(p, dir, entries, 2)) > 0)
        for (long at = 0; at < count; at++) {
            seen++;
            dots += entries[at].name[0] == '.';
            if (entries[at].name[0] == 'f') {
                IS(strcmp((char *)entries[at].name, "fifo"), 0);
                IS(entries[at].name_len, 4);
                IS(entries[at].file_type, S_IFIFO);
            }
        }
    IS(count, 0);
    IS(seen, 3);
    IS(dots, 2);
    IS(sluice_close(p, dir), 0);
}

struct waiter {
    struct sluice_process *process;
    int fd;
};

static void *wait_for_lock(void *argument)
{
    struct waiter *waiter = argument;
    struct sluice_lock lock = {.lock_type = F_WRLCK, .whence = SEEK_SET, .start = 0, .len = 10};
    return (void *)(long)sluice_setlkw(waiter->process, waiter->fd, &lock, -1);
}

static void locks(struct sluice_process *p, struct sluice_process *other)
{
    struct sluice_lock lock = {.lock_type = F_WRLCK, .whence = SEEK_SET, .start = 0, .len = 10};
    int fd = sluice_open(p, "/f", O_RDWR, 0), theirs = sluice_open(other, "/shared", O_RDWR | O_CREAT, 0666);
    struct waiter waiter = {p, sluice_open(p, "/shared", O_RDWR, 0)};
    pthread_t thread;
    void *result;

    IS(theirs >= 0, 1);
    IS(sluice_setlk(other, theirs, &lock), 0);
    IS(sluice_setlk(p, waiter.fd, &lock), -EAGAIN);
    IS(sluice_setlkw(p, waiter.fd, &lock, 1), -ETIMEDOUT);
    IS(sluice_getlk(p, waiter.fd, &lock), 0);
    IS(lock.lock_type, F_WRLCK);
    IS(lock.len, 10);
    IS(lock.pid > 0, 1);
    IS(pthread_create(&thread, NULL, wait_for_lock, &waiter), 0);
    lock.lock_type = F_UNLCK;
    IS(sluice_setlk(other, theirs, &lock), 0);
    IS(pthread_join(thread, &result), 0);
    IS((long)result, 0);
    lock.lock_type = 9;
    IS(sluice_setlk(p, fd, &lock), -EINVAL);
    lock.lock_type = F_RDLCK;
    IS(sluice_ofd_setlk(p, fd, &lock), 0);
    IS(sluice_ofd_setlkw(p, fd, &lock, 0), 0);
    IS(sluice_flock(p, waiter.fd, LOCK_EX), 0);
    IS(sluice_flock(other, theirs, LOCK_SH | LOCK_NB), -EAGAIN);
    IS(sluice_flock(p, waiter.fd, LOCK_UN), 0);
    IS(sluice_flock(p, waiter.fd, 77), -EINVAL);
    IS(sluice_close(p, fd), 0);
}

static void file_systems(struct sluice_fs *fs)
{
    struct sluice_options options = {.struct_size = sizeof options, .size_limit = 1 << 20};
    struct sluice_fs *made, *left;
    struct sluice_process *process;
    struct { struct sluice_options options; uint64_t unknown; } longer = {{.struct_size = sizeof longer}, 0};
    char text[200], file[1 << 12] = "";
    int fd;

    IS(sluice_error_text(text, sizeof text), 0);
    IS(sluice_fs_new(&longer.options, &made), 0);
    IS(sluice_fs_close(made), 0);
    longer.unknown = 1;
    IS(sluice_fs_new(&longer.options, &made), -E2BIG);
    longer.options.struct_size = 0;
    IS(sluice_fs_new(&longer.options, &made), -EINVAL);
    IS(sluice_fs_new(NULL, NULL), -EFAULT);
    IS(sluice_fs_new(&options, &made), 0);
    process = user(made, 0);
    fd = sluice_open(process, "/big", O_WRONLY | O_CREAT, 0600);
    long written = 0;
    while (sluice_write(process, fd, file, sizeof file) > 0)
        written += sizeof file;
    IS(written <= 1 << 20, 1);
    sluice_process_free(process);
    IS(sluice_fs_close(made), 0);

    options.passphrase = "correct horse";
    IS(sluice_fs_create_store("store", &options, &made), 0);
    process = user(made, 0);
    IS(sluice_fs_import(made, "/nowhere", "/here"), -ENOENT);
    IS(sluice_error_text(text, sizeof text) > 0, 1);
    IS(sluice_mkdir(process, "/kept", 0700), 0);
    IS(sluice_fs_sync(made), 0);
    IS(sluice_fs_close(made), 0);
    IS(sluice_mkdir(process, "/late", 0700), -EROFS);
    sluice_process_free(process);
    options.passphrase = "wrong";
    IS(sluice_fs_open_store("store", &options, &made) < 0, 1);
    IS(sluice_error_text(text, sizeof text) > 0, 1);
    IS(strlen(text) > 0, 1);
    IS(sluice_error_text(text, 5) > 5, 1);
    IS(strlen(text), 4);
    options.passphrase = "correct horse";
    IS(sluice_fs_open_store("store", &options, &made), 0);
    process = user(made, 0);
    IS(sluice_access(process, "/kept", F_OK), 0);
    sluice_process_free(process);
    IS(sluice_fs_close(made), 0);

    IS(sluice_fs_export(fs, "/d", "exported"), 0);
    IS(access("exported/fifo", F_OK), 0);
    IS(sluice_fs_import(fs, "exported", "/imported"), 0);
    IS(sluice_fs_export(fs, "/none", "none"), -ENOENT);
    IS(sluice_fs_snapshot(fs, "/imported", &made), 0);
    IS(sluice_fs_close(made), 0);
    IS(sluice_fs_inject(fs, "write:ENOSPC"), 0);
    process = user(fs, 0);
    fd = sluice_open(process, "/f", O_WRONLY, 0);
    IS(sluice_write(process, fd, "x", 1), -ENOSPC);
    IS(sluice_fs_clear_faults(fs), 0);
    IS(sluice_write(process, fd, "x", 1), 1);
    sluice_process_free(process);
    IS(sluice_fs_inject(fs, "nonsense"), -EINVAL);
    IS(sluice_error_text(text, sizeof text) > 0, 1);
    IS(sluice_fs_crash(fs, 0, &left), -EINVAL);
    IS(sluice_fs_check(fs), 0);

    IS(sluice_fs_new(NULL, &made), 0);
    IS(sluice_fs_track_crashes(made), 0);
    process = user(made, 0);
    IS(sluice_mkdir(process, "/lost", 0700), 0);
    IS(sluice_fs_crash(made, 0, &left), 0);
    struct sluice_process *reader = user(left, 0);
    IS(sluice_access(reader, "/lost", F_OK), -ENOENT);
    sluice_process_free(reader);
    sluice_process_free(process);
    IS(sluice_fs_close(left), 0);
    IS(sluice_fs_close(made), 0);
}

int main(void)
{
    struct sluice_fs *fs;
    struct sluice_process *root, *child, *other;

    IS(strlen(sluice_version()) >= 5, 1);
    IS(sluice_fs_new(NULL, &fs), 0);
    root = user(fs, 0);
    other = user(fs, 1000);
    files(root);
    names(root, other);
    IS(sluice_process_fork(root, &child), 0);
    IS(sluice_chdir(child, "/"), 0);
    sluice_process_free(child);
    sluice_process_free(NULL);
    directories(root);
    IS(sluice_chmod(root, "/", 0777), 0);
    locks(root, other);
    file_systems(fs);
    sluice_process_free(root);
    sluice_process_free(other);
    IS(sluice_fs_close(fs), 0);
    IS(sluice_fs_close(NULL), 0);
    puts("all calls");
    return 0;
}
