//! Tests of the search, the shrinking and the words: histories that have an order, and those of broken file systems.

use super::*;
use crate::call::{ENOENT, SharedLockKind};
use crate::{shrink, what_is_wrong};

const RULES: RoundRules = RoundRules { losses: 0, states_max: 100_000 };
const X: SharedName = SharedName(0);
const Y: SharedName = SharedName(1);
const A: [u8; 8] = *b"aaaaaaaa";
const B: [u8; 8] = *b"bbbbbbbb";

type Told = Result<SharedAnswer, i32>;
const OK: Told = Ok(SharedAnswer::Done);

/// A call of a program from one time to another.
fn at(process: usize, (begun, ended): (u64, u64), call: SharedCall, told: Told) -> TimedCall {
    TimedCall { process, call, begun, ended: Some(ended), result: Some(told) }
}

fn create(slot: u8, name: SharedName) -> SharedCall {
    SharedCall::Create { slot, name, appends: true }
}

fn open(slot: u8, name: SharedName) -> SharedCall {
    SharedCall::Open { slot, name, appends: true }
}

fn bytes(words: &[[u8; 8]]) -> Told {
    Ok(SharedAnswer::Bytes(words.concat()))
}

fn attr(size: u64, links: u64) -> Told {
    Ok(SharedAnswer::Attr { size, links, is_dir: false })
}

/// A file `X` with the word `A`, open at both programs as 0 from time 10 on.
fn shared_file() -> Vec<TimedCall> {
    vec![
        at(0, (0, 1), create(0, X), OK),
        at(0, (2, 3), SharedCall::Append { slot: 0, word: A }, OK),
        at(1, (4, 5), open(0, X), OK),
    ]
}

fn with(calls: &[TimedCall]) -> Vec<TimedCall> {
    [shared_file(), calls.to_vec()].concat()
}

fn assert_found(history: &[TimedCall]) {
    assert_eq!(find_order(history, RULES), RoundVerdict::Found, "{history:#?}");
}

/// Asserts that there is no order, that it is said so, and gives how many calls are left.
fn assert_wrong(history: &[TimedCall], said: &str) -> usize {
    assert_eq!(find_order(history, RULES), RoundVerdict::Missing, "{history:#?}");
    let fewest = shrink(history, RULES);
    assert_eq!(find_order(&fewest, RULES), RoundVerdict::Missing, "{fewest:#?}");
    let wrong = what_is_wrong(&fewest);
    let told: Vec<String> = fewest
        .iter()
        .map(|call| format!("{} {}: {}", call.process, call.call, call.result_in_words()))
        .collect();
    assert!(wrong.starts_with(said), "{wrong}, not {said}: {told:#?}");
    fewest.len()
}

#[test]
fn each_fault_is_named_by_few_calls() {
    let lock = |shared| SharedCall::Lock { slot: 0, shared, kind: SharedLockKind::Flock };
    let twice = [at(0, (10, 11), lock(false), OK), at(1, (12, 13), lock(true), OK)];
    assert_eq!(assert_wrong(&with(&twice), "a lock held twice"), 4);
    let winners = [at(0, (0, 10), create(0, X), OK), at(1, (2, 9), create(0, X), OK)];
    assert_eq!(assert_wrong(&winners, "two O_EXCL winners"), 2);
    let append = |process, times, word| at(process, times, SharedCall::Append { slot: 0, word }, OK);
    let size = [append(0, (10, 11), B), at(1, (12, 13), SharedCall::Stat { name: X }, attr(8, 1))];
    assert_eq!(assert_wrong(&with(&size), "stale size"), 4);
    let lost = [append(1, (10, 11), B), at(1, (12, 13), SharedCall::Read { slot: 0 }, bytes(&[A]))];
    assert_wrong(&with(&lost), "lost append");
    let overwritten = [
        append(0, (10, 12), B),
        append(1, (11, 13), *b"cccccccc"),
        at(0, (14, 15), SharedCall::Read { slot: 0 }, bytes(&[A, *b"cccccccc"])),
    ];
    assert_wrong(&with(&overwritten), "lost append");
    let after_a_lock = [
        at(1, (6, 7), SharedCall::Read { slot: 0 }, bytes(&[A])),
        at(0, (10, 11), lock(false), OK),
        at(0, (12, 13), SharedCall::Write { slot: 0, offset: 0, word: B }, OK),
        at(0, (14, 15), SharedCall::Unlock { slot: 0, kind: SharedLockKind::Flock }, OK),
        at(1, (16, 17), lock(false), OK),
        at(1, (18, 19), SharedCall::Read { slot: 0 }, bytes(&[A])),
    ];
    assert_wrong(&with(&after_a_lock), "a read of old bytes");
    let opens = [at(0, (10, 11), SharedCall::Unlink { name: X }, OK), at(1, (12, 13), open(1, X), OK)];
    assert_wrong(&with(&opens), "an unlinked name still opens");
    let half = [
        at(0, (10, 20), SharedCall::Rename { old: X, new: Y }, OK),
        at(1, (11, 12), SharedCall::Stat { name: Y }, attr(8, 1)),
        at(1, (13, 14), SharedCall::Stat { name: X }, attr(8, 1)),
    ];
    assert_wrong(&with(&half), "a rename seen half");
    let listed = [
        at(0, (10, 11), create(1, Y), OK),
        at(1, (12, 13), SharedCall::List { dir: 0 }, Ok(SharedAnswer::Names([true, false]))),
    ];
    assert_wrong(&with(&listed), "stale readdir");
    let undone = [
        at(0, (10, 11), SharedCall::Truncate { slot: 0, size: 0 }, OK),
        at(1, (12, 13), SharedCall::Stat { name: X }, attr(0, 1)),
        at(0, (14, 15), SharedCall::Stat { name: X }, attr(8, 1)),
    ];
    assert_wrong(&with(&undone), "");
    let absent = [at(1, (10, 11), SharedCall::Stat { name: X }, Err(ENOENT))];
    assert_wrong(&with(&absent), "stale name");
}

#[test]
fn calls_that_overlap_have_either_order_and_others_one() {
    let append = |process, times, word| at(process, times, SharedCall::Append { slot: 0, word }, OK);
    let both = [append(0, (10, 20), B), append(1, (10, 20), *b"cccccccc")];
    for order in [[A, B, *b"cccccccc"], [A, *b"cccccccc", B]] {
        let read = at(1, (21, 22), SharedCall::Read { slot: 0 }, bytes(&order));
        assert_found(&with(&[both.to_vec(), vec![read]].concat()));
    }
    let read = at(1, (12, 30), SharedCall::Read { slot: 0 }, bytes(&[A]));
    assert_found(&with(&[append(0, (10, 20), B), read]));
    let winner = at(1, (11, 12), create(1, Y), OK);
    let loser = at(0, (10, 20), create(1, Y), Err(crate::call::EEXIST));
    assert_found(&with(&[winner, loser]));
}

#[test]
fn a_change_that_would_change_nothing_now_may_come_later() {
    let changes = [
        at(0, (10, 30), SharedCall::Truncate { slot: 0, size: 8 }, OK),
        at(1, (11, 12), SharedCall::Append { slot: 0, word: B }, OK),
    ];
    let read = at(1, (40, 41), SharedCall::Read { slot: 0 }, bytes(&[A]));
    assert_found(&with(&[changes.to_vec(), vec![read]].concat()));
}

#[test]
fn words_and_length_of_a_read_have_instants_of_their_own() {
    let changes = [
        at(0, (10, 30), SharedCall::Write { slot: 0, offset: 0, word: B }, OK),
        at(1, (10, 40), SharedCall::Append { slot: 0, word: *b"cccccccc" }, OK),
    ];
    let torn = at(2, (10, 40), SharedCall::ReadFile { name: X }, bytes(&[A, *b"cccccccc"]));
    assert_found(&with(&[changes.to_vec(), vec![torn.clone()]].concat()));
    let late = TimedCall { begun: 41, ended: Some(42), ..torn };
    assert_eq!(find_order(&with(&[changes.to_vec(), vec![late]].concat()), RULES), RoundVerdict::Missing);
}

#[test]
fn a_size_shows_before_its_bytes_only_while_the_write_has_not_returned() {
    let history = |ended| {
        with(&[
            at(0, (10, ended), SharedCall::Append { slot: 0, word: B }, OK),
            at(1, (12, 13), SharedCall::Fstat { slot: 0 }, attr(16, 1)),
            at(1, (14, 15), SharedCall::Read { slot: 0 }, bytes(&[A])),
        ])
    };
    assert_found(&history(20));
    assert_eq!(find_order(&history(11), RULES), RoundVerdict::Missing);
}

#[test]
fn the_length_of_a_read_is_old_only_while_a_size_changes() {
    let history = |begun| {
        with(&[
            at(0, (10, 11), SharedCall::Truncate { slot: 0, size: 0 }, OK),
            at(0, (12, 20), SharedCall::Append { slot: 0, word: B }, OK),
            at(1, (begun, begun + 1), SharedCall::Read { slot: 0 }, bytes(&[B, [0; 8]])),
        ])
    };
    assert_found(&history(15));
    assert_eq!(find_order(&history(30), RULES), RoundVerdict::Missing);
}

#[test]
fn a_file_of_all_words_that_twelve_programs_write_is_read() {
    let words: Vec<[u8; 8]> = (0..100_u8).map(|word| [word + 1; 8]).collect();
    let appends = words.iter().zip(0_u64..).map(|(word, number)| {
        let begun = 10 + 2 * number;
        at(0, (begun, begun + 1), SharedCall::Append { slot: 0, word: *word }, OK)
    });
    let all: Vec<[u8; 8]> = [A].into_iter().chain(words.iter().copied()).collect();
    let read = at(1, (1000, 1001), SharedCall::Read { slot: 0 }, bytes(&all));
    assert_found(&with(&appends.chain([read]).collect::<Vec<_>>()));
}

#[test]
fn a_call_with_an_unknown_answer_has_taken_place_or_not() {
    for (result, ended) in [(Some(Err(5)), Some(12)), (None, None)] {
        for told in [bytes(&[A]), bytes(&[A, B])] {
            let append = SharedCall::Append { slot: 0, word: B };
            let unknown = TimedCall { process: 0, call: append, begun: 10, ended, result: result.clone() };
            let read = at(1, (20, 21), SharedCall::Read { slot: 0 }, told);
            assert_found(&with(&[unknown, read]));
        }
    }
    // But not twice, and it does not come undone.
    let append = SharedCall::Append { slot: 0, word: B };
    let unknown = TimedCall { process: 0, call: append, begun: 10, ended: None, result: None };
    let there = at(1, (20, 21), SharedCall::Read { slot: 0 }, bytes(&[A, B]));
    let gone = at(1, (22, 23), SharedCall::Read { slot: 0 }, bytes(&[A]));
    assert_eq!(find_order(&with(&[unknown, there, gone]), RULES), RoundVerdict::Missing);
}

#[test]
fn changes_may_be_lost_by_the_rules_alone_and_not_what_an_fsync_has_confirmed() {
    let append = at(0, (10, 11), SharedCall::Append { slot: 0, word: B }, OK);
    let confirmed = at(0, (12, 13), SharedCall::Fsync { slot: 0 }, OK);
    let gone = at(1, (20, 21), SharedCall::Read { slot: 0 }, bytes(&[A]));
    let (lost, kept) = (with(&[append.clone(), gone.clone()]), with(&[append, confirmed, gone]));
    let with_losses = RoundRules { losses: 1, ..RULES };
    assert_eq!(find_order(&lost, RULES), RoundVerdict::Missing);
    assert_eq!(find_order(&lost, with_losses), RoundVerdict::Found);
    assert_eq!(find_order(&kept, with_losses), RoundVerdict::Missing);
}

#[test]
fn no_loss_explains_a_lock_that_is_held_twice() {
    let lock = || SharedCall::Lock { slot: 0, shared: false, kind: SharedLockKind::Flock };
    let twice = with(&[at(0, (10, 11), lock(), OK), at(1, (12, 13), lock(), OK)]);
    let rules = RoundRules { losses: 2, ..RULES };
    assert_eq!(find_order(&twice, rules), RoundVerdict::Missing);
    assert_eq!(what_is_wrong(&shrink(&twice, rules)), "a lock held twice");
}

#[test]
fn a_search_that_takes_too_long_is_given_up() {
    let writes: Vec<_> = (0..12)
        .map(|process| {
            let word = [b'a' + process as u8; 8];
            at(process, (10, 40), SharedCall::Append { slot: 0, word }, OK)
        })
        .collect();
    let opens = (2..12).map(|process| at(process, (4, 5), open(0, X), OK));
    let read = at(0, (50, 51), SharedCall::Read { slot: 0 }, bytes(&[B]));
    let history: Vec<_> = shared_file().into_iter().chain(opens).chain(writes).chain([read]).collect();
    let few = RoundRules { states_max: 1000, ..RULES };
    assert_eq!(find_order(&history, few), RoundVerdict::Undecided);
}
