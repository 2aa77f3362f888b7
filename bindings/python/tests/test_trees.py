"""Stores, snapshots, copies, transfers, faults and crashes."""

import errno
import os
import signal
import subprocess
import sys

import pytest
import sluicefs


def test_a_store_keeps_what_was_closed_and_what_was_synced(tmp_path):
    store = tmp_path / "store"
    with sluicefs.Fs.create_store(store) as fs:
        fs.write_text("/letter", "Dear reader")
    killed = """
import os, signal, sluicefs, sys
fs = sluicefs.Fs.open_store(sys.argv[1])
with fs.open("/synced", "wb", 0) as file:
    file.write(b"durable")
    file.fsync()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", killed, store]).returncode == -signal.SIGKILL
    with sluicefs.Fs.open_store(store) as fs:
        assert fs.read_text("/letter") == "Dear reader" and fs.read_bytes("/synced") == b"durable"
        assert fs.check() == []
        with pytest.raises(OSError) as raised:
            sluicefs.Fs.open_store(store)
        assert raised.value.errno == errno.EBUSY and raised.value.filename == str(store)
    with pytest.raises(FileExistsError):
        sluicefs.Fs.create_store(store)
    with pytest.raises(OSError, match="store"):
        sluicefs.Fs.open_store(tmp_path)


def test_an_encrypted_store_opens_with_its_words_alone(tmp_path):
    store = tmp_path / "store"
    with sluicefs.Fs.create_store(store, compress=True, passphrase="correct horse") as fs:
        fs.write_text("/secret", "attack at dawn " * 1000)
    assert not any(b"attack" in path.read_bytes() for path in store.iterdir())
    for words in (None, "wrong horse"):
        with pytest.raises(OSError):
            sluicefs.Fs.open_store(store, passphrase=words)
    with sluicefs.Fs.open_store(store, passphrase="correct horse") as fs:
        assert fs.read_text("/secret").startswith("attack at dawn")


def test_snapshots_and_copies_stay_as_they_were():
    fs = sluicefs.Fs()
    fs.makedirs("/data/below")
    fs.write_text("/data/file", "good")
    copy = fs.snapshot("/")
    fs.take_snapshot("before")
    fs.clone("/data", "/clone")
    fs.write_text("/data/file", "spoilt")
    assert copy.read_text("/data/file") == fs.read_text("/clone/file") == "good"
    assert fs.snapshots() == ["before"] and fs.read_text("/.snapshots/before/data/file") == "good"
    with pytest.raises(OSError) as raised:
        fs.write_text("/.snapshots/before/data/file", "")
    assert raised.value.errno == errno.EROFS
    fs.restore_snapshot("before", "data/file")
    assert fs.read_text("/data/file") == "good"
    fs.drop_snapshot("before")
    assert fs.snapshots() == []


def test_trees_go_out_and_come_back(tmp_path):
    fs = sluicefs.Fs()
    fs.makedirs("/tree/below")
    fs.write_text("/tree/below/file", "contents")
    fs.symlink("below/file", "/tree/link")
    assert fs.export_dir("/tree", tmp_path / "out") == (1, 8)
    assert (tmp_path / "out" / "link").read_text() == "contents"
    assert fs.export_tar("/tree", tmp_path / "tree.tar") == (1, 8)
    fs.mkdir("/again")
    assert fs.import_tar(tmp_path / "tree.tar", "/again") == (1, 8)
    other = sluicefs.Fs()
    assert other.import_dir(tmp_path / "out") == (1, 8)
    assert other.read_text("/link") == fs.read_text("/again/link") == "contents"
    with pytest.raises(FileNotFoundError):
        fs.import_dir(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        fs.export_tar("/none", tmp_path / "none.tar")
    assert not (tmp_path / "none.tar").exists()


def test_faults_strike_the_calls_that_they_name():
    fs = sluicefs.Fs()
    rule = fs.inject("write:ENOSPC:path=/log:nth=2")
    fs.write_text("/log", "first")
    with pytest.raises(OSError) as raised:
        fs.write_text("/log", "second")
    assert raised.value.errno == errno.ENOSPC
    assert fs.clear_fault(rule) and not fs.clear_fault(rule)
    fs.write_text("/log", "second")
    with pytest.raises(ValueError, match="explode"):
        fs.inject("write:explode")


def test_a_crash_shows_a_missing_fsync_and_none_where_it_is():
    def save(fs, sync):
        with fs.open("/balance.new", "wb", 0) as file:
            file.write(b"100")
            if sync:
                file.fsync()
        fs.rename("/balance.new", "/balance")

    for sync in (False, True):
        fs = sluicefs.Fs()
        fs.write_text("/balance", "50")
        fs.track_crashes()
        save(fs, sync)
        left = {fs.crash(seed).read_text("/balance") for seed in range(100)}
        assert left == ({"50", "100"} if sync else left | {""}), left
        assert ("/balance" in [lost.path for lost in fs.unsynced()])
        fs.sync()
        assert fs.unsynced() == []


def test_the_plugin_gives_a_tree_and_keeps_that_of_a_failed_test(pytester):
    pytester.makepyfile(
        """
        def test_good(sluice_fs):
            sluice_fs.write_text("/file", "x")

        def test_bad(sluice_fs):
            sluice_fs.write_text("/evidence", "look")
            assert False
        """
    )
    result = pytester.runpytest_subprocess("--basetemp", str(pytester.path / "kept"))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*the tree of sluice_fs*", "1 files, 4 bytes: *"])
    assert (pytester.path / "kept" / "test_bad0" / "sluice_fs" / "evidence").read_text() == "look"


def test_the_plugin_mounts_a_file_system_for_programs(sluice_mount):
    file = sluice_mount / "file"
    subprocess.run(["sh", "-c", 'echo hello >"$1"', "sh", file], check=True)
    assert file.read_text() == "hello\n" and os.path.ismount(sluice_mount)
