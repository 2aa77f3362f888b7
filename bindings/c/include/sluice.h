// sluicefs for C: a POSIX file system in the memory of this process, or kept in a directory.
//
// Link with -lsluice. Made from Rust by cbindgen: change bindings/c/src instead.
//
// Results: a call gives 0 or a count, or an error as a negative number, such as -ENOENT. It does not touch errno.
// -EFAULT: a handle, a path or a buffer is NULL where one is needed. -EIO is also a fault of the library itself.
// Paths end with NUL. Flags, modes and types are those of <fcntl.h>, <sys/stat.h> and <sys/file.h>.
// Threads: several may call every function at a time, except that a handle is freed once, when no other call uses it.

#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// A file system.
struct sluice_fs;

// A user of a file system, with a working directory, a umask and descriptors of its own. It keeps its file system.
struct sluice_process;

// A lock of a range of bytes, as struct flock has it.
struct sluice_lock {
    // F_RDLCK, F_WRLCK or F_UNLCK.
    int32_t lock_type;
    // The origin of `start`: SEEK_SET, SEEK_CUR or SEEK_END.
    int32_t whence;
    // The first byte.
    int64_t start;
    // How many bytes; 0 for all to the end of the file, however it grows.
    int64_t len;
    // Set by sluice_getlk(): the process that has the lock, -1 for the lock of an open file.
    int64_t pid;
};

// A time: seconds since 1970, and nanoseconds.
struct sluice_time {
    // Seconds.
    int64_t sec;
    // Nanoseconds, below 1,000,000,000; for sluice_utimens() also UTIME_NOW.
    int64_t nsec;
};

// The attributes of a file, as struct stat has them.
struct sluice_stat {
    // The device number of the file system.
    uint64_t dev;
    // The inode number.
    uint64_t ino;
    // The device number of a device file.
    uint64_t rdev;
    // The size in bytes.
    uint64_t size;
    // Blocks of 512 bytes.
    uint64_t blocks;
    // The file type and the permissions.
    uint32_t mode;
    // The number of names.
    uint32_t nlink;
    // The owner.
    uint32_t uid;
    // The group.
    uint32_t gid;
    // The preferred size of reads and writes.
    uint64_t blksize;
    // The last access.
    struct sluice_time atime;
    // The last change of the contents.
    struct sluice_time mtime;
    // The last change of the inode.
    struct sluice_time ctime;
    // When the file was made.
    struct sluice_time btime;
};

// The room of a file system.
struct sluice_statfs {
    // Bytes of a block.
    uint64_t block_size;
    // Blocks in all.
    uint64_t blocks;
    // Free blocks.
    uint64_t blocks_free;
    // Inodes in all.
    uint64_t files;
    // Free inodes.
    uint64_t files_free;
    // The longest name in bytes.
    uint64_t name_max;
};

// Limits and choices of a new file system, or of one that is opened. Set all to 0, then `struct_size` to `sizeof(struct sluice_options)`.
struct sluice_options {
    // The size of this structure. A later library takes what a program does not know of for 0.
    size_t struct_size;
    // The most bytes of contents; 0 for no limit but the memory, or the disk.
    uint64_t size_limit;
    // The most files; 0 for no limit.
    uint64_t inode_limit;
    // The most bytes of memory that a store keeps files in; 0 for the default.
    uint64_t memory_limit;
    // The owner of a new root directory.
    uint32_t root_uid;
    // The group of a new root directory.
    uint32_t root_gid;
    // The mode of a new root directory; 0 for 0755.
    uint32_t root_mode;
    // Not 0: a new store is compressed.
    uint32_t compress;
    // The words that encrypt a new store, or open an encrypted one; NULL for none.
    const char *passphrase;
};

// An entry of a directory.
struct sluice_dirent {
    // The inode number.
    uint64_t ino;
    // The position behind the entry, for sluice_lseek() of the directory.
    uint64_t position;
    // The file type, as in the mode: S_IFREG, S_IFDIR...
    uint32_t file_type;
    // The length of the name.
    uint32_t name_len;
    // The name, with a NUL behind it.
    uint8_t name[256];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Reads up to `size` entries of an open directory, "." and ".." included, into the array `entries`, and moves the position. Gives how
// many; 0 at the end.
ptrdiff_t sluice_readdir(const struct sluice_process *process,
                         int fd,
                         struct sluice_dirent *entries,
                         size_t size);

// Makes calls fail, be short or be late from now on, by a rule such as "write:ENOSPC:path=/log:nth=3". sluice_error_text() says what is
// wrong with a rule.
int sluice_fs_inject(const struct sluice_fs *fs,
                     const char *rule);

// Ends all injected faults.
int sluice_fs_clear_faults(const struct sluice_fs *fs);

// Begins to record what a power failure would lose. Before the first change.
int sluice_fs_track_crashes(const struct sluice_fs *fs);

// Makes a file system of what a power failure at this moment would leave. Changes that were not synchronised survive or not, by the `seed`:
// 0 loses all. After sluice_fs_track_crashes().
int sluice_fs_crash(const struct sluice_fs *fs,
                    uint64_t seed,
                    struct sluice_fs **left);

// Opens `path` as open(2) does. Gives the lowest free descriptor of the process.
int sluice_open(const struct sluice_process *process,
                const char *path,
                int open_flags,
                uint32_t mode);

// Opens `path` below the directory `dir`, or AT_FDCWD.
int sluice_openat(const struct sluice_process *process,
                  int dir,
                  const char *path,
                  int open_flags,
                  uint32_t mode);

// Closes a descriptor.
int sluice_close(const struct sluice_process *process, int fd);

// Gives a second descriptor for the same open file.
int sluice_dup(const struct sluice_process *process, int fd);

// Reads up to `size` bytes at the position. Gives how many; 0 at the end.
ptrdiff_t sluice_read(const struct sluice_process *process, int fd, void *buffer, size_t size);

// Writes `size` bytes at the position. Gives how many.
ptrdiff_t sluice_write(const struct sluice_process *process,
                       int fd,
                       const void *data,
                       size_t size);

// Reads up to `size` bytes at `offset`, and leaves the position.
ptrdiff_t sluice_pread(const struct sluice_process *process,
                       int fd,
                       void *buffer,
                       size_t size,
                       int64_t offset);

// Writes `size` bytes at `offset`, and leaves the position.
ptrdiff_t sluice_pwrite(const struct sluice_process *process,
                        int fd,
                        const void *data,
                        size_t size,
                        int64_t offset);

// Moves the position, with SEEK_DATA and SEEK_HOLE, too. Gives the new one.
ptrdiff_t sluice_lseek(const struct sluice_process *process, int fd, int64_t offset, int from);

// Makes a file durable, and every change before it.
int sluice_fsync(const struct sluice_process *process, int fd);

// Makes the contents of a file durable.
int sluice_fdatasync(const struct sluice_process *process, int fd);

// Sets the size of an open file.
int sluice_ftruncate(const struct sluice_process *process, int fd, int64_t size);

// Reserves room, punches a hole or moves bytes, as fallocate(2).
int sluice_fallocate(const struct sluice_process *process,
                     int fd,
                     int mode,
                     int64_t offset,
                     int64_t len);

// Copies up to `size` bytes between two open files, or shares them. NULL for an offset stands for the position. Gives how many.
ptrdiff_t sluice_copy_file_range(const struct sluice_process *process,
                                 int from,
                                 int64_t *from_offset,
                                 int to,
                                 int64_t *to_offset,
                                 size_t size);

// Changes the mode of an open file.
int sluice_fchmod(const struct sluice_process *process, int fd, uint32_t mode);

// Changes the owner and the group of an open file; -1 leaves one.
int sluice_fchown(const struct sluice_process *process, int fd, uint32_t uid, uint32_t gid);

// The release of the library, such as "0.1.0".
const char *sluice_version(void);

// Makes an empty file system in memory. `options` may be NULL.
int sluice_fs_new(const struct sluice_options *options, struct sluice_fs **fs);

// Makes an empty file system that is kept in the directory `dir` of the host, which is missing or empty. `options` may be NULL.
// sluice_error_text() says why it failed.
int sluice_fs_create_store(const char *dir,
                           const struct sluice_options *options,
                           struct sluice_fs **fs);

// Opens the file system that is kept in the directory `dir` of the host. `options` may be NULL. sluice_error_text() says why it failed.
int sluice_fs_open_store(const char *dir,
                         const struct sluice_options *options,
                         struct sluice_fs **fs);

// Makes every change durable, ends the use of the store, and frees the handle, also where it fails. Processes that remain
// change nothing any more (-EROFS). A file system in memory ends with its last handle and process. NULL is allowed.
int sluice_fs_close(struct sluice_fs *fs);

// Makes every change durable.
int sluice_fs_sync(const struct sluice_fs *fs);

// Makes a file system in memory of the tree below `path` as it is now. Both share contents until one side writes.
int sluice_fs_snapshot(const struct sluice_fs *fs,
                       const char *path,
                       struct sluice_fs **snapshot);

// Looks for inconsistencies of the whole tree. Gives their number, 0 being right.
ptrdiff_t sluice_fs_check(const struct sluice_fs *fs);

// Sets or removes a lock of the process. -EAGAIN where another one is in the way.
int sluice_setlk(const struct sluice_process *process, int fd, const struct sluice_lock *lock);

// Sets a lock of the process, and waits for `timeout_ms` at the most (-ETIMEDOUT), or without end if that is below 0. -EDEADLK where processes
// would wait for each other for ever.
int sluice_setlkw(const struct sluice_process *process,
                  int fd,
                  const struct sluice_lock *lock,
                  int64_t timeout_ms);

// Puts a lock of another process to `lock` that is in its way; its type becomes F_UNLCK where there is none.
int sluice_getlk(const struct sluice_process *process,
                 int fd,
                 struct sluice_lock *lock);

// Sets or removes a lock of the open file. -EAGAIN where another one is in the way.
int sluice_ofd_setlk(const struct sluice_process *process, int fd, const struct sluice_lock *lock);

// Sets a lock of the open file, and waits as sluice_setlkw() does.
int sluice_ofd_setlkw(const struct sluice_process *process,
                      int fd,
                      const struct sluice_lock *lock,
                      int64_t timeout_ms);

// Locks or unlocks the whole file: LOCK_SH, LOCK_EX or LOCK_UN, without waiting with LOCK_NB.
int sluice_flock(const struct sluice_process *process, int fd, int operation);

// Makes a directory.
int sluice_mkdir(const struct sluice_process *process, const char *path, uint32_t mode);

// Makes a fifo, a socket's name, a device file or an empty file: the type stands in `mode`.
int sluice_mknod(const struct sluice_process *process,
                 const char *path,
                 uint32_t mode,
                 uint64_t rdev);

// Removes an empty directory.
int sluice_rmdir(const struct sluice_process *process, const char *path);

// Removes a name.
int sluice_unlink(const struct sluice_process *process, const char *path);

// Renames a file or directory. `flags` is 0, RENAME_NOREPLACE, RENAME_EXCHANGE or RENAME_WHITEOUT.
int sluice_rename(const struct sluice_process *process,
                  const char *from,
                  const char *to,
                  uint32_t flags);

// Gives the file `from` a second name.
int sluice_link(const struct sluice_process *process, const char *from, const char *to);

// Makes a symbolic link at `path`.
int sluice_symlink(const struct sluice_process *process, const char *target, const char *path);

// Writes the target of a symbolic link to `buffer`, without a NUL, cut off after `size` bytes. Gives how many bytes it wrote.
ptrdiff_t sluice_readlink(const struct sluice_process *process,
                          const char *path,
                          void *buffer,
                          size_t size);

// Sets the size of a file.
int sluice_truncate(const struct sluice_process *process, const char *path, int64_t size);

// Whether the process may do with `path` what `want` says: R_OK, W_OK, X_OK, or F_OK.
int sluice_access(const struct sluice_process *process, const char *path, int want);

// Changes the mode of a file.
int sluice_chmod(const struct sluice_process *process, const char *path, uint32_t mode);

// Changes the owner and the group of a file; -1 leaves one.
int sluice_chown(const struct sluice_process *process,
                 const char *path,
                 uint32_t uid,
                 uint32_t gid);

// Changes the owner and the group of a symbolic link itself.
int sluice_lchown(const struct sluice_process *process,
                  const char *path,
                  uint32_t uid,
                  uint32_t gid);

// Sets the times of a file. NULL leaves one. `flags` is 0, or AT_SYMLINK_NOFOLLOW for a symbolic link itself.
int sluice_utimens(const struct sluice_process *process,
                   const char *path,
                   const struct sluice_time *atime,
                   const struct sluice_time *mtime,
                   int flags);

// Makes a copy of the tree `from` at `to`. Both share contents until one side writes.
int sluice_clone_tree(const struct sluice_process *process, const char *from, const char *to);

// Limits what the directory `path` holds with all below it to `size` bytes; 0 removes the limit.
int sluice_set_quota(const struct sluice_process *process, const char *path, uint64_t size);

// Makes a process with the user `uid`, the group `gid` and `count` further `groups`. User 0 may do everything.
int sluice_process_new(const struct sluice_fs *fs,
                       uint32_t uid,
                       uint32_t gid,
                       const uint32_t *groups,
                       size_t count,
                       struct sluice_process **process);

// Makes a copy of a process: the same user and working directory, and descriptors that share their positions, as fork(2) leaves them.
int sluice_process_fork(const struct sluice_process *process,
                        struct sluice_process **child);

// Ends a process: its descriptors are closed, and its locks go. NULL is allowed.
void sluice_process_free(struct sluice_process *process);

// Sets the file mode creation mask. Gives the one before.
int sluice_umask(const struct sluice_process *process, uint32_t mask);

// Changes the working directory.
int sluice_chdir(const struct sluice_process *process, const char *path);

// Writes the working directory to `buffer`, with a NUL behind it. Gives its length; -ERANGE where `size` is too small.
ptrdiff_t sluice_getcwd(const struct sluice_process *process,
                        void *buffer,
                        size_t size);

// Why this thread's last call failed that made or opened a store, set a rule of faults, imported or exported: one line for a person.
// It goes to `buffer`, ends with NUL, and is cut off after `size` bytes. Gives its whole length; 0 without such a failure.
ptrdiff_t sluice_error_text(void *buffer,
                            size_t size);

// Gives the attributes of `path`; those of the file behind a symbolic link.
int sluice_stat(const struct sluice_process *process, const char *path, struct sluice_stat *stat);

// Gives the attributes of `path`; those of a symbolic link itself.
int sluice_lstat(const struct sluice_process *process, const char *path, struct sluice_stat *stat);

// Gives the attributes of an open file.
int sluice_fstat(const struct sluice_process *process, int fd, struct sluice_stat *stat);

// Gives the room of the file system at `path`; below a quota, what the quota leaves.
int sluice_statfs(const struct sluice_process *process,
                  const char *path,
                  struct sluice_statfs *statfs);

// Copies the directory `host` of the host, with all below it, to the directory `to`. sluice_error_text() names the file that failed.
int sluice_fs_import(const struct sluice_fs *fs,
                     const char *host,
                     const char *to);

// Copies the tree at `from` to the directory `host` of the host. sluice_error_text() names the file that failed.
int sluice_fs_export(const struct sluice_fs *fs,
                     const char *from,
                     const char *host);

// Reads an extended attribute; a symbolic link's own. Gives its length, which alone is asked for if `size` is 0.
ptrdiff_t sluice_getxattr(const struct sluice_process *process,
                          const char *path,
                          const char *name,
                          void *value,
                          size_t size);

// Sets an extended attribute; a symbolic link's own. `flags` is 0, XATTR_CREATE or XATTR_REPLACE.
int sluice_setxattr(const struct sluice_process *process,
                    const char *path,
                    const char *name,
                    const void *value,
                    size_t size,
                    int flags);

// Lists the names of the extended attributes, each with a NUL behind it. Gives their length, which alone is asked for if `size` is 0.
ptrdiff_t sluice_listxattr(const struct sluice_process *process,
                           const char *path,
                           void *names,
                           size_t size);

// Removes an extended attribute; a symbolic link's own.
int sluice_removexattr(const struct sluice_process *process, const char *path, const char *name);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SLUICE_H */
