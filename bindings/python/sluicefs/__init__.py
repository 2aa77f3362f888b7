"""A POSIX file system in memory, or in a directory that keeps it, for programs and their tests.

>>> import sluicefs
>>> fs = sluicefs.Fs()
>>> fs.makedirs("/etc/app")
>>> with fs.open("/etc/app/conf", "w") as file:
...     _ = file.write("port = 80\\n")
>>> (fs / "etc" / "app" / "conf").read_text()
'port = 80\\n'
"""

from ._file import RawFile
from ._fs import DirEntry, Fs, Unsynced
from ._path import Path

__all__ = ["DirEntry", "Fs", "Path", "RawFile", "Unsynced"]
