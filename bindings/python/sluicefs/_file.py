"""Open files, as the classes of `io`."""

import io
import os

StrPath = str | os.PathLike[str]
Buffer = bytes | bytearray | memoryview

_ACCESS = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
           "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}


class RawFile(io.RawIOBase):
    """An open file without a buffer. Reads and writes may be short, as those of `io.FileIO`."""

    def __init__(self, process, path, flags, mode=0o666):
        super().__init__()
        self._process, self.name = process, path
        self._flags = flags
        self._fd = None
        self._fd = process.open(path, flags, mode)

    def __repr__(self):
        return f"<sluicefs.RawFile {self.name!r}{' closed' if self.closed else ''}>"

    @property
    def mode(self):
        access = self._flags & os.O_ACCMODE
        return {os.O_RDONLY: "rb", os.O_WRONLY: "wb"}.get(access, "rb+")

    def _open(self):
        if self._fd is None:
            raise ValueError("I/O operation on closed file")
        return self._fd

    def readable(self):
        self._open()
        return self._flags & os.O_ACCMODE != os.O_WRONLY

    def writable(self):
        self._open()
        return self._flags & os.O_ACCMODE != os.O_RDONLY

    def seekable(self):
        self._open()
        return True

    def close(self):
        if self.closed:
            return
        super().close()
        fd, self._fd = self._fd, None
        if fd is not None:
            self._process.close(fd)

    def read(self, size=-1):
        if size is None or size < 0:
            return self.readall()
        if not self.readable():
            raise io.UnsupportedOperation("not readable")
        return self._process.read(self._open(), size)

    def readall(self):
        parts = []
        while part := self.read(1 << 20):
            parts.append(part)
        return b"".join(parts)

    def readinto(self, buffer):
        with memoryview(buffer).cast("B") as view:
            data = self.read(len(view))
            view[:len(data)] = data
        return len(data)

    def write(self, data):
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        return self._process.write(self._open(), data)

    def seek(self, offset, whence=os.SEEK_SET):
        return self._process.lseek(self._open(), offset, whence)

    def tell(self):
        return self.seek(0, os.SEEK_CUR)

    def truncate(self, size=None):
        if not self.writable():
            raise io.UnsupportedOperation("not writable")
        size = self.tell() if size is None else size
        self._process.ftruncate(self._open(), size)
        return size

    def pread(self, size, offset):
        """At most `size` bytes from `offset`; the position stays."""
        return self._process.read(self._open(), size, offset)

    def pwrite(self, data, offset):
        """Writes at `offset`; the position stays. The number of bytes written."""
        return self._process.write(self._open(), data, offset)

    def stat(self):
        """As `os.fstat`."""
        return os.stat_result(_flat(self._process.fstat(self._open())))

    def fsync(self):
        """Makes contents, attributes and name durable. Flush the buffers of the file above first."""
        self._process.fsync(self._open())

    def fdatasync(self):
        """Makes the contents durable."""
        self._process.fdatasync(self._open())

    def fallocate(self, offset, length, mode=0):
        """Reserves the range, or what `mode` (Linux's `FALLOC_FL_*`) says."""
        self._process.fallocate(self._open(), mode, offset, length)

    def flock(self, shared=False, block=True, timeout=None):
        """Locks the file, for this open file. `BlockingIOError` without `block`, `TimeoutError` after `timeout` seconds."""
        self._process.flock(self._open(), "read" if shared else "write", block, timeout)

    def funlock(self):
        """Gives the lock of `flock` back."""
        self._process.flock(self._open(), "unlock", False)

    def lockf(self, length=0, start=0, shared=False, block=True, timeout=None):
        """Locks bytes, for the process of this file system (see `Fs.process`). Length 0 is to the end."""
        self._process.lock_range(self._open(), "read" if shared else "write", start, length, block, timeout)

    def unlockf(self, length=0, start=0):
        """Gives the lock of these bytes back."""
        self._process.lock_range(self._open(), "unlock", start, length, False)


def _flat(fields):
    """The fields of `os.stat_result`, in one row."""
    return [field for group in fields for field in group]


def open_file(process, path, mode, buffering, encoding, errors, newline, permissions, flags):
    """Opens a file for `Fs.open`; the rules of `mode` and `buffering` are those of `open`."""
    letters = set(mode)
    action = letters & set(_ACCESS)
    if len(letters) != len(mode) or len(action) != 1 or letters - set("rwax+bt") or {"b", "t"} <= letters:
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in letters and (encoding, errors, newline) != (None, None, None):
        raise ValueError("binary mode takes no encoding, errors or newline")
    if buffering == 0 and "b" not in letters:
        raise ValueError("can't have unbuffered text I/O")
    access = _ACCESS[action.pop()]
    if "+" in letters:
        access = access & ~os.O_ACCMODE | os.O_RDWR
    raw = RawFile(process, path, access | flags, permissions)
    try:
        if access & os.O_APPEND:
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            return raw
        size = buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE
        if raw.readable() and raw.writable():
            file = io.BufferedRandom(raw, size)
        elif raw.writable():
            file = io.BufferedWriter(raw, size)
        else:
            file = io.BufferedReader(raw, size)
        if "b" in letters:
            return file
        return io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
    except BaseException:
        raw.close()
        raise
