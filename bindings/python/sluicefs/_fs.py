"""File systems, with the calls of `os` and `shutil` as methods."""

import errno
import os
import stat as modes
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, NamedTuple

from ._file import Buffer, StrPath, _flat, open_file
from ._native import Process
from ._path import Path


class Unsynced(NamedTuple):
    """The changes of one path that a power failure now may lose."""

    path: str
    bytes: int
    name: bool
    attributes: bool


class DirEntry:
    """An entry of a directory, as `os.scandir` gives it."""

    def __init__(self, fs, directory, name, kind, inode) -> None:
        self._fs, self._kind, self._inode = fs, kind, inode
        self.name = name
        self.path = os.path.join(directory, name)

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return self._inode

    def is_symlink(self) -> bool:
        return self._kind == modes.S_IFLNK

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(modes.S_IFDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(modes.S_IFREG, follow_symlinks)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._fs.stat(self.path, follow_symlinks=follow_symlinks)

    def _is(self, kind, follow) -> bool:
        if not (follow and self.is_symlink()):
            return self._kind == kind
        try:
            return modes.S_IFMT(self.stat().st_mode) == kind
        except FileNotFoundError:
            return False


class Fs:
    """A file system in memory, seen by a process of root.

    Paths are strings, or anything with `__fspath__`. The limits `size` (bytes) and `inodes` make it full as a disk gets full.
    Each thread may call; calls release the interpreter's lock. After `os.fork`, the child's copy must not be used.
    """

    def __init__(
        self,
        *,
        size: int | None = None,
        inodes: int | None = None,
        owner: tuple[int, int] = (0, 0),
        mode: int = 0o755,
    ) -> None:
        self._process = Process.in_memory(size, inodes, owner, mode)

    @classmethod
    def create_store(
        cls,
        directory: StrPath,
        *,
        size: int | None = None,
        inodes: int | None = None,
        memory: int | None = None,
        compress: bool = False,
        passphrase: str | None = None,
    ) -> "Fs":
        """An empty file system that is kept in `directory`, an empty or new directory of the host.

        `memory` bounds what it keeps in memory. Synced changes survive a crash; `close`, or the end of `with`, syncs all.
        """
        return cls._of(Process.create_store(directory, size, inodes, memory, compress, passphrase))

    @classmethod
    def open_store(
        cls,
        directory: StrPath,
        *,
        size: int | None = None,
        memory: int | None = None,
        passphrase: str | None = None,
    ) -> "Fs":
        """The file system that is kept in `directory`."""
        return cls._of(Process.open_store(directory, size, memory, passphrase))

    @classmethod
    def _of(cls, process) -> "Fs":
        fs = cls.__new__(cls)
        fs._process = process
        return fs

    def __enter__(self) -> "Fs":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Makes everything durable and closes the store. A file system in memory stays as it is."""
        self._process.close_store()

    def process(self, uid: int = 0, gid: int = 0, groups: Iterable[int] = ()) -> "Fs":
        """The same file system, seen by another process, of this user: with its own permissions, umask, directory and locks.

        Calls on the whole file system (snapshots, transfers, faults, crashes) have root's rights in each process.
        """
        return self._of(self._process.as_user(uid, gid, list(groups)))

    def __truediv__(self, path: StrPath) -> Path:
        return self.path("/") / path

    def path(self, path: StrPath = "/") -> Path:
        """A `sluicefs.Path`, with the methods of `pathlib.Path`."""
        return Path(self, path)

    # Files

    def open(
        self,
        path: StrPath,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o666,
        flags: int = 0,
    ) -> IO[Any]:
        """Opens a file as the builtin `open` does. `flags` are further flags of `os.open`, as `os.O_SYNC`."""
        return open_file(self._process, os.fspath(path), mode, buffering, encoding, errors, newline, permissions, flags)

    def read_bytes(self, path: StrPath) -> bytes:
        with self.open(path, "rb", 0) as file:
            return file.readall()

    def write_bytes(self, path: StrPath, data: Buffer) -> int:
        with self.open(path, "wb") as file:
            return file.write(data)

    def read_text(self, path: StrPath, encoding: str | None = None, errors: str | None = None) -> str:
        with self.open(path, "r", encoding=encoding, errors=errors) as file:
            return file.read()

    def write_text(
        self,
        path: StrPath,
        text: str,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> int:
        with self.open(path, "w", encoding=encoding, errors=errors, newline=newline) as file:
            return file.write(text)

    def truncate(self, path: StrPath, length: int) -> None:
        self._process.truncate(path, length)

    def copyfile(self, source: StrPath, target: StrPath) -> StrPath:
        """Copies contents. The copy shares the storage of the original until one of them is written."""
        with self.open(source, "rb", 0) as old, self.open(target, "wb", 0) as new:
            if (old.stat().st_dev, old.stat().st_ino) == (new.stat().st_dev, new.stat().st_ino):
                raise OSError(errno.EINVAL, "source and target are one file", os.fspath(source))
            while self._process.copy_file_range(old._fd, new._fd, 1 << 30):
                pass
        return target

    # Names

    def listdir(self, path: StrPath = ".") -> list[str]:
        return [name for name, _, _ in self._process.listdir(path)]

    def scandir(self, path: StrPath = ".") -> Iterator[DirEntry]:
        """The entries of a directory. Types are known without a further call."""
        return iter([DirEntry(self, os.fspath(path), *entry) for entry in self._process.listdir(path)])

    def mkdir(self, path: StrPath, mode: int = 0o777) -> None:
        self._process.mkdir(path, mode)

    def makedirs(self, path: StrPath, mode: int = 0o777, exist_ok: bool = False) -> None:
        path = os.fspath(path)
        parent = os.path.dirname(path.rstrip("/"))
        if parent and not self.exists(parent):
            self.makedirs(parent, exist_ok=True)
        try:
            self.mkdir(path, mode)
        except FileExistsError:
            if not (exist_ok and self.isdir(path)):
                raise

    def mkfifo(self, path: StrPath, mode: int = 0o666) -> None:
        self._process.mkfifo(path, mode)

    def rmdir(self, path: StrPath) -> None:
        self._process.rmdir(path)

    def unlink(self, path: StrPath) -> None:
        self._process.unlink(path)

    remove = unlink

    def rmtree(self, path: StrPath) -> None:
        """Removes a directory and all below."""
        if self.islink(path):
            raise OSError(errno.ENOTDIR, "a symbolic link, not a directory", os.fspath(path))
        for entry in self.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                self.rmtree(entry.path)
            else:
                self.unlink(entry.path)
        self.rmdir(path)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._process.rename(source, target, 0)

    replace = rename

    def exchange(self, one: StrPath, other: StrPath) -> None:
        """Exchanges two names, in one step."""
        self._process.rename(one, other, 2)

    def link(self, source: StrPath, target: StrPath) -> None:
        self._process.link(source, target)

    def symlink(self, target: StrPath, path: StrPath, target_is_directory: bool = False) -> None:
        self._process.symlink(target, path)

    def readlink(self, path: StrPath) -> str:
        return self._process.readlink(path)

    def walk(
        self,
        top: StrPath,
        topdown: bool = True,
        onerror: Callable[[OSError], object] | None = None,
        followlinks: bool = False,
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        """As `os.walk`."""
        top = os.fspath(top)
        try:
            entries = list(self.scandir(top))
        except OSError as error:
            if onerror is not None:
                onerror(error)
            return
        directories = [entry.name for entry in entries if entry.is_dir()]
        files = [entry.name for entry in entries if not entry.is_dir()]
        if topdown:
            yield top, directories, files
        for name in directories:
            below = os.path.join(top, name)
            if followlinks or not self.islink(below):
                yield from self.walk(below, topdown, onerror, followlinks)
        if not topdown:
            yield top, directories, files

    def getcwd(self) -> str:
        return os.fspath(self._process.getcwd())

    def chdir(self, path: StrPath) -> None:
        self._process.chdir(path)

    def umask(self, mask: int) -> int:
        return self._process.umask(mask)

    # Attributes

    def stat(self, path: StrPath, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat_result(_flat(self._process.stat(path, follow_symlinks)))

    def lstat(self, path: StrPath) -> os.stat_result:
        return self.stat(path, follow_symlinks=False)

    def exists(self, path: StrPath) -> bool:
        return self._kind(path) is not None

    def isdir(self, path: StrPath) -> bool:
        return self._kind(path) == modes.S_IFDIR

    def isfile(self, path: StrPath) -> bool:
        return self._kind(path) == modes.S_IFREG

    def islink(self, path: StrPath) -> bool:
        return self._kind(path, False) == modes.S_IFLNK

    def _kind(self, path: StrPath, follow=True) -> int | None:
        try:
            return modes.S_IFMT(self.stat(path, follow_symlinks=follow).st_mode)
        except OSError:
            return None

    def getsize(self, path: StrPath) -> int:
        return self.stat(path).st_size

    def access(self, path: StrPath, mode: int) -> bool:
        try:
            self._process.access(path, mode)
        except OSError:
            return False
        return True

    def chmod(self, path: StrPath, mode: int) -> None:
        self._process.chmod(path, mode)

    def chown(self, path: StrPath, uid: int, gid: int, *, follow_symlinks: bool = True) -> None:
        """-1 leaves one as it is."""
        uid, gid = (None if number == -1 else number for number in (uid, gid))
        self._process.chown(path, uid, gid, follow_symlinks)

    def utime(
        self,
        path: StrPath,
        times: tuple[float, float] | None = None,
        *,
        ns: tuple[int, int] | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        if times is not None and ns is not None:
            raise ValueError("utime: one of times and ns")
        if times is not None:
            ns = [round(seconds * 10**9) for seconds in times]
        self._process.utime(path, None if ns is None else list(ns), follow_symlinks)

    def statvfs(self, path: StrPath = "/") -> os.statvfs_result:
        """As `os.statvfs`. A file system without a limit has 0 blocks."""
        size, (blocks, free), (files, files_free), longest = self._process.statvfs(path)
        return os.statvfs_result((size, size, blocks, free, free, files, files_free, files_free, 0, longest))

    def getxattr(self, path: StrPath, name: str) -> bytes:
        return self._process.getxattr(path, name)

    def setxattr(self, path: StrPath, name: str, value: bytes, flags: int = 0) -> None:
        self._process.setxattr(path, name, value, flags)

    def listxattr(self, path: StrPath) -> list[str]:
        return self._process.listxattr(path)

    def removexattr(self, path: StrPath, name: str) -> None:
        self._process.removexattr(path, name)

    def sync(self) -> None:
        """Makes everything durable."""
        self._process.sync()

    # Trees, snapshots

    def snapshot(self, path: StrPath = "/") -> "Fs":
        """Another file system in memory, with the tree below `path` as it is now. Contents are shared until one side writes."""
        return self._of(self._process.snapshot(path))

    def clone(self, source: StrPath, target: StrPath) -> None:
        """Copies a file or a tree within the file system, without copying contents."""
        self._process.clone_tree(source, target)

    def take_snapshot(self, name: str) -> None:
        """Keeps the whole tree, as of one moment, in `/.snapshots/NAME`."""
        self._process.take_snapshot(name)

    def snapshots(self) -> list[str]:
        return self._process.snapshots()

    def restore_snapshot(self, name: str, path: str = "") -> None:
        """Puts the tree, or the part `path` of it, back to what it was in the snapshot."""
        self._process.restore_snapshot(name, path)

    def drop_snapshot(self, name: str) -> None:
        self._process.drop_snapshot(name)

    def import_dir(self, host: StrPath, target: StrPath = "/") -> tuple[int, int]:
        """Copies a tree of the host into a directory. The numbers of files and bytes."""
        return self._process.import_dir(host, target)

    def export_dir(self, source: StrPath, host: StrPath) -> tuple[int, int]:
        """Copies a tree to a directory of the host. The numbers of files and bytes."""
        return self._process.export_dir(source, host)

    def import_tar(self, host: StrPath, target: StrPath = "/") -> tuple[int, int]:
        return self._process.import_tar(host, target)

    def export_tar(self, source: StrPath, host: StrPath) -> tuple[int, int]:
        return self._process.export_tar(source, host)

    # Faults and crashes

    def inject(self, rule: str) -> int:
        """Makes calls fail: `"write:ENOSPC:path=/log:nth=2"`, `"fsync:EIO"`, `"read:short=100"`, `"write:delay=20ms"`.

        The number that `clear_fault` takes.
        """
        return self._process.inject(rule)

    def clear_fault(self, number: int) -> bool:
        return self._process.clear_fault(number)

    def clear_faults(self) -> None:
        self._process.clear_faults()

    def track_crashes(self) -> None:
        """From now on it is known what a power failure would leave. All that is there now counts as durable."""
        self._process.track_crashes()

    def crash(self, seed: int) -> "Fs":
        """The file system that a power failure now would leave, in memory: with seed 0 the least, with 1 the most."""
        return self._of(self._process.crash_clone(seed))

    def unsynced(self) -> list[Unsynced]:
        """The changes that a power failure now may lose."""
        return [Unsynced(os.fspath(path), *rest) for path, *rest in self._process.unsynced()]

    def check(self) -> list[str]:
        """Checks every invariant of the tree; what is wrong, a line each."""
        return self._process.check()
