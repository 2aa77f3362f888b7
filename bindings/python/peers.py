"""sluicefs beside other file systems of a Python test: medians of five runs in turns, microseconds for each file.

The peers are tmp_path on tmpfs (/dev/shm), fsspec's memory, and pyfakefs. Run by `make peers`.
"""

import os
import shutil
import statistics
import tempfile
import time

import fsspec
from pyfakefs.fake_filesystem import FakeFileOpen, FakeFilesystem, FakeOsModule

import sluicefs
from sluicefs.fsspec import SluiceFileSystem

FILES, RUNS = 1000, 5


class Host:
    """The calls of one file system, by which all are measured."""

    def __init__(self, os_=os, open_=open, root=None):
        self.root = root or tempfile.mkdtemp(dir="/dev/shm")
        self.mkdir, self.listdir, self.stat, self.unlink = os_.mkdir, os_.listdir, os_.stat, os_.unlink
        self.open, self.end = open_, lambda: None if root else shutil.rmtree(self.root)


class Spec:
    def __init__(self, fs):
        self.root, self.open, self.end = "/bench", fs.open, lambda: fs.rm("/bench", recursive=True)
        self.mkdir, self.listdir, self.stat, self.unlink = fs.mkdir, fs.ls, fs.info, fs.rm_file
        fs.mkdir("/bench")


def fake():
    fs = FakeFilesystem()
    fs.create_dir("/bench")
    return Host(FakeOsModule(fs), FakeFileOpen(fs), "/bench")


def ours():
    fs = sluicefs.Fs()
    fs.mkdir("/bench")
    return Host(fs, fs.open, "/bench")


KINDS = {
    "sluicefs.Fs": ours,
    "tmp_path on tmpfs": Host,
    "pyfakefs": fake,
    "fsspec: sluice": lambda: Spec(SluiceFileSystem(skip_instance_cache=True)),
    "fsspec: memory": lambda: Spec(fsspec.filesystem("memory")),
}


def measured(make):
    fs, rows = make(), {}

    def row(name, work, count=FILES):
        begun = time.perf_counter()
        work()
        rows[name] = (time.perf_counter() - begun) / count * 1e6

    directory = fs.root + "/d"
    names = [f"{directory}/{number}" for number in range(FILES)]

    def write():
        for name in names:
            with fs.open(name, "wb") as file:
                file.write(b"x" * 1000)

    def read():
        for name in names:
            with fs.open(name, "rb") as file:
                assert len(file.read()) == 1000

    def megabytes():
        with fs.open(directory + "/large", "wb") as file:
            for _ in range(100):
                file.write(bytes(1 << 20))
        with fs.open(directory + "/large", "rb") as file:
            while file.read(1 << 20):
                pass

    fs.mkdir(directory)
    row("write", write)
    row("read", read)
    row("stat", lambda: [fs.stat(name) for name in names])
    row("list", lambda: fs.listdir(directory))
    row("remove", lambda: [fs.unlink(name) for name in names])
    row("1 MB in and out", megabytes, 100)
    fs.end()
    return rows


runs = {name: [] for name in KINDS}
for _ in range(RUNS):
    for name, make in KINDS.items():
        runs[name].append(measured(make))
columns = list(next(iter(runs.values()))[0])
print("microseconds for each file of 1,000 bytes" + "".join(f"{column:>16}" for column in columns))
for name, rows in runs.items():
    print(f"{name:41}" + "".join(f"{statistics.median(row[column] for row in rows):16.1f}" for column in columns))
