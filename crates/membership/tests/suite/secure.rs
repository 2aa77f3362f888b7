//! Connections between nodes: what is sent arrives, in pieces of any size.

use sluice_membership::{ClusterCa, Secure};
use std::net::{TcpListener, TcpStream};

#[test]
fn what_is_sent_in_records_of_any_size_arrives_whole_however_it_is_read() {
    const BYTES: usize = 4 << 20;
    let (server, client) =
        ClusterCa::new().and_then(|ca| ca.issue()).and_then(|one| one.configurations()).expect("made");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("bound");
    let sent: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    let all = sent.clone();
    let writer = std::thread::spawn(move || {
        let secure =
            Secure::call(TcpStream::connect(address).expect("it listens"), client).expect("believed");
        let (mut rest, mut number) = (all.as_slice(), 0);
        while !rest.is_empty() {
            number += 1;
            let (now, later) =
                rest.split_at([1, 70_000, 16_384, 40, 5_000, 131_072][number % 6].min(rest.len()));
            secure.write_all(now).expect("written");
            rest = later;
        }
        // A connection that is dropped now could lose bytes that are on their way.
        secure
    });
    let secure = Secure::accept(listener.accept().expect("called").0, server).expect("believed");
    let (mut got, mut number) = (Vec::new(), 0);
    while got.len() < BYTES {
        number += 1;
        let mut some = vec![0; [4, 65_536, 1, 17_000, 100][number % 5].min(BYTES - got.len())];
        secure.read_exact(&mut some).expect("it arrives");
        got.extend(some);
    }
    drop(writer.join().expect("no panic"));
    assert!(got == sent);
}
