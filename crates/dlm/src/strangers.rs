//! Strangers: callers that have not shown a certificate yet. Few are listened to at once, so that they take little.

use sluice_sync::atomic::{AtomicUsize, Ordering};
use sluice_sync::time::Duration;
use sluice_sync::{Arc, thread};
use std::io;
use std::net::{TcpListener, TcpStream};

/// How many are listened to at once.
const STRANGERS_MAX: usize = 64;
/// Before a listener is tried again that failed.
const PAUSE: Duration = Duration::from_millis(20);

/// Takes calls until `is_over`, each on a thread of its own: `recognise` learns from a caller which node it is, and `serve` serves
/// that. An error of `recognise` ends the connection, and the node calls again.
pub fn listen<K>(
    listener: &TcpListener,
    is_over: impl Fn() -> bool,
    recognise: impl Fn(TcpStream) -> io::Result<K> + Clone + Send + 'static,
    serve: impl Fn(K) + Clone + Send + 'static,
) {
    let strangers = Arc::new(AtomicUsize::new(0));
    while !is_over() {
        let Ok((tcp, _)) = listener.accept() else {
            thread::sleep(PAUSE);
            continue;
        };
        // Relaxed: a count. One too many is dropped, and may call again.
        if strangers.fetch_add(1, Ordering::Relaxed) >= STRANGERS_MAX {
            strangers.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (recognise, serve, strangers) = (recognise.clone(), serve.clone(), strangers.clone());
        thread::spawn(move || {
            let known = recognise(tcp);
            // Relaxed: as above.
            strangers.fetch_sub(1, Ordering::Relaxed);
            known.into_iter().for_each(serve);
        });
    }
}
