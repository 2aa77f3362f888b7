"""sluicefs for `fsspec`: `fsspec.filesystem("sluice")` is in memory, with `store=DIRECTORY` it is kept there."""

import os
import stat as modes
from datetime import datetime, timezone

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from ._fs import Fs

_TYPES = {modes.S_IFREG: "file", modes.S_IFDIR: "directory", modes.S_IFLNK: "link"}


class SluiceFileSystem(AbstractFileSystem):
    """A file system in memory, the one of `fs`, or the one kept in the host's directory `store` (made if it is missing).

    With `auto_mkdir`, files that are written get the directories that they lack.
    """

    protocol = "sluice"
    root_marker = "/"
    local_file = False

    def __init__(self, fs=None, store=None, auto_mkdir=False, **options):
        if self._cached:
            return
        super().__init__(**options)
        if store is not None and fs is None:
            is_new = not os.path.isdir(store) or not os.listdir(store)
            fs = Fs.create_store(store) if is_new else Fs.open_store(store)
        self.tree = Fs() if fs is None else fs
        self.auto_mkdir = auto_mkdir

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path)
        path = path.removeprefix("sluice://").removeprefix("sluice:")
        return "/" + path.strip("/")

    def _make_parent(self, path):
        if self.auto_mkdir:
            self.tree.makedirs(os.path.dirname(path), exist_ok=True)

    def info(self, path, **_):
        path = self._strip_protocol(path)
        link = self.tree.lstat(path)
        stat, destination = link, None
        if modes.S_ISLNK(link.st_mode):
            destination = self.tree.readlink(path)
            try:
                stat = self.tree.stat(path)
            except OSError:
                pass
        found = {
            "name": path,
            "size": stat.st_size if not modes.S_ISDIR(stat.st_mode) else 0,
            "type": _TYPES.get(modes.S_IFMT(stat.st_mode), "other"),
            "created": stat.st_ctime,
            "mtime": stat.st_mtime,
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "ino": stat.st_ino,
            "nlink": stat.st_nlink,
            "islink": destination is not None,
        }
        if destination is not None:
            found["destination"] = destination
        return found

    def ls(self, path, detail=False, **_):
        path = self._strip_protocol(path)
        info = self.info(path)
        names = [path]
        if info["type"] == "directory":
            names = [os.path.join(path, name) for name in sorted(self.tree.listdir(path))]
        return [self.info(name) for name in names] if detail else names

    def mkdir(self, path, create_parents=True, **_):
        path = self._strip_protocol(path)
        if self.exists(path):
            raise FileExistsError(path)
        if create_parents:
            self.tree.makedirs(path)
        else:
            self.tree.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.tree.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.tree.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self.tree.unlink(self._strip_protocol(path))

    _rm = rm_file

    def rm(self, path, recursive=False, maxdepth=None):
        for each in [path] if isinstance(path, (str, os.PathLike)) else path:
            each = self._strip_protocol(each)
            if not self.tree.isdir(each) or self.tree.islink(each):
                self.tree.unlink(each)
            elif not recursive:
                raise IsADirectoryError(each)
            elif maxdepth is not None:
                super().rm(each, recursive, maxdepth)
            else:
                self.tree.rmtree(each)

    def cp_file(self, path1, path2, **_):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self._make_parent(path2)
        if self.tree.isdir(path1):
            self.tree.makedirs(path2, exist_ok=True)
        else:
            self.tree.copyfile(path1, path2)

    def mv(self, path1, path2, **_):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.tree.isdir(path2):
            path2 = os.path.join(path2, os.path.basename(path1))
        self.tree.rename(path1, path2)

    mv_file = mv

    def link(self, src, dst, **_):
        self.tree.link(self._strip_protocol(src), self._strip_protocol(dst))

    def symlink(self, src, dst, **_):
        self.tree.symlink(self._strip_protocol(src), self._strip_protocol(dst))

    def islink(self, path):
        return self.tree.islink(self._strip_protocol(path))

    def touch(self, path, truncate=True, **_):
        path = self._strip_protocol(path)
        self._make_parent(path)
        self.tree.open(path, "wb" if truncate else "ab").close()
        self.tree.utime(path)

    def created(self, path):
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path):
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def chmod(self, path, mode):
        self.tree.chmod(self._strip_protocol(path), mode)

    def _open(self, path, mode="rb", block_size=None, **_):
        path = self._strip_protocol(path)
        if "r" not in mode:
            self._make_parent(path)
        return self.tree.open(path, mode)
