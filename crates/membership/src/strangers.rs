//! Strangers: callers that have not shown a certificate yet. A bounded number is listened to at once.

use crate::lock_class::STRANGERS;
use sluice_sync::time::Duration;
use sluice_sync::{Arc, Mutex, thread};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};

/// The number of strangers that are listened to at once.
const STRANGERS_MAX: usize = 64;
/// The pause before a listener that failed is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// A listener at `address`.
///
/// # Errors
/// The system's, with the address.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"));
    TcpListener::bind(address).map_err(named)
}

/// Takes calls until `is_over`, each on a thread of its own: `recognise` learns from a caller which node it is, and `serve` serves
/// that. An error of `recognise` ends the connection, and the node calls again.
///
/// A stranger too many pushes out an earlier one, so strangers that say nothing keep no node out.
pub fn listen<K>(
    listener: &TcpListener,
    is_over: impl Fn() -> bool,
    recognise: impl Fn(TcpStream) -> io::Result<K> + Clone + Send + 'static,
    serve: impl Fn(K) + Clone + Send + 'static,
) {
    let strangers = Arc::new(Mutex::with_class(&STRANGERS, Strangers::default()));
    while !is_over() {
        let admitted = listener.accept().and_then(|(tcp, from)| {
            let number = strangers.lock().admit(from.ip(), tcp.try_clone()?);
            Ok((tcp, number))
        });
        // The process may be out of descriptors, which others give back.
        let Ok((tcp, number)) = admitted else {
            thread::sleep(PAUSE);
            continue;
        };
        let (recognise, serve, strangers) = (recognise.clone(), serve.clone(), strangers.clone());
        thread::spawn(move || {
            let known = recognise(tcp);
            strangers.lock().waiting.remove(&number);
            known.into_iter().for_each(serve);
        });
    }
}

/// The networks and connections of callers that have not shown who they are, by the order of their calls.
#[derive(Default)]
struct Strangers {
    waiting: BTreeMap<u64, (IpAddr, TcpStream)>,
    calls: u64,
}

impl Strangers {
    /// Adds a caller: its number. Where there are too many, the earliest of the network with the most callers is hung up on.
    fn admit(&mut self, from: IpAddr, tcp: TcpStream) -> u64 {
        if self.waiting.len() >= STRANGERS_MAX {
            let mut callers = BTreeMap::<IpAddr, (usize, Reverse<u64>)>::new();
            for (number, (network, _)) in &self.waiting {
                callers.entry(*network).or_insert((0, Reverse(*number))).0 += 1;
            }
            let earliest = callers.into_values().max().map(|(_, Reverse(number))| number);
            if let Some((_, tcp)) = earliest.and_then(|number| self.waiting.remove(&number)) {
                // The caller may have hung up already.
                let _ = tcp.shutdown(Shutdown::Both);
            }
        }
        self.calls += 1;
        self.waiting.insert(self.calls, (network_of(from), tcp));
        self.calls
    }
}

/// The callers that one machine can pretend to be: an address, of IPv6 the 64 bits of its network.
fn network_of(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_sync::atomic::{AtomicBool, Ordering};
    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    #[test]
    fn a_taken_address_is_named() {
        let first = bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let address = first.local_addr().expect("it listens");
        let error = bind(address).expect_err("it is taken").to_string();
        assert!(error.starts_with(&format!("cannot listen at {address}: ")), "{error}");
    }

    #[test]
    fn silent_strangers_keep_no_node_out() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let listening = thread::spawn({
            let over = over.clone();
            let recognise = |mut tcp: TcpStream| {
                let mut name = [0; 4];
                tcp.read_exact(&mut name)?;
                Ok(tcp)
            };
            move || {
                listen(
                    &listener,
                    || over.load(Ordering::SeqCst),
                    recognise,
                    |mut tcp: TcpStream| tcp.write_all(b"hello").unwrap(),
                )
            }
        });
        let call = || TcpStream::connect(address).unwrap();
        let mut silent: Vec<_> = (0..STRANGERS_MAX + 1).map(|_| call()).collect();
        // The earliest was hung up on.
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
        let mut node = call();
        node.write_all(b"node").unwrap();
        let mut answer = [0; 5];
        node.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"hello");
        over.store(true, Ordering::SeqCst);
        drop(call());
        listening.join().unwrap();
    }

    #[test]
    fn of_crowds_of_one_size_the_earliest_caller_is_hung_up_on() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut strangers = Strangers::default();
        let first = strangers.admit([10, 0, 0, 1].into(), tcp.try_clone().unwrap());
        for address in 2..=STRANGERS_MAX as u8 {
            strangers.admit([10, 0, 0, address].into(), tcp.try_clone().unwrap());
        }
        let node = strangers.admit([10, 9, 9, 9].into(), tcp.try_clone().unwrap());
        assert!(strangers.waiting.contains_key(&node) && !strangers.waiting.contains_key(&first));
        let one_network = ["2001:db8::1", "2001:db8::2"].map(|text| network_of(text.parse().unwrap()));
        assert_eq!(one_network[0], one_network[1]);
    }

    #[test]
    fn a_crowd_from_one_address_pushes_out_its_own() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut strangers = Strangers::default();
        let node = strangers.admit([10, 0, 0, 1].into(), tcp.try_clone().unwrap());
        for _ in 0..2 * STRANGERS_MAX {
            strangers.admit([10, 0, 0, 9].into(), tcp.try_clone().unwrap());
        }
        assert!(strangers.waiting.contains_key(&node));
        assert_eq!(strangers.waiting.len(), STRANGERS_MAX);
    }
}
