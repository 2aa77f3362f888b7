//! Tests of what a relay answers by itself.

use super::*;
use crate::relay::tests::message;

const DIR: u64 = 5;

fn parts(message: &[u8]) -> (InHeader, &[u8]) {
    InHeader::read_from_prefix(message).expect("a header")
}

#[test]
fn an_attribute_that_is_not_there_is_known_until_one_may_be() {
    let mut knowledge = Knowledge::default();
    let look = message(opcode::GETXATTR, 7, &[&[0; 8], b"user.a\0"]);
    let other = message(opcode::GETXATTR, 7, &[&[0; 8], b"user.b\0"]);
    let before = knowledge.xattr_changes();
    knowledge.lacks_xattr(7, b"user.a", before);
    assert!(is_known(&knowledge, &look) && !is_known(&knowledge, &other));
    ask(&mut knowledge, &message(opcode::SETXATTR, 7, &[&[0; 16], b"user.a\0x"]));
    assert!(!is_known(&knowledge, &look));
    knowledge.lacks_xattr(7, b"user.a", before);
    assert!(!is_known(&knowledge, &look), "it was asked for before");
    for end in [
        Knowledge::clear,
        |knowledge: &mut Knowledge| knowledge.forget(7),
        |knowledge: &mut Knowledge| {
            knowledge.may_have_xattrs(7);
        },
    ] {
        let changes = knowledge.xattr_changes();
        knowledge.lacks_xattr(7, b"user.a", changes);
        assert!(is_known(&knowledge, &look));
        end(&mut knowledge);
        assert!(!is_known(&knowledge, &look));
    }
}

fn ask(knowledge: &mut Knowledge, message: &[u8]) -> u64 {
    let (header, body) = parts(message);
    knowledge.asked(&header, body)
}

/// The directory has so many names, says the answer.
fn answer(knowledge: &mut Knowledge, message: &[u8], number: u64, nlink: u32) {
    let (header, body) = parts(message);
    let told = ToldBesides { serial: 0, dir: Attr { nlink, ..Attr::new_zeroed() } };
    knowledge.answered(number, &header, body, Some(&told));
}

fn is_known(knowledge: &Knowledge, message: &[u8]) -> bool {
    let (header, body) = parts(message);
    knowledge.answer(&header, body).is_some()
}

fn nlink(knowledge: &Knowledge) -> Option<u32> {
    knowledge.dirs[&DIR].attr.map(|attr| attr.nlink)
}

/// The knowledge of a directory that was just made.
fn knowledge() -> Knowledge {
    let mut knowledge = Knowledge::default();
    let made = EntryOut { nodeid: DIR, ..EntryOut::new_zeroed() };
    let mkdir = InHeader { opcode: opcode::MKDIR, nodeid: 1, ..InHeader::new_zeroed() };
    knowledge.made(&mkdir, &EntryOut { nodeid: 6, ..made }, 0);
    knowledge.made(&mkdir, &made, 7);
    assert!(!knowledge.dirs.contains_key(&6), "it is not covered");
    knowledge
}

#[test]
fn a_name_is_not_there_unless_a_request_may_have_made_it() {
    let mut knowledge = knowledge();
    let makes = |code: u32, nodeid: u64, before: usize, names: &[u8]| {
        message(code, nodeid, &[&vec![0; before], names])
    };
    let rename = |code: u32, before: usize| {
        message(
            code,
            9,
            &[&DIR.to_ne_bytes(), &vec![0; before - 8], b"old\0", code.to_string().as_bytes(), b"\0"],
        )
    };
    let requests = [
        makes(opcode::MKNOD, DIR, size_of::<MknodIn>(), b"mknod\0"),
        makes(opcode::MKDIR, DIR, size_of::<MkdirIn>(), b"mkdir\0"),
        makes(opcode::CREATE, DIR, size_of::<CreateIn>(), b"create\0"),
        makes(opcode::LINK, DIR, size_of::<LinkIn>(), b"link\0"),
        makes(opcode::SYMLINK, DIR, 0, b"symlink\0target\0"),
        rename(opcode::RENAME, size_of::<RenameIn>()),
        rename(opcode::RENAME2, size_of::<Rename2In>()),
    ];
    let (rename, rename2) = (format!("{}\0", opcode::RENAME), format!("{}\0", opcode::RENAME2));
    let names: [&[u8]; 7] =
        [b"mknod\0", b"mkdir\0", b"create\0", b"link\0", b"symlink\0", rename.as_bytes(), rename2.as_bytes()];
    for (request, name) in requests.iter().zip(names) {
        let lookup = message(opcode::LOOKUP, DIR, &[name]);
        assert!(is_known(&knowledge, &lookup));
        ask(&mut knowledge, request);
        assert!(!is_known(&knowledge, &lookup), "{name:?}");
    }
    assert!(is_known(&knowledge, &message(opcode::LOOKUP, DIR, &[b"old\0"])), "it is elsewhere");
    let (longest, too_long) =
        ([&[b'n'; NAME_MAX][..], b"\0"].concat(), [&[b'n'; NAME_MAX + 1][..], b"\0"].concat());
    assert!(is_known(&knowledge, &message(opcode::LOOKUP, DIR, &[&longest])));
    for (nodeid, name) in
        [(DIR, &b".\0"[..]), (DIR, b"..\0"), (DIR, b"no end"), (DIR, &too_long), (9, b"a\0")]
    {
        assert!(!is_known(&knowledge, &message(opcode::LOOKUP, nodeid, &[name])), "{name:?}");
    }
    // Whatever it is: no panic.
    for request in &requests {
        (size_of::<InHeader>()..request.len()).for_each(|len| {
            ask(&mut knowledge, &request[..len]);
        });
    }
    for name in 0..=NAMES_MAX {
        let name = format!("{name}\0");
        ask(&mut knowledge, &makes(opcode::CREATE, DIR, size_of::<CreateIn>(), name.as_bytes()));
    }
    assert!(!is_known(&knowledge, &message(opcode::LOOKUP, DIR, &[b"a\0"])), "there are too many");
}

#[test]
fn attributes_are_believed_from_the_answer_to_a_request_beside_which_there_was_no_other() {
    let mut knowledge = knowledge();
    let unlink = message(opcode::UNLINK, DIR, &[b"a\0"]);
    let getattr = message(opcode::GETATTR, DIR, &[&[0; 16]]);
    assert!(is_known(&knowledge, &getattr), "from MKDIR");
    let first = ask(&mut knowledge, &unlink);
    assert!(!is_known(&knowledge, &getattr));
    answer(&mut knowledge, &unlink, first, 9);
    assert_eq!(nlink(&knowledge), Some(9));
    // Two at once, answered in whatever order.
    for is_reversed in [false, true] {
        let mut two = [ask(&mut knowledge, &unlink), ask(&mut knowledge, &unlink)];
        if is_reversed {
            two.reverse();
        }
        for number in two {
            answer(&mut knowledge, &unlink, number, 8);
            assert_eq!(nlink(&knowledge), None);
        }
        let alone = ask(&mut knowledge, &unlink);
        answer(&mut knowledge, &unlink, alone, 7);
        assert_eq!(nlink(&knowledge), Some(7));
    }
    // An answer without attributes is no better, and a LOOKUP changes nothing.
    let number = ask(&mut knowledge, &message(opcode::LOOKUP, DIR, &[b"a\0"]));
    assert_eq!((number, nlink(&knowledge)), (0, Some(7)));
    let chmod = message(opcode::SETATTR, DIR, &[&[0; 88]]);
    let number = ask(&mut knowledge, &chmod);
    let (header, body) = parts(&chmod);
    knowledge.answered(number, &header, body, None);
    assert_eq!(nlink(&knowledge), None);
    // A move changes both directories.
    let moved = message(opcode::RENAME, 9, &[&DIR.to_ne_bytes(), b"a\0b\0"]);
    let (alone, other) = (ask(&mut knowledge, &unlink), ask(&mut knowledge, &moved));
    answer(&mut knowledge, &unlink, alone, 6);
    assert_eq!(nlink(&knowledge), None);
    answer(&mut knowledge, &moved, other, 5);
    assert_eq!((nlink(&knowledge), knowledge.dirs[&DIR].under_way), (None, 0), "of the other directory");
}
