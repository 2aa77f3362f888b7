"""Files, names and paths: the calls of `os`, `open` and `pathlib`, with their results and errors."""

import errno
import io
import os
import stat
import threading

import pytest
import sluicefs


@pytest.fixture
def fs():
    fs = sluicefs.Fs()
    yield fs
    assert fs.check() == []


def test_each_mode_of_open_does_what_the_builtin_does(fs, tmp_path):
    def tried(open_, path, mode):
        steps = []
        try:
            with open_(path, mode) as file:
                steps += [type(file).__name__, file.readable(), file.writable(), file.seekable(), file.tell()]
                for step in (lambda: file.read(3), lambda: file.write("ab" if "b" not in mode else b"ab"), file.tell,
                             lambda: file.seek(0), lambda: file.read(), lambda: file.truncate(2)):
                    try:
                        steps.append(step())
                    except (OSError, ValueError) as error:
                        steps.append(type(error))
        except (OSError, ValueError) as error:
            steps.append((type(error), getattr(error, "errno", None)))
        return steps

    modes = [kind + plus + binary for kind in "rwax" for plus in ("", "+") for binary in ("", "b")]
    for there in (False, True):
        for mode in [*modes, "rw", "bt", "", "rr", "q"]:
            host, path = tmp_path / "file", "/file"
            for present in (host, fs / "file"):
                present.unlink(missing_ok=True)
                if there:
                    present.write_bytes(b"old contents")
            assert tried(fs.open, path, mode) == tried(open, host, mode), f"mode {mode!r}, file there: {there}"
            assert (fs / "file").exists() == host.exists()
            if host.exists():
                assert (fs / "file").read_bytes() == host.read_bytes(), mode


def test_text_has_encodings_and_line_ends(fs):
    with fs.open("/text", "w", encoding="utf-16", newline="\r\n") as file:
        print("grüße", "welt", sep="\n", file=file)
    with fs.open("/text", encoding="utf-16") as file:
        assert file.readlines() == ["grüße\n", "welt\n"]
    assert "\r\n".encode("utf-16-le") in fs.read_bytes("/text")


def test_unbuffered_reads_and_writes_take_any_buffer(fs):
    with fs.open("/raw", "wb+", 0) as raw:
        assert isinstance(raw, sluicefs.RawFile)
        parts = [b"bytes", bytearray(b"array"), memoryview(b"a view")[2:]]
        assert [raw.write(part) for part in parts] == [5, 5, 4]
        assert raw.pwrite(b"B", 0) == 1 and raw.pread(5, 0) == b"Bytes" and raw.tell() == 14
        raw.seek(0)
        room = bytearray(b"-" * 20)
        assert raw.readinto(room) == 14 and room == b"Bytesarrayview------"
        with pytest.raises(io.UnsupportedOperation):
            raw.fileno()
        assert raw.stat().st_size == 14
    with pytest.raises(ValueError):
        raw.read(1)


def test_a_read_of_more_than_there_is_takes_no_more_memory_than_the_file(fs):
    fs.write_bytes("/small", b"x")
    with fs.open("/small", "rb", 0) as raw:
        assert raw.read(1 << 62) == b"x"


def test_errors_are_those_of_os_with_their_paths(fs):
    fs.makedirs("/dir/below")
    fs.write_text("/file", "")
    cases = [
        (FileNotFoundError, errno.ENOENT, lambda: fs.stat("/none")),
        (FileExistsError, errno.EEXIST, lambda: fs.mkdir("/dir")),
        (NotADirectoryError, errno.ENOTDIR, lambda: fs.listdir("/file")),
        (IsADirectoryError, errno.EISDIR, lambda: fs.open("/dir", "w")),
        (OSError, errno.ENOTEMPTY, lambda: fs.rmdir("/dir")),
        (OSError, errno.ENAMETOOLONG, lambda: fs.mkdir("/" + "n" * 256)),
        (OSError, errno.EINVAL, lambda: fs.rename("/dir", "/dir/below/dir")),
        (OSError, errno.ENODATA, lambda: fs.getxattr("/file", "user.none")),
    ]
    for kind, number, call in cases:
        with pytest.raises(kind) as raised:
            call()
        assert raised.value.errno == number and raised.value.filename.startswith("/"), raised.value
    with pytest.raises(FileNotFoundError) as raised:
        fs.rename("/none", "/other")
    assert (raised.value.filename, raised.value.filename2) == ("/none", "/other")
    for wrong in ("/a\0b", 7, None):
        with pytest.raises((TypeError, ValueError, OSError)):
            fs.stat(wrong)


def test_names_that_are_no_text_go_in_and_out(fs):
    name = os.fsdecode(b"/\xff\xfe")
    fs.write_bytes(name, b"here")
    assert fs.listdir("/") == [name[1:]] and fs.read_bytes(name) == b"here"


def test_attributes_are_kept(fs):
    fs.write_text("/file", "x" * 5000)
    fs.chmod("/file", 0o640)
    fs.chown("/file", 7, -1)
    fs.utime("/file", ns=(1_000_000_001, -5))
    found = fs.stat("/file")
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, found.st_size) == (0o640, 7, 0, 5000)
    assert (found.st_atime_ns, found.st_mtime_ns, found.st_blksize) == (1_000_000_001, -5, 4096)
    fs.setxattr("/file", "user.colour", b"green")
    assert fs.listxattr("/file") == ["user.colour"] and fs.getxattr("/file", "user.colour") == b"green"
    fs.removexattr("/file", "user.colour")
    fs.symlink("file", "/link")
    fs.link("/file", "/second")
    assert fs.readlink("/link") == "file" and fs.islink("/link") and not fs.islink("/file")
    assert fs.stat("/link").st_ino == fs.stat("/second").st_ino != fs.lstat("/link").st_ino
    assert fs.access("/file", os.R_OK) and not fs.access("/none", os.F_OK)


def test_paths_and_walks_are_those_of_pathlib_and_os(fs, tmp_path):
    for root in (tmp_path, fs / "tree"):
        root.mkdir(exist_ok=True)
        for name in ("a/b/c.txt", "a/d.txt", "e/f.py", "g.txt"):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
        (root / "link").symlink_to("a", target_is_directory=True)
    tree = fs / "tree"
    for pattern in ("*", "*.txt", "**/*.txt", "a/*", "*/*.txt", "[eg]*", "**/c.txt", "none/*", "g.txt"):
        found = {str(path.relative_to(tree)) for path in tree.glob(pattern)}
        assert found == {str(path.relative_to(tmp_path)) for path in tmp_path.glob(pattern)}, pattern
    ours = [(os.path.relpath(top, "/tree"), sorted(dirs), sorted(files)) for top, dirs, files in fs.walk("/tree")]
    theirs = [(os.path.relpath(top, tmp_path), sorted(dirs), sorted(files)) for top, dirs, files in os.walk(tmp_path)]
    assert sorted(ours) == sorted(theirs)
    path = tree / "a" / "d.txt"
    assert (path.name, path.stem, path.suffix, path.parent.name) == ("d.txt", "d", ".txt", "a")
    assert path.with_suffix(".md").name == "d.md" and path.read_text() == "a/d.txt" and path == fs.path(str(path))
    assert str(path.rename(tree / "moved")) == "/tree/moved" and not path.exists()
    (tree / "new").touch()
    with pytest.raises(FileExistsError):
        (tree / "new").touch(exist_ok=False)


def test_a_user_may_do_less_than_root(fs):
    fs.mkdir("/private", 0o700)
    user = fs.process(1000, 1000)
    with pytest.raises(PermissionError):
        user.listdir("/private")
    fs.mkdir("/home")
    fs.chown("/home", 1000, 1000)
    user.chdir("/home")
    user.write_text("own", "")
    fs.makedirs("/home/roots/below")
    with pytest.raises(PermissionError):
        user.rmtree("/home/roots")
    fs.symlink("roots", "/home/link")
    with pytest.raises(NotADirectoryError):
        fs.rmtree("/home/link")
    fs.rmtree("/home/roots")
    assert fs.stat("/home/own").st_uid == 1000 and user.getcwd() == "/home" and fs.getcwd() == "/"


def test_a_file_system_in_memory_may_be_used_with_with():
    with sluicefs.Fs() as fs:
        fs.write_text("/file", "x")
    assert fs.read_text("/file") == "x"


def test_a_full_file_system_says_so_and_loses_nothing():
    fs = sluicefs.Fs(size=1 << 20)
    fs.write_bytes("/kept", b"kept")
    with pytest.raises(OSError) as raised:
        fs.write_bytes("/large", bytes(2 << 20))
    assert raised.value.errno == errno.ENOSPC
    fs.unlink("/large")
    fs.write_bytes("/small", bytes(1 << 19))
    assert fs.read_bytes("/kept") == b"kept" and fs.statvfs("/").f_blocks == 256


def test_locks_exclude_others_and_end_with_their_file(fs):
    fs.write_bytes("/file", bytes(100))
    with fs.open("/file", "rb+", 0) as one, fs.open("/file", "rb+", 0) as other:
        one.flock()
        with pytest.raises(BlockingIOError):
            other.flock(block=False)
        with pytest.raises(TimeoutError):
            other.flock(timeout=0.01)
        one.funlock()
        other.flock(block=False)
    program = fs.process()
    with fs.open("/file", "rb+", 0) as one, program.open("/file", "rb+", 0) as other:
        one.lockf(10, start=0)
        other.lockf(10, start=10, block=False)
        with pytest.raises(BlockingIOError):
            other.lockf(1, start=9, block=False)
        waiter = threading.Thread(target=lambda: other.lockf(1, start=9))
        waiter.start()
        one.unlockf(10)
        waiter.join()


def test_threads_append_at_once_and_lose_nothing(fs):
    def append(number):
        with fs.open("/log", "ab", 0) as log:
            for _ in range(200):
                log.write(b"%d\n" % number)

    threads = [threading.Thread(target=append, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = fs.read_text("/log").split()
    assert [lines.count(str(number)) for number in range(4)] == [200] * 4
