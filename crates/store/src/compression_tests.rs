//! A compressed store: its data take fewer blocks and read as they were written; damage of a compressed block is found.

use crate::disk::Disk;
use crate::disk::crash::CrashDisk;
use crate::mutant::{Mutant, Planted};
use crate::{EXTENT_ROOM, Extent, Options, Store, StoreError};
use sluice_sync::Arc;
use sluice_sync::face::cpu;
use sluice_sync::random::Random;

const BLOCK: usize = 4096;

fn options() -> Options {
    Options {
        log_size: 256 << 10,
        segment_size: 1 << 20,
        open_segments: 1,
        cache: 1 << 20,
        background: false,
        compress: true,
        ..Options::default()
    }
}

fn shared(disk: &CrashDisk) -> Arc<dyn Disk> {
    Arc::from(Box::new(disk.clone()) as Box<dyn Disk>)
}

/// Disks for stores of both kinds.
fn disks() -> [CrashDisk; 2] {
    [CrashDisk::new(), CrashDisk::encrypted()]
}

/// Bytes of this length, of which a part is noise.
fn mixed(random: &mut Random, len: usize, noise: usize) -> Vec<u8> {
    let words = b"the same words, which come again and again; ".repeat(len / 40 + 1);
    let mut bytes: Vec<u8> = (0..noise.min(len)).map(|_| random.below(256) as u8).collect();
    bytes.extend_from_slice(&words[..len - bytes.len()]);
    bytes
}

fn name(store: &Store, number: u32, extent: &Extent) {
    let mut value = Vec::new();
    extent.encode(&mut value);
    let mut change = store.begin(4096 + EXTENT_ROOM).expect("room");
    change.put(&number.to_be_bytes(), 1, &value);
    change.name_extent(extent);
}

/// The extents that the records of a store name.
fn named(store: &Store) -> Vec<Extent> {
    let mut extents = Vec::new();
    let seen = store.scan(&[0], &[0xff], &mut |_, value| {
        extents.push(Extent::decode(value).expect("an extent").0);
        true
    });
    seen.expect("the disk works");
    extents
}

#[test]
fn what_is_written_takes_fewer_blocks_where_it_pays_and_reads_right_in_each_part() {
    for disk in disks() {
        let mut random = Random::new(3);
        let store = Store::create(shared(&disk), options()).expect("an empty disk");
        let mut written = Vec::new();
        for number in 0..60 {
            let len = 1 + random.below(16 * BLOCK);
            let noise = [0, len / 3, len][number as usize % 3];
            let bytes = mixed(&mut random, len, noise);
            let extent = store.write_extent(&bytes).expect("room");
            name(&store, number, &extent);
            assert_eq!(extent.len(), len as u64);
            let blocks = extent.allocated() as usize / BLOCK;
            match number % 3 {
                _ if len <= BLOCK => assert_eq!(blocks, 1),
                0 => assert_eq!(blocks, 1, "{len} bytes of words"),
                1 => assert!(blocks <= len.div_ceil(BLOCK)),
                _ => assert_eq!(blocks, len.div_ceil(BLOCK), "noise"),
            }
            written.push(bytes);
        }
        store.sync().and_then(|()| store.checkpoint()).expect("the disk works");
        let whole: usize = written.iter().map(|bytes| bytes.len().next_multiple_of(BLOCK)).sum();
        let stats = store.stats();
        assert!(stats.data_bytes < whole as u64 * 3 / 5, "{} of {whole}", stats.data_bytes);
        assert!(store.is_compressed() && store.is_encrypted() == disk.cipher().is_some());
        let contents: usize = written.iter().map(Vec::len).sum();
        assert_eq!((stats.written_bytes, stats.written_data_bytes), (contents as u64, stats.data_bytes));
        drop(store);
        let store = Store::open(shared(&disk), options().compress(false)).expect("a store");
        let extents = named(&store);
        let all = store.read_extents(&extents.iter().collect::<Vec<_>>()).expect("the disk works");
        assert!(all == written);
        assert!(store.verify_extents(&extents.iter().collect::<Vec<_>>()).iter().all(Result::is_ok));
        for (extent, bytes) in extents.iter().zip(&written) {
            for _ in 0..8 {
                let start = random.below(bytes.len() + 1);
                let mut part = vec![0; random.below(bytes.len() - start + 1)];
                store.read_extent(extent, start as u64, &mut part).expect("the disk works");
                assert!(part == bytes[start..start + part.len()]);
            }
        }
        // The store itself says that it is compressed, whatever the options of the open.
        let again = store.write_extent(&[7; 16 * BLOCK]).expect("room");
        assert_eq!(again.allocated(), BLOCK as u64);
        assert_eq!(Store::info(&disk).map(|info| (info.is_compressed, info.version)).ok(), Some((true, 12)));
    }
}

#[test]
fn a_store_that_was_not_made_compressed_stays_so() {
    let disk = CrashDisk::new();
    let store = Store::create(shared(&disk), options().compress(false)).expect("an empty disk");
    drop(store);
    let store = Store::open(shared(&disk), options()).expect("a store");
    let extent = store.write_extent(&[7; 16 * BLOCK]).expect("room");
    assert_eq!(extent.allocated(), 16 * BLOCK as u64);
    let info = Store::info(&disk).expect("a store");
    assert!(!info.is_compressed, "{info:?}");
}

#[test]
fn each_flipped_byte_of_compressed_data_is_found() {
    // Extents of one CPU lie side by side.
    cpu::pin(cpu::allowed()[0]).expect("an allowed CPU");
    for disk in disks() {
        let mut random = Random::new(5);
        let store = Store::create(shared(&disk), options()).expect("an empty disk");
        let bytes = mixed(&mut random, 16 * BLOCK, 6 * BLOCK);
        let [extent, next] = [(); 2].map(|()| store.write_extent(&bytes).expect("room"));
        assert!(extent.is_compressed() && extent.is_before(&next) && extent.span().blocks > 6);
        let file = disk.open("segment-00000000").expect("it is there");
        let mut found = 0;
        for at in (0..extent.stored()).step_by(37) {
            let at = extent.span().offset() + at;
            let mut byte = [0];
            file.read_at(&mut byte, at).expect("memory");
            file.write_at(&[byte[0] ^ 0x20], at).expect("memory");
            let read = store.read_extent(&extent, 0, &mut [0; 10]);
            assert!(matches!(read, Err(StoreError::Damaged(_))), "byte {at}: {read:?}");
            let both = store.read_extents(&[&extent, &next]);
            assert!(matches!(both, Err(StoreError::Damaged(_))), "byte {at}");
            let verified = store.verify_extents(&[&extent, &next]);
            assert!(matches!(verified[..], [Err(StoreError::Damaged(_)), Ok(())]), "byte {at}: {verified:?}");
            file.write_at(&byte, at).expect("memory");
            found += 1;
        }
        assert!(found > 100 && store.read_extent(&extent, 0, &mut [0; 10]).is_ok());
    }
}

#[test]
fn data_that_decompress_to_another_length_than_their_record_says_are_damaged() {
    let outcome = |mutant| {
        let disk = CrashDisk::new();
        drop(Store::create(shared(&disk), options()).expect("an empty disk"));
        let store = Store::open_planted(shared(&disk), options(), Planted { mutant }).expect("a store");
        let extent = store.write_extent(&[7; 9 * BLOCK]).expect("room");
        // Longer: what is missing must not be zeros. Its checksums are right.
        let longer = extent.compressed_from(10 * BLOCK);
        let mut bytes = vec![1; 10 * BLOCK];
        let read = store.read_extent(&longer, 0, &mut bytes);
        let all = store.read_extents(&[&longer]).map(|mut all| all.remove(0));
        let verified = store.verify_extents(&[&longer]).remove(0);
        match [read.map(|()| bytes), all, verified.map(|()| Vec::new())] {
            [Ok(one), Ok(other), Ok(_)] => {
                assert!(one == other && one[9 * BLOCK..] == [0; BLOCK]);
                "other bytes"
            }
            outcomes => {
                for outcome in outcomes {
                    let told = outcome.expect_err("all alike").to_string();
                    assert!(told.contains("` do not decompress to 40960 bytes"), "{told}");
                }
                "damage"
            }
        }
    };
    assert_eq!(outcome(None), "damage");
    assert_eq!(outcome(Some(Mutant::LengthNotChecked)), "other bytes", "found");
}
