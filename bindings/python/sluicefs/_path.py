"""Paths of a file system, with the methods of `pathlib.Path`."""

import fnmatch
import os
import stat as modes
from pathlib import PurePosixPath


class Path:
    """A path of the file system `fs`. Methods that need no file system (`name`, `parts`, `with_suffix`) are `pathlib.PurePosixPath`'s."""

    __slots__ = ("fs", "_pure")

    def __init__(self, fs, *parts):
        self.fs = fs
        self._pure = PurePosixPath(*(part._pure if isinstance(part, Path) else part for part in parts))

    def __str__(self):
        return str(self._pure)

    def __repr__(self):
        return f"sluicefs.Path({str(self)!r})"

    def __fspath__(self):
        # For the calls of `fs`: the host's would take it for a path of the host.
        return str(self._pure)

    def __hash__(self):
        return hash((id(self.fs), self._pure))

    def __eq__(self, other):
        return isinstance(other, Path) and self.fs is other.fs and self._pure == other._pure

    def __lt__(self, other):
        return self._pure < other._pure if isinstance(other, Path) else NotImplemented

    def __truediv__(self, other):
        return Path(self.fs, self, other)

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._pure, name)
        if isinstance(value, PurePosixPath):
            return Path(self.fs, value)
        if not callable(value):
            return value

        def call(*arguments, **options):
            arguments = [part._pure if isinstance(part, Path) else part for part in arguments]
            made = value(*arguments, **options)
            return Path(self.fs, made) if isinstance(made, PurePosixPath) else made

        return call

    @property
    def parents(self):
        return [Path(self.fs, parent) for parent in self._pure.parents]

    # Contents

    def open(self, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        return self.fs.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self):
        return self.fs.read_bytes(self)

    def write_bytes(self, data):
        return self.fs.write_bytes(self, data)

    def read_text(self, encoding=None, errors=None):
        return self.fs.read_text(self, encoding, errors)

    def write_text(self, data, encoding=None, errors=None, newline=None):
        return self.fs.write_text(self, data, encoding, errors, newline)

    def touch(self, mode=0o666, exist_ok=True):
        flags = os.O_CREAT | (0 if exist_ok else os.O_EXCL)
        self.fs.open(self, "ab", 0, permissions=mode, flags=flags).close()
        self.fs.utime(self)

    # Names

    def iterdir(self):
        return (self / name for name in self.fs.listdir(self))

    def glob(self, pattern):
        """The paths below that match; `**` is any number of directories, links not followed."""
        parts = PurePosixPath(pattern).parts
        if not parts or pattern.startswith("/"):
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        seen = set()
        for path in self._matching(parts):
            if path not in seen:
                seen.add(path)
                yield path

    def rglob(self, pattern):
        return self.glob(f"**/{pattern}")

    def _matching(self, parts):
        if not parts:
            yield self
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self._matching(rest)
        if not set(first) & set("*?["):
            if (self / first).exists():
                yield from (self / first)._matching(rest)
            return
        try:
            entries = list(self.fs.scandir(self))
        except (NotADirectoryError, FileNotFoundError, PermissionError):
            return
        for entry in entries:
            below = self / entry.name
            if first == "**":
                if entry.is_dir(follow_symlinks=False):
                    yield from below._matching(parts)
            elif fnmatch.fnmatchcase(entry.name, first) and (not rest or entry.is_dir()):
                yield from below._matching(rest)

    def walk(self, top_down=True, on_error=None, follow_symlinks=False):
        for directory, directories, files in self.fs.walk(self, top_down, on_error, follow_symlinks):
            yield Path(self.fs, directory), directories, files

    def mkdir(self, mode=0o777, parents=False, exist_ok=False):
        if parents and not self.parent.exists():
            self.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.fs.mkdir(self, mode)
        except FileExistsError:
            if not (exist_ok and self.is_dir()):
                raise

    def rmdir(self):
        self.fs.rmdir(self)

    def unlink(self, missing_ok=False):
        try:
            self.fs.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rename(self, target):
        self.fs.rename(self, target)
        return Path(self.fs, target)

    replace = rename

    def symlink_to(self, target, target_is_directory=False):
        self.fs.symlink(target, self)

    def hardlink_to(self, target):
        self.fs.link(target, self)

    def readlink(self):
        return Path(self.fs, self.fs.readlink(self))

    # Attributes

    def stat(self, *, follow_symlinks=True):
        return self.fs.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self):
        return self.fs.lstat(self)

    def exists(self):
        return self.fs.exists(self)

    def is_dir(self):
        return self.fs.isdir(self)

    def is_file(self):
        return self.fs.isfile(self)

    def is_symlink(self):
        return self.fs.islink(self)

    def is_fifo(self):
        return self.exists() and modes.S_ISFIFO(self.stat().st_mode)

    def samefile(self, other):
        one, other = self.stat(), self.fs.stat(other)
        return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)

    def chmod(self, mode):
        self.fs.chmod(self, mode)
