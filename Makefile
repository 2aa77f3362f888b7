# The two commands: `make demo` shows what sluicefs does, `make test` proves it. Both set up what they need.

TOOLS := $(CURDIR)/target/tools
# The program that the conformance suites mount with: as the Rust tests built it, with assertions and overflow checks.
SLUICE := $(CURDIR)/target/debug/sluice
export SLUICE TOOLS
# The lock order that all Rust test programs together have seen.
LOCK_ORDER := $(CURDIR)/target/lock-order
PACKAGES := machine sync locks store vfs trees fuse
# A pipeline fails when any part of it does.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
# Known-good versions of the tools that `make test` installs into target/tools, built without optimisation: that takes
# longer than running them.
CARGO_DENY := 0.20.2
PJDFSTEST := 0.2.2
FSX := 0.3.2
VERSITYGW := v1.8.0
CSI_TEST := v5.4.0
# The Go that builds both where there is none.
GO := 1.26.6
export VERSITYGW CSI_TEST GO
# Most tests wait for leases, kernels and processes: twice as many at a time as a small machine has CPUs.
export RUST_TEST_THREADS ?= $(shell n=$$(nproc); echo $$((n < 8 ? 2 * n : n)))

.PHONY: checks csi-sanity python compile nightly clippy-release lock-testers quick s3-server help demo build install deb test fmt clippy doc deny package unit conformance cluster-conformance pjdfstest fsx lockers foreign pages peers regression suites dlm-sim dlm-model cluster-sim cluster-load same-page stress uring crash room cluster miri asan clean prerequisites programs mount-speed pgbench-speed cluster-speed mixed-load
.DEFAULT_GOAL := help

help:
	@echo 'make demo         build sluice without object stores, clusters and the lab, and take the tour: a minute and a half on two idle CPUs'
	@echo 'make test         everything that CI runs'
	@echo 'make nightly      long seeds, lints of release builds, io_uring (root)'
	@echo 'make quick        format, lints and unit tests of the crates that differ from main'
	@echo 'make build        target/release/sluice and sluice-lab, optimised across crates, and libsluice.so'
	@echo 'make install      the programs, the C library, and the helper for mount(8) and /etc/fstab, below PREFIX (/usr/local) and SBINDIR (/sbin)'
	@echo 'make deb          Debian packages of what make build has made, in target/deb: sluicefs, libsluice0, libsluice-dev'
	@echo 'make unit         the Rust tests alone'
	@echo 'make python       the Python package and its tests, in an environment below target/'
	@echo 'make conformance  pjdfstest, fsx and testers of file locks over a mount'
	@echo 'make cluster-conformance  the same over the owner and over a guest of a cluster'
	@echo 'make foreign      every workload on tmpfs, ext4, xfs and a FUSE file system that is not ours (root)'
	@echo 'make suites       test suites of others on tmpfs, ext4 and the mount, side by side (root; SUITES="git sqlite" selects)'
	@echo 'make csi-sanity   the tests of the Container Storage Interface for drivers, over a store and in a cluster (root)'
	@echo 'make pages        the HTML pages in headless Chromium'
	@echo 'make peers        sluicefs beside the in-memory file systems of other libraries, in one process, and of Python packages'
	@echo 'make regression   does the lab find a shared counter in open, and nothing where nothing changed?'
	@echo 'make dlm-sim      ten thousand seeds of the simulated cluster of lock managers'
	@echo 'make cluster-sim  ten thousand seeds of whole nodes with played kernels (SEEDS), for an idle machine'
	@echo 'make same-page    programs of two and three nodes write, append to, lock and map one file for ten minutes each (SECONDS) (root)'
	@echo 'make cluster-load three nodes under load for five minutes (SECONDS), one of which is killed or stands still every 30 s (root)'
	@echo 'make dlm-model    all orders of events in small clusters of lock managers'
	@echo 'make etcd-rounds  a hundred deaths of processes that share a lock through etcd'
	@echo 'make s3-server    the S3 server versitygw into target/tools, for the tests of stores in S3'
	@echo 'make stress       one minute of threads on shared names, then the invariant checker'
	@echo 'make uring        mounts over io_uring, which the kernel is told to allow for as long as the tests run (root)'
	@echo 'make mount-speed  a mount beside tmpfs and libfuse, row by row, for an idle machine (root)'
	@echo 'make pgbench-speed  PostgreSQL on a mount beside tmpfs, for an idle machine (root)'
	@echo 'make cluster-speed  two nodes of a cluster beside libfuse, for an idle machine (root)'
	@echo 'make cluster      two nodes of a cluster for five minutes, while the owner is killed again and again'
	@echo 'make room         a hundred times a small disk is filled, emptied and written to again (root)'
	@echo 'make crash        the long crash tests: 200 kills of a mount, random crashes of a store, hostile stores'
	@echo 'make mixed-load   half an hour of load on a store with 256 MB of memory and a tree of 4 GB (root)'
	@echo 'make asan         the tests of the file system under the address sanitizer (a nightly toolchain)'
	@echo 'make miri         the tests of sync under the interpreter Miri (a nightly toolchain with miri and rust-src)'

# Without object stores, clusters and the lab, and without optimisation across crates: a fourth of the work.
demo: prerequisites
	cargo build --profile demo --locked -p sluice --no-default-features
	@target/demo/sluice demo

build: prerequisites
	cargo build --release --locked -p sluice
	cargo build --release --locked -p sluice-c

# Does not build: root often installs what another user has built. mount(8) looks for its helpers in /sbin alone.
PREFIX ?= /usr/local
COMPLETIONS := bash-completion/completions zsh/site-functions fish/vendor_completions.d
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
SBINDIR ?= /sbin
LIBDIR ?= $(PREFIX)/lib
# The directory of the built programs.
BUILT ?= target/release
install:
	@test -x $(BUILT)/sluice -a -x $(BUILT)/sluice-lab -a -f $(BUILT)/libsluice.so || { echo 'nothing to install yet: run make build first'; exit 1; }
	install -D -m 755 $(BUILT)/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	install -D -m 755 $(BUILT)/sluice-lab $(DESTDIR)$(PREFIX)/bin/sluice-lab
	install -d $(DESTDIR)$(SBINDIR)
	ln -sf $(PREFIX)/bin/sluice $(DESTDIR)$(SBINDIR)/mount.fuse.sluice
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -d $(DESTDIR)$(PREFIX)/share/man/man1 $(COMPLETIONS:%=$(DESTDIR)$(PREFIX)/share/%)
	$(BUILT)/sluice man $(DESTDIR)$(PREFIX)/share/man/man1
	$(BUILT)/sluice completions bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice
	$(BUILT)/sluice completions zsh >$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_sluice
	$(BUILT)/sluice completions fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/sluice.fish
	install -D -m 755 $(BUILT)/libsluice.so $(DESTDIR)$(LIBDIR)/libsluice.so.0
	ln -sf libsluice.so.0 $(DESTDIR)$(LIBDIR)/libsluice.so
	install -D -m 644 bindings/c/include/sluice.h $(DESTDIR)$(PREFIX)/include/sluice.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' bindings/c/sluice.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/sluice.pc
	for unit in contrib/*.service contrib/*.timer; do sed 's|/usr/local|$(PREFIX)|' $$unit >$(DESTDIR)$(PREFIX)/lib/systemd/system/$${unit#contrib/} || exit; done

# Debian packages of what `make build` has made.
deb:
	contrib/deb/build $(BUILT) target/deb

# Many tests wait for leases, kernels and processes. Lints, documents and tools are made meanwhile, at the lowest priority, and in a
# directory of their own: cargo lets one process at a time into a directory.
test: prerequisites programs s3-server fmt compile
	$(MAKE) --jobs 2 unit checks || { echo 'make test: the failures once more:'; grep -hE -A4 '^unit:|panicked at|\.\.\. FAILED$$' target/unit.log | tail -80; exit 1; }
	$(MAKE) python conformance
	@echo 'make test: all parts done'

checks:
	@MAKEFLAGS= CARGO_TARGET_DIR=$(CURDIR)/target/checks nice -n 19 $(MAKE) clippy doc deny package $(TOOLS)/bin/pjdfstest $(TOOLS)/bin/fsx lock-testers \
		>target/checks.log 2>&1; status=$$?; cat target/checks.log; exit $$status

# All test programs, and target/debug/sluice.
compile: prerequisites
	cargo test --locked --workspace --no-run

# The long seeds and the lints of builds that few make.
nightly: clippy-release dlm-sim dlm-model stress uring crash room
	@echo 'make nightly: all parts done'

quick: prerequisites
	@sh tests/quick

prerequisites:
	@sh tests/prerequisites cargo cc

programs:
	@sh tests/prerequisites programs

fmt: prerequisites
	cargo fmt --all --check

# The second: the program of `make demo`.
clippy: prerequisites
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked -p sluice --no-default-features -- -D warnings

# Lock debugging where there are no assertions, and on the simulator.
clippy-release: prerequisites
	cargo clippy --locked --release -p sluice-sync -p sluice-sync-sim --features lock-debug -- -D warnings

doc: prerequisites
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items

deny: $(TOOLS)/bin/cargo-deny
	sh tests/deny

# The crates that are of use without the command. Their contents and manifests; `cargo package -p NAME` builds one, too.
package: prerequisites
	cargo package --locked --no-verify --allow-dirty $(PACKAGES:%=-p sluice-%)

# All tests, also after one has failed: a run of CI is too dear to name one fault only.
unit: compile
	@mkdir -p target
	@rm -f $(LOCK_ORDER) target/unit.log
	SLUICE_URING_LATER=1 SLUICE_LOCK_ORDER_RECORD=$(LOCK_ORDER) tests/unit cargo test --locked --workspace --no-fail-fast
	SLUICE_LOCK_ORDER_RECORD=$(LOCK_ORDER) tests/unit cargo test --locked --workspace --test lock_order
	SELECTED=--workspace tests/unit sh tests/uring io_uring::
	tests/unit cargo test --locked -p sluice-sync-sim --features lock-debug --test suite lock_debug::
	@echo "tests skipped for want of something (the SKIPPED lines above): $$(grep -c '^SKIPPED' target/unit.log || true)"

$(SLUICE): compile

# Cargo's own directory: it has compiled nearly all of it.
python: $(SLUICE)
	sh tests/python

conformance: pjdfstest fsx lockers

pjdfstest: $(SLUICE) $(TOOLS)/bin/pjdfstest
	sh tests/conformance/run pjdfstest

fsx: $(SLUICE) $(TOOLS)/bin/fsx
	sh tests/conformance/run fsx

# stress-ng and ping_pong.
lock-testers:
	@sh tests/prerequisites lock-testers

lockers: $(SLUICE) lock-testers
	sh tests/conformance/run locks

cluster-conformance: $(SLUICE) $(TOOLS)/bin/pjdfstest $(TOOLS)/bin/fsx
	sh tests/conformance/run pjdfstest cluster
	sh tests/conformance/run fsx cluster
	sh tests/conformance/run locks cluster

foreign:
	cargo build --locked -p sluice
	sh tests/foreign

pages:
	cargo build --locked -p sluice
	sh tests/pages/run

peers: prerequisites
	cd tests/peers && cargo run --locked --release --target-dir $(CURDIR)/target/peers
	MATURIN=--release sh tests/python bindings/python/peers.py

regression: prerequisites
	tests/regression/run

dlm-sim: prerequisites
	SLUICE_DLM_SEEDS=10000 cargo test --locked -p sluice-dlm --test suite simulation:: -- --nocapture

dlm-model: prerequisites
	SLUICE_DLM_STATES=10000000 cargo test --locked -p sluice-dlm --test suite model::no_order -- --nocapture

cluster-sim: prerequisites
	SLUICE_CLUSTER_SEEDS=$${SEEDS:-10000} cargo test --locked --release -p sluice-cluster --test suite seeds:: -- --nocapture

cluster-load: build $(TOOLS)/bin/fsx
	SLUICE=$(CURDIR)/target/release/sluice TOOLS=$(TOOLS) sh tests/cluster-load $${SECONDS:-300}

same-page: prerequisites
	SLUICE_LOAD_SECONDS=$${SECONDS:-600} cargo test --locked --release -p sluice-cluster --test suite same_page:: -- --nocapture --test-threads 1

etcd-rounds: prerequisites programs
	SLUICE_ETCD_ROUNDS=100 cargo test --locked -p sluice-dlm --test suite processes:: -- --nocapture

# Two minutes of Go, once.
s3-server:
	@sh tests/prerequisites s3-server

stress: prerequisites
	SLUICE_STRESS_SECONDS=60 cargo test --locked --release -p sluice-oracle --test suite stress::

uring: prerequisites
	sh tests/uring

mount-speed: build
	SLUICE=$(CURDIR)/target/release/sluice sh tests/mount-speed

mixed-load: build $(TOOLS)/bin/fsx
	SLUICE=$(CURDIR)/target/release/sluice sh tests/mixed-load

pgbench-speed: build
	SLUICE=$(CURDIR)/target/release/sluice sh tests/pgbench-speed

cluster-speed: build
	SLUICE=$(CURDIR)/target/release/sluice sh tests/cluster-speed

# Each crash point of some hundred workloads on the store, and of all pairs of calls of the file system, with what is unsynced dropped, torn, reordered.
crash: prerequisites
	SLUICE_CRASH_WORKLOADS=400 SLUICE_FUZZ_ROUNDS=20000 cargo test --locked -p sluice-store --lib -- --nocapture
	SLUICE_CRASH_ENCRYPTED=1 SLUICE_CRASH_WORKLOADS=200 cargo test --locked -p sluice-store --lib
	SLUICE_CRASH_ENCRYPTED=1 SLUICE_CRASH_SEEDS=4 SLUICE_DAMAGE_ROUNDS=2000 cargo test --locked --release -p sluice-vfs --lib -- durable::crash_tests durable::damage_tests durable::copy_tests durable::fsck_tests durable::share_tests
	SLUICE_CRASH_COMPRESSED=1 SLUICE_CRASH_SEEDS=4 SLUICE_DAMAGE_ROUNDS=2000 cargo test --locked --release -p sluice-vfs --lib -- durable::crash_tests durable::damage_tests durable::copy_tests durable::share_tests
	SLUICE_CRASH_SEEDS=40 cargo test --locked --release -p sluice-vfs --lib durable::crash_tests -- --nocapture
	SLUICE_MOMENT_ROUNDS=250 cargo test --locked --release -p sluice-vfs --lib moment::
	SLUICE_KILL_ROUNDS=200 cargo test --locked -p sluice --test suite store::

# Disks of 150 MiB to 2 GiB are filled, emptied and written to again a hundred times.
room: prerequisites
	SLUICE_ROOM_ROUNDS=100 cargo test --locked -p sluice --test suite room_rounds:: -- --nocapture

# Two nodes work for five minutes while the owner is killed again and again.
cluster: prerequisites
	SLUICE_CLUSTER_SECONDS=300 SLUICE_CLUSTER_TRIALS=10000 cargo test --locked -p sluice --test suite cluster:: -- --nocapture

# Without isolation, for the clock and the CPUs that the system lists; without backtraces, which take minutes to print.
miri: prerequisites
	RUST_BACKTRACE=0 MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked --target-dir target/miri -p sluice-sync --lib

# The tests of the file system under the address sanitizer. Not those that count allocations.
asan: prerequisites
	RUSTFLAGS='-Zsanitizer=address --cfg sluice_unpooled' ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 \
	cargo +nightly test --locked --target-dir target/asan --target $$(uname -m)-unknown-linux-gnu --lib --test suite \
	-p sluice-sync -p sluice-locks -p sluice-store -p sluice-vfs -p sluice-trees -p sluice-fuse -p sluice-oracle

# Not part of `make test`: it fetches from crates.io and Debian, and takes a quarter of an hour or more.
suites: prerequisites
	cargo build --locked -p sluice
	sh tests/suites/run $(SUITES)

csi-sanity: $(SLUICE)
	sh tests/suites/csi-sanity prepare
	for target in store cluster; do \
		dir=$$(mktemp -d /tmp/sluice-csi.XXXXXX); \
		TARGET=$$target sh tests/suites/csi-sanity run $$dir; status=$$?; rm -rf $$dir; [ $$status = 0 ] || exit $$status; \
	done

$(TOOLS)/bin/cargo-deny: | prerequisites
	cargo install --locked --quiet --debug --root $(TOOLS) --target-dir target/tools-build cargo-deny@$(CARGO_DENY)

$(TOOLS)/bin/pjdfstest: | prerequisites
	cargo install --locked --quiet --debug --root $(TOOLS) --target-dir target/tools-build pjdfstest@$(PJDFSTEST)

$(TOOLS)/bin/fsx: | prerequisites
	cargo install --locked --quiet --debug --root $(TOOLS) --target-dir target/tools-build fsx@$(FSX)

clean:
	cargo clean
